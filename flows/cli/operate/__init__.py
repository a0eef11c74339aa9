"""Commands that retrain and serve."""
