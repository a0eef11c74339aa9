"""Negatives are searched where known positives can be scored alike, and belong to the queries that are read."""

from typing import Any

import pytest

from flows.parameters.checks import check
from tasks.core.errors import UserError


def test_an_index_with_fast_scan_is_refused_for_negatives(full_params: dict[str, Any]) -> None:
    full_params["index"] = {"factory": "IVF64,PQ16x4fs"}
    check(full_params)  # mine.warmup searches embeddings
    full_params["mine"]["warmup"] = {"search": "indexes", "depth": 200}
    with pytest.raises(UserError, match=r"mine\.warmup\.search: found indexes, and index\.factory IVF64,PQ16x4fs, .* such as IVF4096,PQ64"):
        check(full_params)
    for factory in ("IVF64,PQ16x4", "Flat"):
        check(full_params | {"index": {"factory": factory}})


@pytest.mark.parametrize(
    ("section", "name", "entry"),
    [
        ("rounds", "warmup", {"init": "base", "negatives": "official"}),
        ("mix", "two", {"first": "bm25", "second": "official", "ratio": 0.5}),
        ("teacher", "scored", {"negatives": "official", "reranker": "small"}),
        ("rerankers", "small", {"source": "x", "steps": 5, "negatives": "official"}),
        ("adore", "tower", {"round": "warmup", "lists": "given", "negatives": "official", "loss": "ranknet"}),
        ("analyses", "seen", {"round": "warmup", "negatives": "official"}),
    ],
)
def test_negatives_of_queries_that_are_not_read_are_refused(
    full_params: dict[str, Any], section: str, name: str, entry: dict[str, Any]
) -> None:
    full_params["rerankers"] = {"small": {"source": "x"}} | (full_params.get("rerankers") or {})
    full_params[section] = {**(full_params.get(section) or {}), name: entry}
    check(full_params)
    key = f"{section}.{name}" if section == "mix" else rf"{section}\.{name}\.negatives"
    with pytest.raises(UserError, match=rf"{key}: found official, negatives of the source's own queries, but queries is pseudo"):
        check(full_params | {"queries": "pseudo"})
