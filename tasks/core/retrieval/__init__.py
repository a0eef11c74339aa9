"""Vectors on disk, and search in them."""
