"""Commands that start a project."""
