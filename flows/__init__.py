"""The outside: graph, pipeline, sharing and the command line. Imports `tasks.core` at most."""
