"""JSON lines, in which no key may occur twice."""

import pytest

from tasks.core.sources.json_lines import Repeated, parse_line


def test_values_are_those_of_json() -> None:
    assert parse_line('{"a": {"b": [1, {"c": null}]}, "b": "x"}') == {"a": {"b": [1, {"c": None}]}, "b": "x"}
    assert parse_line("[1]") == [1]


@pytest.mark.parametrize(("line", "key"), [('{"a": 1, "b": 2, "a": 1}', "a"), ('[{"x": {"": 1, "": 2}}]', "")])
def test_a_key_that_comes_twice(line: str, key: str) -> None:
    with pytest.raises(Repeated, match=f"found the key '{key}' twice"):
        parse_line(line)
