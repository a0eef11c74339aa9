"""What a run made, copied to MLflow, Weights & Biases, or TensorBoard once it has ended."""
