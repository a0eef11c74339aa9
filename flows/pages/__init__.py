"""Pages of a run with this machine's measurements."""
