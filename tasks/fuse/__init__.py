"""Stage `fuse`: two systems' runs as one."""
