"""Parameters of tokenize, in core because stage pseudo encodes with the same."""

from tasks.core.tokens.params import Tokenize

__all__ = ["Tokenize"]
