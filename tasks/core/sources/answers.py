"""Answers of a query, the field that BEIR's form lacks (OpenQA)."""

from typing import TypeGuard


def is_answers(value: object) -> TypeGuard[list[str]]:
    """Whether a value is a list of strings."""
    return isinstance(value, list) and all(isinstance(answer, str) for answer in value)
