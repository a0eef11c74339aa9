"""What is computed, kept and shared: DVC, its cache, remotes, and the record of how each artifact was made."""
