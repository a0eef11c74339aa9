"""The replay of a pre-training equals the chunks that an instrumented run of the stage read."""

from typing import Any

import pytest

from tasks.core.params.sections import load
from tasks.core.tokens.chunks import Chunks
from tasks.core.training.exposure import TEXT
from tasks.core.training.loop import Steps
from tasks.pretrain import exposure
from tasks.pretrain import work as entry
from tasks.pretrain.params import Pretrain


@pytest.mark.parametrize("objective", ["costa", "ict"])
def test_replay_equals_an_instrumented_run(small: Any, monkeypatch: pytest.MonkeyPatch, objective: str) -> None:
    small.set("chunk.texts", "corpus")
    assert small.stage("chunk", "--texts", "data/corpus", "--out", "again/chunks").status == 0
    small.set("pretrain.costa", {"init": "base", "objective": objective, "steps": 7, "batch_texts": 32, "paragraph": [32, 48]})
    read: list[set[int]] = []
    row, make = Chunks.row, entry.make_step

    def record_row(self: Chunks, number: int) -> Any:
        read[-1].add(int(self.tokens.owners[number]))
        return row(self, number)

    def make_recorded_step(*arguments: Any) -> Any:
        backward = make(*arguments)

        def step(number: int) -> Any:
            read.append(set())
            return backward(number)

        return Steps.undrawn(step)

    monkeypatch.setattr(Chunks, "row", record_row)
    monkeypatch.setattr(entry, "make_step", make_recorded_step)
    result = small.stage("pretrain@costa", *small.elsewhere("pretrain@costa", "again"), "--chunks", "again/chunks")
    assert result.status == 0, result
    params = load(Pretrain, "pretrain.costa", small.folder / "params.yaml")
    replay = exposure.replay({"chunks": small.folder / "again/chunks"}, params, "pretrain.costa")
    assert [set(roles[TEXT].tolist()) for _, roles in replay.steps] == read
    assert len(read) == 7 and len(set(map(frozenset, read))) > 2
