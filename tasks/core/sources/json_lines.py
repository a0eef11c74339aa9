"""JSON lines without repeated keys in an object: of two, json keeps the last and says nothing."""

import json
from collections.abc import Sequence
from typing import Any


class Repeated(ValueError):
    """A key occurs twice in one object."""

    def __init__(self, key: str) -> None:
        super().__init__(f"found the key {key!r} twice in an object")


def parse_line(line: str) -> Any:
    """The value of a line of JSON; Repeated for a key that occurs twice in an object, and json's own errors."""
    return _DECODER.decode(line)


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        keys = [key for key, _ in pairs]
        raise Repeated(next(key for place, key in enumerate(keys) if key in keys[:place]))
    return value


_DECODER = json.JSONDecoder(object_pairs_hook=_object)  # json.loads would make one for each line, which takes as long as the line
