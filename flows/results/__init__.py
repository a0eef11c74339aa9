"""What runs leave to look at: metrics, times, charts, search."""
