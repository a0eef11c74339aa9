"""Sweeps, and comparisons of systems."""
