"""What runs are doing now: recorded by each run, shown by `retemper watch`."""
