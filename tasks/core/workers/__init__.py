"""A stage on several workers: on this machine, or on a Ray cluster (`engine`, `workers`, `restarts` of runtime.yaml)."""
