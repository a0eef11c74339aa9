"""Retraining on a schedule, by a Prefect server."""
