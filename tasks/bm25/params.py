"""Parameters of bm25, in core because stage pseudo searches with the same."""

from tasks.core.lexical.params import BM25

__all__ = ["BM25"]
