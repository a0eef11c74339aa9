"""Training: loop, optimizers, gradient cache."""
