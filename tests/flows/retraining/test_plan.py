"""From the champion's record and two corpora to params.yaml of a retraining; git, DVC and stages are stand-ins."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from flows.champions import champion, history, tree
from flows.champions.outs import Lost
from flows.champions.parts import Parts
from flows.repository import lock as lock_module
from flows.repository.git import git
from flows.retraining import plan
from flows.retraining.modes import Retrain
from tasks.core.errors import UserError
from tasks.core.files import write_json
from tasks.core.params.sections import read_yaml
from tasks.params import Parameters
from tests.flows.retraining.test_news import ASKED, BEFORE, JUDGED, write_corpus

PARTS = Parts({"corpus": "data/corpus", "encoder": "data/encoders/star"}, {"corpus": "c1", "encoder": "e1.dir"}, {"star": "encoder"})
NEW = [*JUDGED, ("q3", "d3", 1)]
PARTS_AT = champion.parts_at


class Worktree:
    """The current folder, with a champion of three known queries; `how` is its record."""

    def __init__(self, folder: Path, params: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
        self.ran: list[list[str]] = []
        self.how: dict[str, Any] | None = None
        self.lost: Sequence[str] = ()  # paths of the champion that neither the cache nor the remote has
        self.unavailable = ""  # a path of the champion that only a remote has, which does not answer
        self.trained = ["q1", "q2", "gone"]  # what the state of the champion lists
        self.now = champion.Champion(2, "star", "promoted", "", commit="then", replaced=1)
        monkeypatch.chdir(folder)
        self.write(params)
        recipe = Path("params.yaml").read_text()
        Path("data").mkdir()
        Path(".retemper").mkdir()
        Path("data/code.json").write_text('{"train": "t1", "encode": "e1"}')
        Path("data/source.json").write_text('{"encoder": {"digest": "x"}}')
        write_corpus(folder / "before", BEFORE, ASKED, JUDGED)
        write_corpus(folder / "data/corpus", BEFORE, ASKED, NEW)
        self.locked: dict[str, Any] = {"train@star": {"params": {"data/code.json": {"train": "t1"}}}}
        lock = {"prepare": {"outs": [{"path": "data/corpus", "md5": "c2"}]}}
        files = {"params.yaml": recipe, "data/source.json": '{"encoder": {"digest": "x"}}'}
        record = history.Ended("1", "promoted", "", "")

        def get_out(_project: Path, _commit: str, path: str, out: Path) -> None:
            if path in self.lost:
                raise Lost(f"{path} of then: neither in the cache nor on the remote")
            if path == self.unavailable:
                raise UserError(f"{path}: not in the cache, and no remote can be asked for it (down)")
            if path == "data/corpus":
                shutil.copytree(folder / "before", out)
            elif path == "data/state/star/known_queries.json":
                out.parent.mkdir(parents=True, exist_ok=True)
                out.write_text(json.dumps(self.trained))
            else:
                out.mkdir(parents=True)
                (out / "config.json").write_text("{}")

        monkeypatch.setattr(champion, "get_out", get_out)
        monkeypatch.setattr(champion, "parts_at", lambda *_: PARTS)
        for module in (lock_module, plan):
            monkeypatch.setattr(module, "read_blob", lambda _commit, name, _folder: files[name])
        monkeypatch.setattr(champion, "lock_at", lambda *_: self.locked)
        monkeypatch.setattr(plan, "current_lock", lambda: lock)
        monkeypatch.setattr(history, "read_outcome", lambda *_: with_how(record, self.how))
        monkeypatch.setattr(tree, "records", lambda _, span: [span])

    def write(self, params: dict[str, Any]) -> None:
        with Path("params.yaml").open("w") as handle:
            YAML().dump(params, handle)

    def make(
        self, mode: str = "auto", champions: Sequence[champion.Champion] | None = None, fused: bool = True, **settings: Any
    ) -> plan.Planned:
        crowned, rule = [self.now] if champions is None else champions, Retrain(**{"mode": mode, **settings})
        return plan.make(Path(), rule, crowned, fused=fused, run=lambda targets: self.ran.append(list(targets)))


def with_how(record: history.Ended, how: dict[str, Any] | None) -> history.Ended:
    return history.Ended(**{**record.__dict__, "how": how})


@pytest.fixture
def worktree(tmp_path: Path, full_params: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Worktree:
    return Worktree(tmp_path, json.loads(json.dumps(full_params)), monkeypatch)


def test_a_full_retraining_is_as_it_was(worktree: Worktree) -> None:
    before = Path("params.yaml").read_bytes()
    assert worktree.make("full").how == {"mode": "full", "why": "retrain.mode"}
    assert worktree.make("auto", []).choice.why == "there is no champion yet"
    assert (worktree.ran, Path("params.yaml").read_bytes()) == ([], before)


def test_a_full_retraining_of_some_systems_leaves_the_rest_of_the_recipe_out(worktree: Worktree, full_params: dict[str, Any]) -> None:
    full_params["rounds"]["side"] = {**full_params["rounds"]["star"], "init": "base", "negatives": "bm25"}
    full_params["rounds"]["star"]["negatives"] = "bm25"
    full_params["failures"] = {"model": "side", "against": "bm25"}
    full_params["report"]["baselines"] = ["bm25", "side"]
    worktree.write(full_params)
    planned = worktree.make("full", systems=["star"])
    assert planned.how == {"mode": "full", "why": "retrain.mode", "systems": ["star"]}
    params = read_yaml(Path("params.yaml"))
    start = full_params["rounds"]["star"]["init"]
    assert list(params["rounds"]) == [name for name in full_params["rounds"] if name in ("star", start)]
    assert params["rounds"]["star"] == full_params["rounds"]["star"]
    assert (params["failures"], params["report"]["baselines"]) == ({"against": "bm25"}, ["bm25"])
    assert (params["tokenize"], params["evaluate"]) == (full_params["tokenize"], full_params["evaluate"])
    figures = {name: {"dev": {"nDCG@10": 0.5}} for name in ("bm25", start, "star")}
    assert list(planned.eligible(figures)) == ["star"], "what it needs may not become champion"
    assert list(worktree.make("full").eligible(figures)) == list(figures)


def test_with_systems_only_their_recipe_counts_as_changed(worktree: Worktree, full_params: dict[str, Any]) -> None:
    full_params["rounds"]["side"] = {**full_params["rounds"]["star"], "init": "base", "negatives": "bm25"}
    worktree.write(full_params)
    assert worktree.make().choice.why == "rounds changed since champion/2"
    planned = worktree.make(systems=["star"])
    assert planned.choice.mode == "query_tower"
    assert planned.systems == ["star", "star_queries"]
    worktree.write(full_params)
    planned = worktree.make(systems=["side"])
    assert planned.choice == plan.Choice("full", "rounds, retrain.systems of retraining.yaml changed since champion/2")
    assert list(read_yaml(Path("params.yaml"))["rounds"]) == ["side"]
    worktree.write(full_params)
    message = (
        r"^retraining\.yaml: retrain\.mode: found continue, but champion/2 comes from star, which retrain\.systems lacks; expected full"
    )
    with pytest.raises(UserError, match=message):
        worktree.make("continue", systems=["side"])


@pytest.mark.parametrize(("system", "fused"), [("gone", True), ("bm25", True), ("both", False), ("over", True)])
def test_a_system_that_cannot_become_champion_is_refused(worktree: Worktree, full_params: dict[str, Any], system: str, fused: bool) -> None:
    full_params["rerankers"] = {"small": {"source": "x", "negatives": "none"}}
    full_params["rerank"] = {"again": {"run": "star", "reranker": "small"}}
    full_params["fuse"] = {"both": {"first": "bm25", "second": "star"}, "over": {"first": "bm25", "second": "again"}}
    worktree.write(full_params)
    before = Path("params.yaml").read_bytes()
    settings = Retrain(systems=["star", system])
    with pytest.raises(UserError, match=rf"^retraining.yaml: retrain.systems: found '{system}', expected some of .*star") as refusal:
        plan.make(Path(), settings, [], fused=fused, run=lambda _: None)
    assert ("both" in str(refusal.value).partition("expected")[2]) == fused
    full_params["rounds"]["star"] = None
    worktree.write(full_params)
    before = Path("params.yaml").read_bytes()
    with pytest.raises(UserError, match=r"^params.yaml: rounds.star: found None"):
        plan.make(Path(), settings, [], fused=fused, run=lambda _: None)
    assert Path("params.yaml").read_bytes() == before


def test_the_query_tower_starts_from_the_champion_and_knows_what_it_knew(worktree: Worktree) -> None:
    (plan.STARTS / "e0").mkdir(parents=True)
    planned = worktree.make()
    assert [folder.name for folder in plan.STARTS.iterdir()] == ["e1"], "of this champion alone"
    assert worktree.ran == [["prepare"]], "the data are taken in before the decision"
    assert planned.choice.mode == "query_tower", planned.choice.why
    assert planned.choice.why.startswith("1 new training queries (3 before), 0 new documents (4 before) since champion/2")
    source = read_yaml(Path("params.yaml"))["encoders"]["from_champion"]["source"]
    assert source == "./.retemper/starts/e1", "a name by content"
    assert json.loads((Path(source) / "known_queries.json").read_text()) == ["q1", "q2", "q4"]
    assert list(read_yaml(Path("params.yaml"))["adore"]) == ["star_queries"]
    news = {"documents": 0, "removed": 0, "documents_before": 4, "queries": 1, "queries_before": 3}
    assert planned.how.items() >= {"mode": "query_tower", "start": 2, "news": news}.items()
    worktree.how = dict(planned.how)
    assert set(worktree.how["recipe"]) >= {"rounds", "encoder", "text"}


def test_queries_that_the_champion_was_only_indexed_beside_are_new_to_it(worktree: Worktree) -> None:
    worktree.how = {"mode": "index", "start": 1, "news": {"queries": 1, "queries_before": 2, "documents": 1, "documents_before": 3}}
    worktree.how["recipe"] = plan.recipe(read_yaml(Path("params.yaml")), {"encoder": {"digest": "x"}})
    planned = worktree.make(full_share=9, document_share=9)
    assert planned.choice.mode == "query_tower"
    assert "since champion/2, 1 more query since it was trained" in planned.choice.why
    source = Path(read_yaml(Path("params.yaml"))["encoders"]["from_champion"]["source"])
    assert json.loads((source / "known_queries.json").read_text()) == ["q1", "q2"], "q4 is in its data, and it never trained on it"


@pytest.mark.parametrize("mode", ["query_tower", "continue"])
def test_queries_of_a_training_that_the_champion_is_not_of_are_new_to_it(worktree: Worktree, mode: str) -> None:
    """The champion is the encoder that the retraining started from, over new data: what it trained then was not better."""
    worktree.how = {"mode": mode, "start": 1, "news": {"queries": 1, "queries_before": 2, "documents": 1, "documents_before": 3}}
    worktree.how["recipe"] = plan.recipe(read_yaml(Path("params.yaml")), {"encoder": {"digest": "x"}})
    now = replace(worktree.now, digests={"encoder": "e1.dir", "corpus": "c1"})
    before, full_params = replace(now, number=1, digests={"encoder": "e1.dir", "corpus": "c0"}), Path("params.yaml").read_bytes()
    seen = []
    for start in (before, replace(before, digests={"encoder": "e0.dir"})):
        Path("params.yaml").write_bytes(full_params)
        planned = worktree.make(champions=[start, now], full_share=9, document_share=9)
        source = Path(read_yaml(Path("params.yaml"))["encoders"]["from_champion"]["source"])
        seen.append(("since it was trained" in planned.choice.why, json.loads((source / "known_queries.json").read_text())))
    assert seen == [(True, ["q1", "q2"]), (False, ["q1", "q2", "q4"])], "q4 is in its data, and only the second trained on it"


def test_a_record_that_the_champions_commit_has_from_an_earlier_one_is_not_its_own(tmp_path: Path) -> None:
    """As of `champion set HEAD:star`, where retemper/retraining was merged into HEAD's branch before: another recipe made that model."""
    git("init", "--quiet", folder=tmp_path)
    (tmp_path / tree.RECORD).write_text(json.dumps(asdict(history.Ended("1", "promoted", "", "", how={"mode": "index"}))))
    git("add", ".", folder=tmp_path)
    hows = []
    for message in ("a retraining", "a run"):
        git("commit", "--quiet", "--allow-empty", "-m", message, folder=tmp_path)
        now = champion.Champion(1, "star", "set", "", commit=git("rev-parse", "HEAD", folder=tmp_path))
        hows.append(plan._record(tmp_path, now, [now]))
    assert hows == [{"mode": "index"}, {}]


