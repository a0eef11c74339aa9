"""Grades as qrels files have them."""

import re

GRADE = re.compile(r"[+-]?[0-9]{1,9}")
MOST = 1000  # the highest grade: trec_eval takes memory for all up to the highest one, and 2^grade is no float from 1,024 on
EXPECTED = f"an integer up to {MOST:,} (0 not relevant, 1 or more relevant)"


def is_grade(cell: str) -> bool:
    """Whether a cell is a whole number of at most MOST."""
    return bool(GRADE.fullmatch(cell.strip())) and int(cell) <= MOST


def is_heading(cell: str) -> bool:
    """Whether the third cell of a file's first line is a column's heading, so not a number: 1.0 is an invalid grade, not a heading."""
    try:
        float(cell)
    except ValueError:
        return True
    return False
