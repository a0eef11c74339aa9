"""What runs have left to look at: metrics, times, charts, search."""