def test_what_changed_since_is_told(worktree: Worktree, full_params: dict[str, Any]) -> None:
    full_params["rounds"]["star"]["lr"] = 1.0
    worktree.write(full_params)
    Path("data/code.json").write_text('{"train": "t2", "encode": "e1"}')
    assert worktree.make().choice == plan.Choice("full", "rounds, the code of train changed since champion/2")
    Path("data/code.json").write_text('{"train": "t1", "encode": "e1"}')
    worktree.locked["train@star"]["params"]["data/params.json"] = {"rounds.star": {"loss": f"tasks.train.mine:loss@{'0' * 16}"}}
    write_json(Path("data/params.json"), {"rounds": {"star": {"loss": f"tasks.train.mine:loss@{'1' * 16}"}}})
    assert worktree.make().choice.why == "rounds, the code of tasks.train.mine:loss changed since champion/2"
    del worktree.locked["train@star"]["params"]["data/params.json"]
    recipe = plan.recipe(read_yaml(Path("params.yaml")), {"encoder": {"digest": "x"}})
    worktree.how = {"mode": "query_tower", "recipe": recipe, "start": 1, "news": {"queries": 1, "queries_before": 2}}
    assert "100% since the last full one" in worktree.make().choice.why, "the recipe counts that it was made by; two queries, of two"


