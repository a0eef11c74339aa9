"""The command line: one folder per group of commands, one module per command, and `main`, which puts them together."""
