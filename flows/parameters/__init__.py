"""params.yaml and the sources outside the project: checks, edits, digests."""