def test_sources_count_by_content(full_params: dict[str, Any]) -> None:
    source = {"encoder": {"source": "a", "digest": "x"}, "encoders": {"other": {"source": "b", "digest": "y"}}}
    first = plan.recipe(full_params, source)
    moved = json.loads(json.dumps(full_params))
    moved["encoder"]["source"], moved["encoders"]["other"]["source"] = "elsewhere", "too"
    assert plan.recipe(moved | {"report": {}, "dataset": {"source": "more"}}, source) == first
    unneeded = source | {"encoders": {**source["encoders"], "of another system": {"source": "c", "digest": "w"}}}
    assert plan.recipe(moved, unneeded) == first, "data/source.json has all; the sections are those of retrain.systems"
    source["encoders"]["other"]["digest"] = "z"
    assert {name for name, digest in plan.recipe(moved, source).items() if digest != first[name]} == {"encoders"}


def test_a_further_data_set_that_only_measures_changes_no_recipe(worktree: Worktree, full_params: dict[str, Any]) -> None:
    recipe = plan.recipe(read_yaml(Path("params.yaml")), {"encoder": {"digest": "x"}})
    worktree.write(full_params | {"extra": {"scifact": "beir:/scifact"}})
    for record in ({}, {"recipe": recipe}, {"recipe": recipe | {"extra": "of an older version"}}):
        worktree.how = {"mode": "full", **record}
        assert worktree.make().choice.mode == "query_tower"
        worktree.write(full_params | {"extra": {"scifact": "beir:/scifact"}})


