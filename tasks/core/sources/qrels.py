"""Weights of qrels, and the heading of those in BEIR form."""

from collections.abc import Sequence

WEIGHTS = 1e-30, 1e30  # weights are kept in float32, where a smaller one would be 0 and a larger one infinite
EXPECTED_WEIGHT = "a number above 0 (1e-30 to 1e30), such as 0.5"


def weight_of(cell: str) -> float | None:
    """The weight of a pair in training: a number above 0 that float32 holds; None for anything else."""
    try:
        weight = float(cell)
    except ValueError:
        return None
    return weight if WEIGHTS[0] <= weight <= WEIGHTS[1] else None


def column_order_error(heading: Sequence[str]) -> str:
    """An error for a heading that names the document before the query, else empty: in BEIR form, columns are read by their place."""
    names = [cell.strip().lower().replace("_", "-") for cell in heading[:2]]
    if names[:1] != ["corpus-id"] and names[1:] != ["query-id"]:
        return ""
    return f"found columns {', '.join(heading)}, expected query-id, corpus-id, score in this order"
