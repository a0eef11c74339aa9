"""Curves and drawings."""