def test_every_section_decides_what_a_model_is_or_does_not() -> None:
    """A new section is put on one of the two sides here, and in `plan.UNTRAINED` if it trains nothing."""
    trained = {
        "queries", "encoder", "prepare", "base", "pseudo", "encoders", "text", "tokenize", "bm25", "chunk", "pretrain", "rounds", "encode",
        "index", "mine", "mix", "rerankers", "teacher", "adore", "fuse",
    }  # fmt: skip
    assert trained | {*plan.UNTRAINED} == Parameters.model_fields.keys()
    assert not trained & {*plan.UNTRAINED}


def test_what_cannot_be_had_is_one_line(worktree: Worktree, full_params: dict[str, Any]) -> None:
    before = Path("params.yaml").read_bytes()
    with pytest.raises(UserError, match=r"^retraining.yaml: retrain \(params.yaml of this retraining\): adore.star_queries.lrr: .*unknown"):
        worktree.make("query_tower", adore={"lrr": 1})
    assert Path("params.yaml").read_bytes() == before
    full_params["tokenize"]["document_length"] = 96
    worktree.write(full_params)
    with pytest.raises(
        UserError, match=r"retrain.mode: found query_tower, but tokenize of params.yaml changed since champion/2 encoded its documents"
    ):
        worktree.make("query_tower")


