"""Copy a run's results to MLflow, Weights & Biases, or TensorBoard once it has ended."""
