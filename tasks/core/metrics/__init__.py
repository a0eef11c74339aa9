"""Measures of runs, judgments as they need them, tests of significance, and the choice of the best system."""
