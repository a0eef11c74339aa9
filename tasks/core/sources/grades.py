"""Grades and weights as qrels files have them."""

import re
from collections.abc import Sequence

GRADE = re.compile(r"[+-]?[0-9]{1,9}")
MOST = 1000  # the highest grade: trec_eval takes memory by the highest one, and 2^grade is no float from 1,024 on
EXPECTED = f"an integer up to {MOST:,} (0 not relevant, 1 or more relevant)"

WEIGHTS = 1e-30, 1e30  # weights are kept in float32, where a smaller one would be 0 and a larger one infinite
EXPECTED_WEIGHT = "a number above 0 (1e-30 to 1e30)"


def is_grade(cell: str) -> bool:
    """Whether a cell is a whole number of at most MOST."""
    return bool(GRADE.fullmatch(cell.strip())) and int(cell) <= MOST


def weight_of(cell: str) -> float | None:
    """How much training counts a pair: a number above 0 that float32 holds; None for anything else."""
    try:
        weight = float(cell)
    except ValueError:
        return None
    return weight if WEIGHTS[0] <= weight <= WEIGHTS[1] else None


def swaps_columns(cells: Sequence[str]) -> bool:
    """Whether a heading names the document before the query: in BEIR form, columns are read by their place."""
    names = [cell.strip().lower().replace("_", "-") for cell in cells[:2]]
    return names[:1] == ["corpus-id"] or names[1:] == ["query-id"]


def is_heading(cell: str) -> bool:
    """Whether the third cell of a file's first line heads a column, and is no number: 1.0 is a wrong grade."""
    try:
        float(cell)
    except ValueError:
        return True
    return False
