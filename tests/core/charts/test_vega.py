"""Specifications of charts: fields keep their values, whatever names the systems have."""

import pytest

from tasks.core.charts.vega import Interval, Line, Point, Span, intervals, lines, spans


def test_notes_of_systems_that_are_named_like_a_field_are_told_beside_it() -> None:
    names = ("low", "high", "x", "y", "query", "name", "value", "kind", "text", "unit")
    notes = {name: f"of {name}" for name in names}
    spec = intervals([Interval("one", 0.5, 0.25, 0.75, "best", notes), Interval("two", 0.5, None, None)], "AP")
    first, second = spec["data"]["values"]
    fields = {"name": "one", "value": 0.5, "low": 0.25, "high": 0.75, "kind": "best", "text": "0.5000", "unit": "0.2500 to 0.7500"}
    assert first.items() >= fields.items() and not set(second) - set(fields)
    tooltips = {tip["title"]: first[tip["field"]] for tip in spec["layer"][-1]["encoding"]["tooltip"][3:]}
    assert tooltips == notes


@pytest.mark.parametrize(
    ("seconds", "ticks"),
    [
        (0, [0]),
        (7.5, [0, 1, 2, 3, 4, 5, 6, 7]),
        (350, [0, 60, 120, 180, 240, 300]),
        (5400, [0, 1800, 3600, 5400]),
        (86400 * 20, [0, 259200, 518400, 777600, 1036800, 1296000, 1555200]),
    ],
)
def test_ticks_of_a_time_are_whole_seconds_minutes_or_hours(seconds: float, ticks: list[int]) -> None:
    spec = spans([Span("train", 0, seconds / 2, "train", "ran"), Span("encode", seconds / 2, seconds, "encode", "ran", 0)])
    assert [layer["encoding"]["x"]["axis"]["values"] for layer in spec["layer"]] == [ticks, ticks]


def test_rows_without_an_interval_or_a_wait_keep_their_places() -> None:
    rows = [Interval("zero", 0.5, None, None), Interval("one", 0.5, 0.25, 0.75), Interval("two", 0.5, None, None)]
    bars = [Span("base", 0, 1, "base", "ran"), Span("train", 2, 3, "train", "ran", 1), Span("base", 4, 5, "base", "ran")]
    for spec, names in ((intervals(rows, "AP"), ["zero", "one", "two"]), (spans(bars), ["base", "train"])):
        assert [layer["encoding"]["y"]["sort"] for layer in spec["layer"]] == [names, names]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.0, 1.0], 4),
        ([0.5, 0.5], 4),
        ([0.81234, 0.81236], 6),
        ([9.9999, 10.0], 7),
        ([-1e-9, 1e-9], 4),
        ([1e6, 1e6 + 1e-9], 15),
        ([], 4),
    ],
)
def test_an_axis_has_the_digits_that_tell_its_ticks_apart(values: list[float], expected: int) -> None:
    line = Line("a", [Point(step, value) for step, value in enumerate(values)])
    y_axis = lines([line], "step", "AP")["layer"][0]["encoding"]["y"]
    assert y_axis["axis"] == {"format": f".{expected}~g"}


@pytest.mark.parametrize(("values", "ticks"), [([0, 2], [0, 1, 2]), ([3, 3.0], [3]), ([0, 6], None), ([0, 0.5, 2], None), ([], [0])])
def test_few_whole_numbers_have_ticks_at_whole_numbers(values: list[float], ticks: list[int] | None) -> None:
    across = lines([Line("a", [Point(value, 1.0) for value in values])], "step", "AP")["layer"][0]["encoding"]["x"]
    assert across.get("axis") == (None if ticks is None else {"values": ticks})
