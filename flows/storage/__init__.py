"""Storage and sharing of artifacts: DVC, its cache, remotes, and records of how each artifact was made."""
