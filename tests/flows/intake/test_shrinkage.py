"""A data set that has lost much since the champion was trained is refused; the champion's own data may be nowhere any more."""

import re
from pathlib import Path
from typing import Any

import pytest

from flows.champions import champion
from flows.champions.champion import Champion
from flows.champions.outs import Lost
from flows.intake import shrinkage
from tasks.core.errors import UserError
from tasks.core.files import write_json

NOW = Champion(2, "star", "promoted", "then")


def stats(documents: int, train: int, dev: int, **more: int) -> dict[str, Any]:
    splits = {"train": train, "dev": dev, **more}
    return {"documents": {"count": documents}, "splits": {split: {"queries": count} for split, count in splits.items()}}


def refuse(current: dict[str, Any], most: float, monkeypatch: pytest.MonkeyPatch, *, kept_out: tuple[str, ...] = ()) -> None:
    """Against a champion of 1,000 documents, 200 training queries, and no dev."""

    def get_out(_project: Path, _commit: str, path: str, out: Path) -> None:
        assert path == "data/corpus/stats.json"
        write_json(out, stats(1000, 200, 0))

    monkeypatch.setattr(champion, "get_out", get_out)
    write_json(shrinkage.STATS, current)
    shrinkage.refuse(Path(), NOW, most, kept_out=kept_out, warn=pytest.fail)


@pytest.mark.parametrize(
    ("current", "most"),
    [
        (stats(1000, 200, 0), 0.0),
        (stats(700, 140, 5), 0.3),
        (stats(2000, 300, 50, test=7), 0.0),
        (stats(1, 1, 0), 1.0),
    ],
    ids=["as it was", "just enough", "more", "any loss"],
)
def test_what_has_lost_no_more_than_it_may_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, current: dict[str, Any], most: float
) -> None:
    monkeypatch.chdir(tmp_path)
    refuse(current, most, monkeypatch)


@pytest.mark.parametrize(
    ("current", "most", "loss"),
    [
        (stats(699, 200, 0), 0.3, "found 699 documents, champion/2 had 1,000; expected at least 70% of them"),
        (stats(1000, 139, 0), 0.3, "found 139 train queries, champion/2 had 200; expected at least 70% of them"),
        (stats(999, 200, 0), 0.0, "found 999 documents, champion/2 had 1,000; expected at least 100% of them"),
    ],
    ids=["documents", "queries", "none may be lost"],
)
def test_what_has_lost_more_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, current: dict[str, Any], most: float, loss: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as refusal:
        refuse(current, most, monkeypatch)
    assert str(refusal.value) == (
        f"data set: {loss} (intake.shrink of retraining.yaml); put back what is missing, or raise intake.shrink (null: any loss)"
    )


def test_batches_that_are_kept_out_are_named_beside_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The advice to allow the loss, alone, would drop them all. The loss may be of something else, such as a truncated source."""
    monkeypatch.chdir(tmp_path)
    remedy = "; put back what is missing (kept out now: batch 1, 2; see retemper intake), or raise intake.shrink (null: any loss)"
    with pytest.raises(UserError, match=f"{re.escape(remedy)}$"):
        refuse(stats(1, 1, 1), 0.3, monkeypatch, kept_out=("1", "2"))


def test_a_champion_whose_data_are_gone_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def get_out(*_: Any, **__: Any) -> None:
        raise Lost("data/corpus: neither in the cache nor on the remote")

    monkeypatch.setattr(champion, "get_out", get_out)
    warnings: list[str] = []
    shrinkage.refuse(tmp_path, NOW, 0.3, warn=warnings.append)
    assert warnings == [
        "cannot check whether the data set has lost records since champion/2: data/corpus: neither in the cache nor on the remote"
    ]


def test_a_remote_that_does_not_answer_is_no_reason_not_to_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A retraining went on over a data set that might have lost half of its records."""

    def get_out(*_: Any, **__: Any) -> None:
        raise UserError("data/corpus: not in the cache, and no remote can be asked for it (down)")

    monkeypatch.setattr(champion, "get_out", get_out)
    with pytest.raises(UserError, match=r"^data/corpus: .*no remote can be asked"):
        shrinkage.refuse(tmp_path, NOW, 0.3, warn=pytest.fail)
