"""The models: bi-encoder, cross-encoder and their heads."""
