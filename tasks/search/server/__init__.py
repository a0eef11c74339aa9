"""The search server: a model that was exported answers queries over HTTP, and is replaced while it does. `python -m tasks.search.server`."""
