"""What makes up a served model, by a dvc.lock."""

from pathlib import Path

import pytest

from flows.process.display import Display
from flows.process.processes import Processes
from flows.repository.git import git
from flows.repository.lock import parse_lock
from flows.retraining import champion, history, retrain
from flows.retraining import tree as retraining_tree
from flows.retraining.champion import digests_of, outs_of, record_of
from tasks.core.stage.errors import UserError

LOCK = """
schema: '2.0'
stages:
  prepare: {{outs: [{{path: data/corpus, md5: corpus}}]}}
  index@star: {{outs: [{{path: data/indexes/star, md5: {factory}}}, {{path: data/index_metrics/star.json, md5: m}}]}}
  adore@tower:
    params: {{params.yaml: {{adore.tower: {{round: star, negatives: none{entry}}}}}}}
    outs: [{{path: data/encoders/tower, md5: weights}}, {{path: data/indexes/tower, md5: own}}]
"""


@pytest.mark.parametrize(
    ("entry", "index"),
    [("", "of_star"), (", index: Flat", "of_star"), (', index: "PQ8"', "own"), (', index: "PQ8", centroids: true', "own")],
)
def test_a_query_tower_without_an_index_is_served_by_its_rounds(entry: str, index: str) -> None:
    """So a change of index.factory alone, which remakes that, is a change of the model as it is served."""
    found = digests_of(outs_of(parse_lock(LOCK.format(factory="of_star", entry=entry), "")), "tower")
    assert found == {"encoder": "weights", "index": index, "corpus": "corpus"}
    changed = digests_of(outs_of(parse_lock(LOCK.format(factory="of_star_anew", entry=entry), "")), "tower")
    assert (changed != found) == (index == "of_star")


def test_an_empty_lock() -> None:
    assert outs_of(parse_lock("", "")) == {}


def test_a_model_whose_round_was_removed_cannot_be_crowned(tmp_path: Path) -> None:
    """DVC keeps its entry in dvc.lock, but nothing would make its index again."""
    git("init", "--quiet", folder=tmp_path)
    entry = "  train@{0}: {{outs: [{{path: data/encoders/{0}, md5: of_{0}}}]}}\n"
    (tmp_path / "dvc.lock").write_text(f"schema: '2.0'\nstages:\n{entry.format('a')}{entry.format('b')}")
    (tmp_path / "dvc.yaml").write_text("stages: {train: {foreach: '${rounds}', do: {cmd: x}}}\n")
    (tmp_path / "params.yaml").write_text("rounds: {a: {}}\n")
    git("add", ".", folder=tmp_path)
    git("commit", "--quiet", "-m", "b was removed", folder=tmp_path)
    commit = git("rev-parse", "HEAD", folder=tmp_path)
    assert record_of(tmp_path, commit, "a")["digests"] == {"encoder": "of_a"}
    with pytest.raises(UserError, match=r"has no encoder b, expected one of a$"):
        record_of(tmp_path, commit, "b")


def test_a_fusion_cannot_be_crowned(tmp_path: Path) -> None:
    git("init", "--quiet", folder=tmp_path)
    params = "params: {data/params.json: {fuse.hybrid: {first: bm25, second: a}}}"
    (tmp_path / "dvc.lock").write_text(f"schema: '2.0'\nstages:\n  fuse@hybrid: {{{params}, outs: [{{path: data/runs/hybrid, md5: x}}]}}\n")
    (tmp_path / "dvc.yaml").write_text("stages: {fuse: {foreach: '${fuse}', do: {cmd: x}}}\n")
    (tmp_path / "params.yaml").write_text("fuse: {hybrid: {}}\n")
    git("add", ".", folder=tmp_path)
    git("commit", "--quiet", "-m", "a fusion", folder=tmp_path)
    with pytest.raises(UserError, match=r"hybrid is a fusion of bm25 and a, expected one encoder, which a champion is; crown the model"):
        record_of(tmp_path, git("rev-parse", "HEAD", folder=tmp_path), "hybrid")


def test_a_champion_that_cannot_be_measured_leaves_no_scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text("{}\n")
    Path("dvc.lock").write_text("")

    def fail(*_: object, **__: object) -> None:
        retrain.SCRATCH.mkdir(parents=True)
        raise UserError("its encoder is unavailable")

    now = champion.Champion(1, "a", "first", "then", digests={"encoder": "0a"})
    for place, name, value in (
        (retrain.metrics, "read_metrics", {"a": {"dev": {"nDCG@10": 0.5}}}),
        (retrain.metrics, "best_model", "a"),
        (retrain.promotion, "measure_of", "nDCG@10"),
        (retrain.champion, "read_champions", [now]),
        (retrain, "_take_in", None),
        (retrain, "_run_pipeline", None),
    ):
        monkeypatch.setattr(place, name, lambda *_, value=value: value)
    monkeypatch.setattr(retrain, "evaluate_champion", fail)
    begun, tree = history.Ended("0", "killed", "", ""), retraining_tree.Tree(tmp_path, tmp_path, "", None)
    with pytest.raises(UserError, match="its encoder is unavailable"):
        retrain._work(tmp_path, tree, begun, lambda: None, Processes(), Display())
    assert not retrain.SCRATCH.exists()
