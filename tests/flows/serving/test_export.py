"""What an export holds, and that it serves what the workspace does."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows.serving.export import export
from tasks.core.models.export import read_record
from tasks.search.__main__ import arguments, open_systems
from tasks.search.server.served import load

QUERIES = ("German politician", "a river in the north", "1925 novel", "zzz", "city in Japan")


def searched(model: str, query: str, k: int) -> list[tuple[str, float]]:
    """What `retemper search` finds in the workspace."""
    systems = ["--model", "tower", "data/encoders/tower", "data/indexes/warmup", "--model", "warmup", "data/encoders/warmup", "data/indexes/warmup"]
    systems += ["--lexical", "data/bm25", "--fusion", "hybrid", "data/runs/hybrid/fusion.json"]
    given = [*systems, "--documents", "data/corpus/documents.parquet", "--tokens", "data/tokens", "--query", query]
    found = open_systems(arguments().parse_args(given)).search(query, model, k)
    return list(zip(found.documents, map(float, found.scores), strict=True))


@pytest.mark.parametrize("model", ["hybrid", "tower", "warmup"])
def test_an_export_answers_as_the_workspace_does(model: str, crown: Callable[[str], Any], project: Path, tmp_path: Path) -> None:
    crown(model)
    export(project, tmp_path / "out", documents=True)
    served = load(tmp_path / "out")
    for k in (1, 10):
        lists = served.search(QUERIES, k)
        for query, found in zip(QUERIES, lists, strict=True):
            assert list(zip(found.documents, map(float, found.scores), strict=True)) == searched(model, query, k), "to the last bit"
    assert read_record(tmp_path / "out").model == model
