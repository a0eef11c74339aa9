"""Stage `pretrain`: pre-train an encoder on articles or the corpus, with COSTA, ICT, RetroMAE, or masked language modeling only."""
