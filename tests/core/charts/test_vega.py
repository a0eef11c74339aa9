"""Specifications of charts: fields keep their values, whatever is drawn is called."""

from tasks.core.charts.vega import Interval, intervals


def test_notes_of_systems_that_are_named_like_a_field_are_told_beside_it() -> None:
    names = ("low", "high", "x", "y", "query", "name", "value", "kind", "text", "unit")
    notes = {name: f"of {name}" for name in names}
    spec = intervals([Interval("one", 0.5, 0.25, 0.75, "best", notes), Interval("two", 0.5, None, None)], "AP")
    first, second = spec["data"]["values"]
    own = {"name": "one", "value": 0.5, "low": 0.25, "high": 0.75, "kind": "best", "text": "0.5000", "unit": "0.2500 to 0.7500"}
    assert first.items() >= own.items() and not set(second) - set(own)
    told = {tip["title"]: first[tip["field"]] for tip in spec["layer"][-1]["encoding"]["tooltip"][3:]}
    assert told == notes
