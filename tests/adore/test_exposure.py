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

    def watch_loss(queries: Any, lists: Any, corpus: Any, *rest: Any) -> Any:
        for rows, grades in zip(lists.rows.tolist(), lists.grades.tolist(), strict=True):
            for row, grade in zip(rows, grades, strict=True):
                if row >= 0:
                    trained[-1][POSITIVE if grade else HARD].add(int(corpus.owners[row]))
        return loss(queries, lists, corpus, *rest)

    monkeypatch.setattr(step, "cached_backward", watch_backward)
    monkeypatch.setattr(step, "list_loss", watch_loss)
    arguments = [*small.elsewhere("adore@tower", "again"), "--negatives", "data/negatives/bm25"]
    result = small.stage("adore@tower", *arguments)
    assert result.status == 0, result
    paths = {name: small.folder / f"data/{name}" for name in ("tokens", "corpus")} | {"negatives": small.folder / "data/negatives/bm25"}
    replay = exposure.replay(paths, validate(Adore, values, "adore"), tmp_path)
    replayed = [{role: set(ordinals.tolist()) for role, ordinals in roles.items()} for _, roles in replay.steps]
    assert len(replayed) == len(trained) == replay.total == 3
    for replayed_step, trained_step in zip(replayed, trained, strict=True):
        assert replayed_step[QUERY] == trained_step[QUERY]
        assert replayed_step[POSITIVE] == trained_step[POSITIVE], "one a query: retrieved, or appended"
        if lists == "retrieved":
            assert replayed_step[HARD] == set()
            assert trained_step[HARD] <= set(replay.beside[SEARCHED].tolist())
        else:
            assert replayed_step[HARD] == trained_step[HARD]
    assert (SEARCHED in replay.beside) == (lists == "retrieved")


def test_a_query_tower_as_it_is_was_trained_on_nothing(small: Any, tmp_path: Path) -> None:
    """As retraining makes it of a champion with an index of its own."""
    paths = {name: small.folder / f"data/{name}" for name in ("tokens", "corpus")}
    given = {"round": "warmup", "negatives": "none", "steps": 0, "index": "PQ2", "quantizer": "given", "replay": 0.5}
    replay = exposure.replay(paths, validate(Adore, given, "adore"), tmp_path)
    assert (replay.total, list(replay.steps), replay.beside) == (0, [], {})
