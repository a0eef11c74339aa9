"""Parameters as people read them."""

from collections.abc import Mapping
from typing import Any


def effective(section: Mapping[str, Any]) -> dict[str, Any]:
    """A stage's parameters without epochs where steps decide (docs/parameters.md)."""
    return {key: value for key, value in section.items() if key != "epochs" or section.get("steps") is None}
