"""Measures of runs, judgments as they need them, and the choice of the best system."""
