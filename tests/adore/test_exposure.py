"""The replay of a query-side training equals the lists that an instrumented run of the stage put into its loss."""

from pathlib import Path
from typing import Any

import pytest

from tasks.adore import exposure, step
from tasks.adore.params import Adore
from tasks.core.params.sections import validate
from tasks.core.training.exposure import HARD, POSITIVE, QUERY, SEARCHED

COMMON = {"round": "warmup", "negatives": "none", "steps": 3, "batch_queries": 16, "depth": 9, "precision": "fp32", "loss": "ranknet"}


@pytest.mark.parametrize("lists", ["retrieved", "random", "given"])
def test_replay_equals_an_instrumented_run(small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lists: str) -> None:
    values = COMMON | {"lists": lists, "negatives": "bm25" if lists == "given" else "none"}
    small.set("adore.tower", values)
    trained: list[dict[str, set[int]]] = []
    backward, loss = step.cached_backward, step.list_loss

    def watch_backward(sides: Any, *rest: Any) -> Any:
        trained.append({QUERY: set(sides[0].rows.tolist()), POSITIVE: set(), HARD: set()})
        return backward(sides, *rest)

    def watch_loss(queries: Any, used: Any, corpus: Any, *rest: Any) -> Any:
        for rows, grades in zip(used.rows.tolist(), used.grades.tolist(), strict=True):
            for row, grade in zip(rows, grades, strict=True):
                if row >= 0:
                    trained[-1][POSITIVE if grade else HARD].add(int(corpus.owners[row]))
        return loss(queries, used, corpus, *rest)

    monkeypatch.setattr(step, "cached_backward", watch_backward)
    monkeypatch.setattr(step, "list_loss", watch_loss)
    elsewhere = [*small.elsewhere("adore@tower", "again"), "--negatives", "data/negatives/bm25"]
    done = small.stage("adore@tower", *elsewhere)
    assert done.status == 0, done
    paths = {name: small.folder / f"data/{name}" for name in ("tokens", "corpus")} | {"negatives": small.folder / "data/negatives/bm25"}
    found = exposure.replay(paths, validate(Adore, values, "adore"), tmp_path)
    replayed = [{role: set(ordinals.tolist()) for role, ordinals in roles.items()} for _, roles in found.steps]
    assert len(replayed) == len(trained) == found.total == 3
    for told, was in zip(replayed, trained, strict=True):
        assert told[QUERY] == was[QUERY]
        assert told[POSITIVE] == was[POSITIVE], "one a query: retrieved, or appended"
        if lists == "retrieved":
            assert told[HARD] == set()
            assert was[HARD] <= set(found.beside[SEARCHED].tolist())
        else:
            assert told[HARD] == was[HARD]
    assert (SEARCHED in found.beside) == (lists == "retrieved")
