"""Serving the champion: exported with all that a server needs, followed while it is served, pushed to a hub."""