@pytest.mark.parametrize("lost", ["data/corpus", "data/encoders/star", "data/state/star/known_queries.json"])
def test_auto_retrains_fully_once_a_part_of_the_champion_is_lost(worktree: Worktree, lost: str) -> None:
    """`retemper forget` removes a champion's corpus from the cache and the remotes; the next retraining trains without the record."""
    worktree.how = {"mode": "index", "start": 1, "recipe": plan.recipe(read_yaml(Path("params.yaml")), {"encoder": {"digest": "x"}})}
    worktree.lost, before = (lost,), Path("params.yaml").read_bytes()
    line = f"{lost} of then: neither in the cache nor on the remote"
    planned = worktree.make(full_share=9, document_share=9)
    assert planned.how == {"mode": "full", "why": f"{line}, so no start from champion/2"}
    assert Path("params.yaml").read_bytes() == before
    for mode in ("query_tower", "continue"):
        remedy = r"; to retrain without it, set retrain\.mode: full \(or auto\) in retraining\.yaml$"
        with pytest.raises(UserError, match=f"^{line}{remedy}"):
            worktree.make(mode)


@pytest.mark.parametrize("path", ["data/corpus", "data/encoders/star", "data/indexes/star/index.json"])
def test_a_remote_that_does_not_answer_causes_no_full_retraining(
    tmp_path: Path, full_params: dict[str, Any], monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """It may have the part. The retraining fails in a line, and the next one goes on."""
    own_index = {"adore": {"star": {"round": "other", "index": "PQ8"}}} if "index" in path else {}
    worktree = Worktree(tmp_path, full_params | own_index, monkeypatch)
    worktree.unavailable, before = path, Path("params.yaml").read_bytes()
    for mode in ("auto", "query_tower"):
        with pytest.raises(UserError, match=rf"^{path}: not in the cache, and no remote can be asked for it \(down\)$"):
            worktree.make(mode)
    assert Path("params.yaml").read_bytes() == before


def test_auto_starts_from_a_fusion_whose_run_is_lost(
    worktree: Worktree, full_params: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`retemper forget` removes runs, too. The champion's record has what a fusion's run had chosen."""
    full_params["fuse"] = {"hybrid": {"first": "bm25", "second": "star"}}
    worktree.write(full_params)
    worktree.how = {"mode": "full", "recipe": plan.recipe(read_yaml(Path("params.yaml")), {"encoder": {"digest": "x"}})}
    setting = {**full_params["fuse"]["hybrid"], "method": "linear", "weight": 0.2}
    worktree.now = champion.Champion(2, "hybrid", "promoted", "", commit="then", fusion={"bm25": {}, "hybrid": setting})
    worktree.locked |= {
        "prepare": {"outs": [{"path": "data/corpus", "md5": "c1"}]},
        "bm25": {"outs": [{"path": "data/bm25", "md5": "b1"}]},
        "train@star": {**worktree.locked["train@star"], "outs": [{"path": "data/encoders/star", "md5": "e1.dir"}]},
        "index@star": {"outs": [{"path": "data/indexes/star", "md5": "i1"}]},
        "fuse@hybrid": {"params": {"data/params.json": {"fuse.hybrid": full_params["fuse"]["hybrid"]}}},
    }
    monkeypatch.setattr(champion, "parts_at", PARTS_AT)
    worktree.lost = ["data/runs/hybrid/fusion.json"]
    assert worktree.make().choice.mode == "query_tower"
    assert read_yaml(Path("params.yaml"))["encoders"]["from_champion"]["source"] == "./.retemper/starts/e1"
    write_corpus(Path("data/corpus"), BEFORE | {"d9": ("", "nine")}, ASKED, JUDGED)
    for fused in (True, False):  # the champion itself, over more documents, may not become champion without fusions
        worktree.write(full_params)
        assert worktree.make(fused=fused, document_share=9).choice.mode == ("index" if fused else "full")
    worktree.write(full_params)
    worktree.lost = ["data/runs/hybrid/fusion.json", "data/corpus"]
    line = "data/corpus of then: neither in the cache nor on the remote, so no start from champion/2"
    assert worktree.make().choice == plan.Choice("full", line)
