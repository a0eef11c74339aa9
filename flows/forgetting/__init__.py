"""Remove a record everywhere: from sources, caches, results, and remotes."""
