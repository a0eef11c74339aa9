"""The search server: an exported model answers queries over HTTP, and may be replaced while it runs. `python -m tasks.search.server`."""
