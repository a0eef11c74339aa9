"""Texts and tokens."""
