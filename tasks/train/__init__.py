"""Stage `train`: one round of contrastive training of the bi-encoder on positives and mined negatives."""
