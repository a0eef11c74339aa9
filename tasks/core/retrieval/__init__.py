"""Encoding and search."""
