"""Stage `pretrain`: an encoder pre-trained on articles with contrastive span prediction (COSTA), ICT, or masked language modeling only."""
