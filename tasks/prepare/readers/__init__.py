"""Readers of the kinds of sources: each gives documents, queries, and qrels as streams (tasks.prepare.source)."""
