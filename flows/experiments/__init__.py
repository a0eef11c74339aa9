"""Runs beside the project's own: sweeps, reproductions, zero-shot evaluation."""
