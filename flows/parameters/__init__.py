"""params.yaml and what stands outside: checks, edits, sources."""
