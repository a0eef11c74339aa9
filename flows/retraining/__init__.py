"""Scheduled retraining: take in data, train, compare, promote."""
