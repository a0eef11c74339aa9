"""What is shared: remotes, transfers, lineage, garbage collection."""
