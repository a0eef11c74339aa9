"""Which models of a dvc.lock can be served."""

from pathlib import Path

import pytest

from flows.champions import champion, measurement
from flows.champions.parts import NotServable, parts_of
from flows.repository.git import git
from flows.repository.lock import parse_lock

LOCK = """
schema: '2.0'
stages:
  base: {outs: [{path: data/encoders/base, md5: b}]}
  encoders@costa: {outs: [{path: data/encoders/costa, md5: c}]}
  pretrain@longer: {outs: [{path: data/encoders/longer, md5: d}]}
  train@init: {outs: [{path: data/encoders/init, md5: e}]}
  index@init: {outs: [{path: data/indexes/init, md5: i}]}
  train@star: {outs: [{path: data/encoders/star, md5: s}]}
"""
GRAPH = (
    "stages: {base: {cmd: x}, encoders: {foreach: '${encoders}', do: {cmd: x}}, pretrain: {foreach: '${pretrain}', do: {cmd: x}},"
    " train: {foreach: '${rounds}', do: {cmd: x}}, index: {foreach: '${rounds}', do: {cmd: x}}}\n"
)


@pytest.fixture
def commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    git("init", "--quiet", folder=tmp_path)
    monkeypatch.chdir(tmp_path)
    Path("dvc.lock").write_text(LOCK)
    Path("dvc.yaml").write_text(GRAPH)
    Path("params.yaml").write_text("encoders: {costa: {}}\npretrain: {longer: {}}\nrounds: {init: {}, star: {}}\n")
    git("add", ".")
    git("commit", "--quiet", "-m", "a run")
    return git("rev-parse", "HEAD")


@pytest.mark.parametrize("model", ["base", "costa", "longer", "star"])
def test_an_encoder_without_an_index_cannot_be_crowned(model: str, commit: str) -> None:
    """No server could load it: a start encoder, a pre-training, or a round that was only trained."""
    expected = rf"^dvc\.lock of commit {commit[:12]}: {model} has no index, and cannot be served; expected one of init$"
    with pytest.raises(NotServable, match=expected):
        champion.choose(Path(), model)
    assert champion.read_champions(Path()) == []


def test_a_model_that_was_only_trained_has_its_parts() -> None:
    """`retemper why` measures it in another run, which makes the index."""
    found = parts_of(parse_lock(LOCK, ""), "star", {}.__getitem__, where="dvc.lock", indexed=False)
    assert found.paths == {"encoder": "data/encoders/star"}


def test_a_start_encoder_crowned_by_an_earlier_version_stops_a_retraining_before_it_trains(commit: str) -> None:
    crowned = champion.Champion(1, "base", "set", "now", digests={"encoder": "b"}, settings={"text": {}}, commit=commit)
    with pytest.raises(NotServable, match=r"^champion/1: base .*; crown another model: retemper champion set MODEL$"):
        champion.parts_at(Path(), crowned)
    with pytest.raises(NotServable, match=r"^champion/1: base .* has no index, and cannot be served; expected one of init; do this$"):
        measurement.warn_if_not_comparable(Path(), crowned, "do this", warn=pytest.fail)
