"""Escaped ids round-trip, whatever they contain, and other ids are unchanged."""

import random

import pytest

from tasks.core.trec.ids import MARK, escape, unescape

ALPHABET = [
    " ",
    "\t",
    "\n",
    "\r",
    "\x0b",
    "\x0c",
    "%",
    "%00",
    "%20",
    "%25",
    "2",
    "0",
    "a",
    "/",
    "é",
    "\u3000",
    "\x85",
    "\x00",
    "\U0001f600",
]


@pytest.mark.parametrize("seed", range(5))
def test_any_id_round_trips(seed: int) -> None:
    rng = random.Random(seed)
    names_by_field: dict[str, str] = {}
    for _ in range(4000):
        name = "".join(rng.choices(ALPHABET, k=rng.randint(1, 6)))
        field = escape(name)
        assert unescape(field) == name
        assert field.split() == [field] or not set(field) & set(" \t\n\r\x0b\x0c"), "no ASCII white space is left"
        assert names_by_field.setdefault(field, name) == name, "no two ids are written the same way"


@pytest.mark.parametrize("name", ["d1", "a%20b", "https://en.wikipedia.org/wiki/A%20B", "100%", "%", "%0", "é\u3000", "x%00"])
def test_ids_without_white_space_are_unchanged(name: str) -> None:
    assert escape(name) == name


@pytest.mark.parametrize(
    ("name", "field"),
    [("doc 1", "%00doc%201"), ("a%20 b", "%00a%2520%20b"), ("%00x", f"{MARK}%2500x"), (" ", "%00%20"), ("é ü", "%00é%20ü")],
)
def test_escaped_form_of_an_id(name: str, field: str) -> None:
    assert escape(name) == field
