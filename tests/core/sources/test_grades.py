"""Grades, wrong ones, and headings of their column."""

import pytest

from tasks.core.sources.grades import is_grade, is_heading


@pytest.mark.parametrize(
    ("cell", "grade", "heading"),
    [
        ("1", True, False),
        (" -1\r", True, False),
        ("+2", True, False),
        ("1000", True, False),
        ("1001", False, False),
        ("-300000000", True, False),
        ("1.0", False, False),
        ("1e0", False, False),
        ("nan", False, False),
        ("1234567890", False, False),
        ("score", False, True),
        ("1,0", False, True),
        ("", False, True),
    ],
)
def test_a_cell_is_a_grade_a_wrong_grade_or_a_heading(cell: str, grade: bool, heading: bool) -> None:
    assert (is_grade(cell), is_heading(cell)) == (grade, heading)
