"""No number of params.yaml may be so large that a library fails on it."""

from collections.abc import Iterator
from typing import Any

from tasks.params import Parameters

TAKEN = ("batch_tokens",)  # compared with, and nothing else


def unbounded_integers(schema: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Whole numbers of a JSON schema that have no largest value."""
    if isinstance(schema, dict):
        if schema.get("type") == "integer" and "maximum" not in schema:
            yield ".".join(path)
        for key, value in schema.items():
            yield from unbounded_integers(value, (*path, key))
    elif isinstance(schema, list):
        for number, value in enumerate(schema):
            yield from unbounded_integers(value, (*path, str(number)))


def test_every_whole_number_has_a_largest_value() -> None:
    assert [key for key in unbounded_integers(Parameters.model_json_schema()) if not any(name in key for name in TAKEN)] == []
