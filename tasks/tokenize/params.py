"""Parameters of tokenize, in core because stage pseudo encodes with the same."""

from tasks.core.text.token_params import Tokenize

__all__ = ["Tokenize"]
