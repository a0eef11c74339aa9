"""Weights of qrels, and the heading of those in BEIR form."""

from collections.abc import Sequence

WEIGHTS = 1e-30, 1e30  # weights are kept in float32, where a smaller one would be 0 and a larger one infinite
EXPECTED_WEIGHT = "a number above 0 (1e-30 to 1e30)"


def weight_of(cell: str) -> float | None:
    """How much training counts a pair: a number above 0 that float32 holds; None for anything else."""
    try:
        weight = float(cell)
    except ValueError:
        return None
    return weight if WEIGHTS[0] <= weight <= WEIGHTS[1] else None


def swaps_columns(cells: Sequence[str]) -> bool:
    """Whether a heading names the document before the query: in BEIR form, columns are read by their place."""
    names = [cell.strip().lower().replace("_", "-") for cell in cells[:2]]
    return names[:1] == ["corpus-id"] or names[1:] == ["query-id"]
