"""The results of runs: metrics, times, charts, search."""
