"""The results of runs: metrics and search."""
