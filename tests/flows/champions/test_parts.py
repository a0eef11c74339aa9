"""Which models of a dvc.lock can be served."""

from pathlib import Path

import pytest

from flows.champions import champion, measurement
from flows.champions.parts import NotServable
from flows.repository.git import git

LOCK = """
schema: '2.0'
stages:
  base: {outs: [{path: data/encoders/base, md5: b}]}
  encoders@costa: {outs: [{path: data/encoders/costa, md5: c}]}
  train@init: {outs: [{path: data/encoders/init, md5: e}]}
"""
GRAPH = (
    "stages: {base: {cmd: x}, encoders: {foreach: '${encoders}', do: {cmd: x}}, train: {foreach: '${rounds}', do: {cmd: x}},"
    " rerank: {foreach: '${rerank}', do: {cmd: x}}}\n"
)


@pytest.fixture
def commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    git("init", "--quiet", folder=tmp_path)
    monkeypatch.chdir(tmp_path)
    Path("dvc.lock").write_text(LOCK)
    Path("dvc.yaml").write_text(GRAPH)
    Path("params.yaml").write_text("encoders: {costa: {}}\nrounds: {init: {}}\nrerank: {}\n")
    git("add", ".")
    git("commit", "--quiet", "-m", "a run")
    return git("rev-parse", "HEAD")


@pytest.mark.parametrize("model", ["base", "costa"])
def test_a_start_encoder_cannot_be_crowned(model: str, commit: str) -> None:
    """It has no index and was never measured, so no server could load it, and no model be compared with it."""
    expected = rf"^dvc\.lock of commit {commit[:12]}: {model} is only a start encoder without an index, and .*; expected one of init$"
    with pytest.raises(NotServable, match=expected):
        champion.choose(Path(), model)
    assert champion.read_champions(Path()) == []


def test_a_start_encoder_crowned_by_an_earlier_version_stops_a_retraining_before_it_trains(commit: str) -> None:
    crowned = champion.Champion(1, "base", "set", "now", digests={"encoder": "b"}, settings={"text": {}}, commit=commit)
    with pytest.raises(NotServable, match=r"^champion/1: base .*; crown another model: retemper champion set MODEL$"):
        measurement.warn_if_not_comparable(Path(), crowned, "do this", warn=pytest.fail)
