"""params.yaml and what is outside: checks, edits, sources."""
