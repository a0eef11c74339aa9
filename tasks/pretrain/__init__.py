"""Stage `pretrain`: an encoder pre-trained on articles with COSTA's contrastive span prediction, ICT, or masked language modelling alone."""
