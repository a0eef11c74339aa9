"""The search server: an exported model answers queries over HTTP, and may be replaced meanwhile. `python -m tasks.search.server`."""
