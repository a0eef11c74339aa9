"""Runs in addition to the project's own: sweeps, reproductions, zero-shot evaluation."""
