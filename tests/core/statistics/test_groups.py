"""Groups of queries, by cases worked out by hand."""

import random

import pytest

from tasks.core.statistics.groups import Dimension, by_column, by_range, by_value, question_word


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("Who wrote it?", "who"),
        ("In whose house was the show?", "who"),
        ("the year when it began, and why", "when"),
        ("Is it open", "yes or no"),
        ("was", "yes or no"),
        ("issue of bonds", "none"),
        ("showhow", "none"),
        ("...", "none"),
    ],
)
def test_question_word(text: str, word: str) -> None:
    assert question_word(text) == word


def test_ranges_hold_about_as_many_each_and_equal_values_stay_together() -> None:
    rng = random.Random(0)
    values = [rng.gauss(5, 2) for _ in range(1000)]
    labels, order = by_range(values, 4)
    assert [labels.count(name) for name in order] == [250] * 4
    highest = [max(value for value, label in zip(values, labels, strict=True) if label == name) for name in order]
    lowest = [min(value for value, label in zip(values, labels, strict=True) if label == name) for name in order]
    assert highest == sorted(highest)
    assert all(high < low for high, low in zip(highest[:-1], lowest[1:], strict=True))
    assert by_range([0.12345, 1234567, 2.5, 12], 4).order == ["0.123", "2.5", "12", "1234567"]
    assert by_range([3, 3, 3, 3, 4, 9], 3) == Dimension(["3", "3", "3", "3", "4 to 9", "4 to 9"], ["3", "4 to 9"])


def test_columns() -> None:
    assert by_column(["a", "", "b", "a"], 2) == by_value(["a", "(none)", "b", "a"])
    assert by_column([str(n) for n in range(20)], 2) == by_range(list(range(20)), 2)
    assert by_column([f"name {n}" for n in range(20)], 2) is None, "a name for each query groups nothing"
    assert by_value(["x", "y", "y"]).order == ["y", "x"]
    assert by_value(["b", "a"]).order == ["a", "b"]
    twelve, thirteen = ([str(number) for number in range(count)] for count in (12, 13))
    assert by_column(twelve, 2) == by_value(twelve) and by_column(thirteen, 2) == by_range(list(range(13)), 2)


@pytest.mark.parametrize(("first", "distance"), [(1.7e9 + 0.5, 60.0), (52.5201, 0.0003), (-1e-9, 1e-16), (1.0, 2.0**-52)])
def test_ranges_of_numbers_with_the_same_short_name_stay_apart(first: float, distance: float) -> None:
    """Times in seconds, latitudes, and doubles that are next to each other."""
    values = [first + number * distance for number in range(40)]
    labels, order = by_range(values, 4)
    assert len(set(order)) == 4
    assert labels == [order[n // 10] for n in range(40)]


def test_numbers_that_are_missing_or_infinite_are_a_group_of_their_own() -> None:
    numbers = [float(number) for number in range(20)]
    labels, order = by_range(numbers, 2)
    dimension = by_column(["", *map(str, numbers), "NaN", "Infinity", "-inf", ""], 2)
    assert dimension == Dimension(["(none)", *labels, *["(none)"] * 4], [*order, "(none)"])
    missing = ["", "nan", "NaN", "NAN", "+nan", "-nan", "inf", "Inf", "INF", "+inf", "-inf", "Infinity", "-Infinity"]
    assert by_column(missing, 2) is None, "nothing to group by"
