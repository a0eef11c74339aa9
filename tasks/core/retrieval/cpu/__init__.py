"""Exact search on a CPU: of vectors that are read once, and of vectors that are kept for many searches."""
