"""BM25: the index, its search, and its parameters."""
