"""Stage `fuse`: combine two systems' runs into one."""
