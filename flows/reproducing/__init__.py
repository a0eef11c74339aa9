"""Revisions run again, and compared with what they recorded."""
