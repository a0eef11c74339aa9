"""The command line: one module per group of commands, and `main`, which puts them together."""
