"""One retraining: take in data, train, compare, promote."""
