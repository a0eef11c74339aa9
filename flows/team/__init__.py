"""What a team shares: remotes, transfers, lineage, garbage collection."""
