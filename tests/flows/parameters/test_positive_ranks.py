"""A round that imitates a ranking: what it needs of its negatives."""

from pathlib import Path
from typing import Any

import pytest

from flows.parameters.checks import check
from tasks.core.errors import UserError
from tasks.core.params.sections import read_yaml

MINES: dict[str, dict[str, float]] = {"whole": {}, "skips": {"skip": 2}, "guarded": {"relative_margin": 0.05}}
LONE = {"init": "base", "negatives": "bm25"}


@pytest.mark.parametrize(
    ("entry", "line"),
    [
        ({"positive_ranks": 3}, "window [1, 200]: starts within positive_ranks (3); expected a later first rank"),
        (
            {"negatives": "random", "positive_ranks": 3, "window": [4, 9]},
            "rounds.warmup.negatives: found 'random', expected bm25 or a mine without skip and margins (bm25, warmup, whole), as",
        ),
        (
            {"hard_negatives": 0, "positive_ranks": 101},
            "rounds.warmup.positive_ranks: found 101, expected at most bm25.depth, which is 100",
        ),
        *(
            (
                {"negatives": name, "positive_ranks": 3, "window": [4, 9]},
                f"rounds.warmup.negatives: found '{name}', expected bm25 or a mine",
            )
            for name in ("judged", "skips", "guarded")
        ),
        ({"negatives": "whole", "positive_ranks": 3, "window": [4, 9]}, ""),
        ({"hard_negatives": 0, "positive_ranks": 100}, ""),
        ({"positive_ranks": 10, "window": [46, 50]}, ""),
    ],
)
def test_what_a_round_that_imitates_needs(checkout: Path, entry: dict[str, Any], line: str) -> None:
    sections = read_yaml(checkout / "params.yaml")
    sections["rounds"]["warmup"] = LONE | entry
    sections["rerankers"] = {"crossed": {"source": "package:cognition/model", "negatives": "bm25"}}
    sections["teacher"] = {"judged": {"negatives": "bm25", "reranker": "crossed"}}
    sections["rounds"] |= {name: {"init": "base", "negatives": "none", "steps": 0} for name in MINES}
    sections["mine"] |= {name: {"search": "embeddings"} | options for name, options in MINES.items()}
    if not line:
        check(sections)
        return
    with pytest.raises(UserError) as refusal:
        check(sections)
    assert line in str(refusal.value)
