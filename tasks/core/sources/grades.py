"""Grades as qrels files have them."""

import re

GRADE = re.compile(r"[+-]?[0-9]{1,9}")


def is_grade(cell: str) -> bool:
    """Whether a cell is a whole number."""
    return bool(GRADE.fullmatch(cell.strip()))


def is_heading(cell: str) -> bool:
    """Whether the third cell of a file's first line heads a column, and is no number: 1.0 is a wrong grade."""
    try:
        float(cell)
    except ValueError:
        return True
    return False
