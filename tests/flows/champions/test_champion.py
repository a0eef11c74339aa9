"""What makes up a served model, by a dvc.lock."""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from flows.champions import champion, history
from flows.champions import tree as retraining_tree
from flows.champions.champion import record_of
from flows.champions.outs import Lost
from flows.champions.parts import Parts, is_same_model, outs_of, parts_of, settings_of
from flows.cli.operate.champion import set_champion
from flows.process.display import Display
from flows.process.processes import Processes
from flows.repository.git import git
from flows.repository.lock import parse_lock
from flows.retraining import decision, outlook, retrain
from tasks.core.errors import UserError
from tasks.core.tables.parquet import write_table
from tasks.core.tables.schemas import QRELS

LOCK = """
schema: '2.0'
stages:
  prepare: {{outs: [{{path: data/corpus, md5: corpus}}]}}
  train@star: {{outs: [{{path: data/encoders/star, md5: of_star}}]}}
  bm25: {{params: {{data/params.json: {{bm25: {{k1: 0.9}}, text: {{}}}}}}, outs: [{{path: data/bm25, md5: words}}]}}
  fuse@hybrid: {{params: {{data/params.json: {{fuse.hybrid: {{first: bm25, second: tower}}}}}}}}
  fuse@all: {{params: {{data/params.json: {{fuse.all: {{first: hybrid, second: star}}}}}}}}
  index@star: {{outs: [{{path: data/indexes/star, md5: {factory}}}, {{path: data/index_metrics/star.json, md5: m}}]}}
  adore@tower:
    params: {{params.yaml: {{adore.tower: {{round: star, negatives: none{entry}}}}}}}
    outs: [{{path: data/encoders/tower, md5: weights}}, {{path: data/indexes/tower, md5: own}}]
"""


def parts(model: str, factory: str = "f", entry: str = "") -> Parts:
    records = {
        "data/runs/hybrid/fusion.json": {
            "first": "bm25",
            "second": "tower",
            "method": "linear",
            "weight": 0.2,
            "grid": [1],
            "chosen_on": "dev",
        },
        "data/runs/all/fusion.json": {"first": "hybrid", "second": "star", "method": "rrf", "k": 60},
    }
    return parts_of(parse_lock(LOCK.format(factory=factory, entry=entry), ""), model, records.__getitem__, where="dvc.lock")


def test_a_fusion_is_made_of_every_encoder_bm25_and_its_weights() -> None:
    hybrid = parts("hybrid")
    assert hybrid.digests == {"encoder": "weights", "index": "f", "corpus": "corpus", "bm25": "words"}
    assert hybrid.fusion == {"bm25": {"k1": 0.9}, "hybrid": {"first": "bm25", "second": "tower", "method": "linear", "weight": 0.2}}
    assert hybrid.encoders == {"tower": "encoder"}
    nested = parts("all")
    assert nested.encoders == {"tower": "encoder", "star": "encoder.star"}
    assert nested.paths["index.star"] == "data/indexes/star"
    assert list(nested.fusion) == ["bm25", "hybrid", "all"]
    assert parts("star").fusion == {}
    deep = LOCK.format(factory="f", entry="").replace("first: bm25, second: tower", "first: bm25, second: tower, depth: 40")
    records = {f"data/runs/{name}/fusion.json": record for name, record in nested.fusion.items()}
    fusion = parts_of(parse_lock(deep, ""), "all", records.__getitem__, where="dvc.lock").fusion
    assert fusion == nested.fusion | {"hybrid": {**nested.fusion["hybrid"], "depth": 40}}, "as deep as it was fused"


def test_the_same_model_over_other_data() -> None:
    hybrid, other = parts("hybrid"), parts("hybrid", factory="g")
    assert hybrid.digests != other.digests
    assert is_same_model(hybrid, other)
    assert not is_same_model(hybrid, parts("tower")), "one of its models alone"
    weighted = {**hybrid.fusion, "hybrid": {**hybrid.fusion["hybrid"], "weight": 0.3}}
    assert not is_same_model(hybrid, replace(hybrid, fusion=weighted))


@pytest.mark.parametrize(
    ("entry", "index"),
    [("", "of_star"), (", index: Flat", "of_star"), (', index: "PQ8"', "own"), (', index: "PQ8", centroids: true', "own")],
)
def test_a_query_tower_without_an_index_is_served_by_its_rounds(entry: str, index: str) -> None:
    """A change of index.factory alone remakes that index, so it changes the model as it is served."""
    digests = parts("tower", factory="of_star", entry=entry).digests
    assert digests == {"encoder": "weights", "index": index, "corpus": "corpus"}
    changed = parts("tower", factory="of_star_again", entry=entry).digests
    assert (changed != digests) == (index == "of_star")


def test_the_settings_of_a_model_are_those_that_its_stages_read() -> None:
    params = {
        "tokenize": {"text": {"titles": True}, "tokenize": {"query_length": 32}, "corpus": "unknown"},
        **{f"encode@{name}": {"encode": {"precision": name}} for name in ("star", "other")},
        **{f"index@{name}": {"index": {"factory": name}} for name in ("star", "other")},
        "adore@tower": {"adore.tower": {"round": "star"}},
        "fuse@hybrid": {"fuse.hybrid": {"first": "bm25", "second": "tower"}},
    }
    lock = {name: {"params": {"data/params.json": values}} for name, values in params.items()}
    expected = {"text": {"titles": True}, "tokenize": {"query_length": 32}, "encode": {"precision": "star"}, "index": {"factory": "star"}}
    for model in ("star", "tower", "hybrid"):
        assert settings_of(lock, model) == expected
    assert settings_of(lock, "other")["index"] == {"factory": "other"}
    lock["adore@tower"] = {"params": {"data/params.json": {"adore.tower": {"round": "star", "index": "PQ8"}}}}
    assert settings_of(lock, "hybrid") == expected | {"indexes": ["PQ8"]}, "the same weights over another index are another model"
    assert settings_of({}, "a") == {}


def test_a_model_with_other_settings_is_another_one() -> None:
    star = parts("star")
    assert is_same_model(star, replace(star, digests={**star.digests, "index": "other", "corpus": "other"}))
    assert not is_same_model(star, replace(star, settings={"text": {"separator": "|"}}))


def test_an_empty_lock() -> None:
    assert outs_of(parse_lock("", "")) == {}


def test_a_model_whose_round_was_removed_cannot_be_crowned(tmp_path: Path) -> None:
    """DVC keeps its entry in dvc.lock, but nothing would make its index again."""
    git("init", "--quiet", folder=tmp_path)
    entry = (
        "  train@{0}: {{outs: [{{path: data/encoders/{0}, md5: of_{0}}}]}}\n  index@{0}: {{outs: [{{path: data/indexes/{0}, md5: i}}]}}\n"
    )
    (tmp_path / "dvc.lock").write_text(f"schema: '2.0'\nstages:\n{entry.format('a')}{entry.format('b')}")
    graph = "stages: {train: {foreach: '${rounds}', do: {cmd: x}}, index: {foreach: '${rounds}', do: {cmd: x}}}\n"
    (tmp_path / "dvc.yaml").write_text(graph)
    (tmp_path / "params.yaml").write_text("rounds: {a: {}}\n")
    git("add", ".", folder=tmp_path)
    git("commit", "--quiet", "-m", "b was removed", folder=tmp_path)
    commit = git("rev-parse", "HEAD", folder=tmp_path)
    assert record_of(tmp_path, commit, "a")["digests"] == {"encoder": "of_a", "index": "i"}
    with pytest.raises(UserError, match=r"has no encoder b, expected one of a$"):
        record_of(tmp_path, commit, "b")


def test_a_model_whose_run_is_not_committed_cannot_be_crowned_yet(tmp_path: Path) -> None:
    git("init", "--quiet", folder=tmp_path)
    git("commit", "--quiet", "--allow-empty", "-m", "no run", folder=tmp_path)
    commit = git("rev-parse", "HEAD", folder=tmp_path)
    entry = "  {0}@a: {{outs: [{{path: data/{1}/a, md5: of_a}}]}}\n"
    (tmp_path / "dvc.lock").write_text(f"schema: '2.0'\nstages:\n{entry.format('train', 'encoders')}{entry.format('index', 'indexes')}")
    with pytest.raises(UserError, match=r"^a: found in dvc\.lock, but not in that of commit [0-9a-f]{12}; commit dvc\.lock, "):
        record_of(tmp_path, commit, "a")
    with pytest.raises(UserError, match=r"has no encoder b, nor any other; commit dvc\.lock, params\.yaml, .* after retemper run$"):
        record_of(tmp_path, commit, "b")


def test_a_champion_of_a_newer_version_is_read(tmp_path: Path) -> None:
    git("init", "--quiet", folder=tmp_path)
    git("commit", "--quiet", "--allow-empty", "-m", "a", folder=tmp_path)
    crowned = champion.Champion(1, "a", "first", "now", commit=git("rev-parse", "HEAD", folder=tmp_path))
    record = {"model": "a", "cause": "first", "when": "now", "of_a_newer_version": 1}
    git("tag", "--annotate", "champion/1", "-m", f"champion/1: a\n\n{json.dumps(record)}", folder=tmp_path)
    assert champion.read_champions(tmp_path) == [crowned]
    del record["cause"]
    git("tag", "--force", "--annotate", "champion/1", "-m", f"champion/1: a\n\n{json.dumps(record)}", folder=tmp_path)
    with pytest.raises(UserError, match=r"^tag champion/1: found no record of a champion in its message"):
        champion.read_champions(tmp_path)


@pytest.fixture
def fusion_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, str]:
    """A repository whose dvc.lock has a fusion of BM25 and `a`, and its commit. Outs are created when they are asked for."""
    git("init", "--quiet", folder=tmp_path)
    (tmp_path / "dvc.lock").write_text(
        "schema: '2.0'\nstages:\n"
        "  prepare: {outs: [{path: data/corpus, md5: c}]}\n"
        "  bm25: {params: {data/params.json: {bm25: {k1: 0.9}}}, outs: [{path: data/bm25, md5: w}]}\n"
        "  tokenize: {params: {data/params.json: {text: {titles: true}, tokenize: {}}}}\n"
        "  train@a: {outs: [{path: data/encoders/a, md5: e}]}\n"
        "  index@a: {outs: [{path: data/indexes/a, md5: i}]}\n"
        "  fuse@hybrid: {params: {data/params.json: {fuse.hybrid: {first: bm25, second: a}}}, outs: [{path: data/runs/hybrid, md5: x}]}\n"
        "  fuse@lone: {params: {data/params.json: {fuse.lone: {first: bm25, second: b}}}, outs: [{path: data/runs/lone, md5: x}]}\n"
        "  rerank@over: {outs: [{path: data/runs/over, md5: x}]}\n"
    )
    stages = (
        "prepare: {cmd: x}",
        "bm25: {cmd: x}",
        "tokenize: {cmd: x}",
        *(f"{stage}: {{foreach: '${{{of}}}', do: {{cmd: x}}}}" for stage, of in STAGES.items()),
    )
    (tmp_path / "dvc.yaml").write_text(f"stages: {{{', '.join(stages)}}}\n")
    (tmp_path / "params.yaml").write_text("rounds: {a: {}}\nfuse: {hybrid: {}, lone: {}}\nrerank: {over: {}}\nreport: {metric: AP}\n")
    git("add", ".", folder=tmp_path)
    git("commit", "--quiet", "-m", "a fusion", folder=tmp_path)

    def get_out(_project: Path, _commit: str, path: str, out: Path) -> None:
        out.parent.mkdir(parents=True, exist_ok=True)
        if path == "data/metrics/a.json":
            raise Lost(f"{path}: neither in the cache nor on the remote")
        if path.startswith("data/metrics"):
            out.write_text('{"dev": {"AP": 0.4, "nDCG@10": 0.5}}')
        elif path.endswith(".json"):
            out.write_text('{"first": "bm25", "second": "a", "method": "linear", "weight": 0.2, "chosen_on": "dev"}')
        elif path.startswith("data/tokens"):
            out.write_text(path)
        else:
            out.mkdir()
            (out / ("index.faiss" if "indexes" in path else "of")).write_text(path)

    monkeypatch.setattr(champion, "get_out", get_out)
    monkeypatch.setattr(champion.outs, "refuse_lost", lambda *_, **__: None)
    return tmp_path, git("rev-parse", "HEAD", folder=tmp_path)


STAGES = {"train": "rounds", "index": "rounds", "fuse": "fuse", "rerank": "rerank"}


def test_a_newer_model_at_head_is_noticed(
    fusion_repository: tuple[Path, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a revision, the last retraining's is crowned."""
    folder, commit = fusion_repository
    context: Any = SimpleNamespace(obj=False)
    git("branch", "retemper/retraining", commit, folder=folder)
    monkeypatch.chdir(folder)
    assert set_champion(context, "a") == 0 and "HEAD" not in capsys.readouterr().err
    lock = folder / "dvc.lock"
    lock.write_text(lock.read_text() + "# the same models\n")
    git("commit", "--quiet", "-am", "a comment", folder=folder)
    assert set_champion(context, "a") == 0 and "HEAD" not in capsys.readouterr().err
    lock.write_text(lock.read_text().replace("md5: i}", "md5: other}"))
    git("commit", "--quiet", "-am", "another index", folder=folder)
    assert set_champion(context, "a") == 0
    assert capsys.readouterr().err.strip() == (
        "retemper: crowned a of the last retraining, but HEAD has a newer one; to crown that: retemper champion set HEAD:a"
    )
    assert set_champion(context, "HEAD:a") == 0 and "HEAD" not in capsys.readouterr().err
    current = champion.current(folder)
    assert current and current.digests["index"] == "other"
    lock.write_text(lock.read_text().replace("md5: other}", "md5: later}"))
    git("commit", "--quiet", "-am", "a retraining", folder=folder)
    git("branch", "--force", "retemper/retraining", "HEAD", folder=folder)
    git("reset", "--quiet", "--hard", "HEAD~1", folder=folder)
    assert set_champion(context, "a") == 0 and "HEAD" not in capsys.readouterr().err, "HEAD's is older"
    git("commit", "--quiet", "--allow-empty", "-m", "settings alone", folder=folder)
    assert set_champion(context, "a") == 0 and "HEAD" not in capsys.readouterr().err, "that made no model"


def test_a_fusion_is_crowned_with_all_that_serves_it(fusion_repository: tuple[Path, str]) -> None:
    folder, commit = fusion_repository
    crowned = champion.choose(folder, f"{commit}:hybrid")
    assert champion.current(folder) == crowned
    assert crowned.digests == {"encoder": "e", "index": "i", "corpus": "c", "bm25": "w"}
    assert crowned.fusion["hybrid"] == {"first": "bm25", "second": "a", "method": "linear", "weight": 0.2}
    assert crowned.settings == {"text": {"titles": True}, "tokenize": {}}
    assert champion.describe(crowned) == "champion/1: hybrid, AP 0.4000 on dev (set)"
    assert champion.describe(champion.choose(folder, f"{commit}:a")) == "champion/2: a (set)", "its metrics are lost"
    older = replace(crowned, settings={})
    assert champion.with_settings(folder, [older, crowned]) == [crowned, crowned], "records of before have those of their commit"
    for source, label in (("beir:/a/b/scifact", "beir:scifact"), (f"beir:{Path.cwd()}/data/x", "beir:data/x"), ("beir:../x", "beir:../x")):
        assert f"  data      {label} (" in champion.details(replace(crowned, data={"source": source}))
    assert "  hybrid    first bm25, second a, method linear, weight 0.2" in champion.details(crowned)
    assert champion.choose(folder, "hybrid").commit == commit, "it is found without a revision"
    with pytest.raises(UserError, match=rf"^dvc\.lock of commit {commit[:12]} has no encoder b, expected one of a, hybrid$"):
        record_of(folder, commit, "b")
    with pytest.raises(
        UserError, match=r"dvc.lock of commit \w{12}: over only reorders what others find, and cannot be served; expected one of a, hybrid$"
    ):
        champion.choose(folder, "over")
    with pytest.raises(UserError, match=r"^fuse.lone: is made from b, which reorders a run"):
        record_of(folder, commit, "lone")


def test_a_champion_is_not_set_without_metrics_that_the_remote_may_have(
    fusion_repository: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its record would lack them for ever."""
    folder, commit = fusion_repository

    def fail(_project: Path, _commit: str, path: str, **_: object) -> None:
        raise UserError(f"{path}: not in the cache, and no remote can be asked for it (down)")

    monkeypatch.setattr(champion, "get_out", fail)
    with pytest.raises(UserError, match=r"^data/metrics/a\.json: not in the cache, and no remote can be asked"):
        champion.choose(folder, f"{commit}:a")
    assert champion.read_champions(folder) == []


def test_a_fusion_that_was_taken_back_stays_so(fusion_repository: tuple[Path, str]) -> None:
    """Its encoder alone is another model, and so is the same fusion with another weight."""
    folder, commit = fusion_repository
    for model in ("hybrid", "a"):
        champion.choose(folder, f"{commit}:{model}")
    champions = champion.read_champions(folder)
    rejected = champion.parts_at(folder, champions[0])
    assert champion.find_rejected(champions, rejected) == champions[0]
    other = replace(rejected, fusion={**rejected.fusion, "hybrid": {**rejected.fusion["hybrid"], "weight": 0.9}})
    assert champion.find_rejected(champions, other) is None
    assert champion.find_rejected(champions, champion.parts_at(folder, champions[1])) is None, "it is the champion"


def test_a_fusion_whose_run_is_lost_has_its_record(fusion_repository: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """`retemper forget` removes runs, since they name documents. The encoder is there, and BM25 is made again."""
    folder, commit = fusion_repository
    crowned = champion.choose(folder, f"{commit}:hybrid")
    expected = champion.parts_at(folder, crowned)

    def report_lost(_project: Path, _commit: str, path: str, **_: object) -> None:
        raise UserError(f"{path}: neither in the cache nor on the remote")

    monkeypatch.setattr(champion, "get_out", report_lost)
    (read,) = champion.read_champions(folder)
    assert champion.parts_at(folder, read) == expected
    assert outlook.measurement.lost_part(folder, read) is None and outlook.measurement.is_measurable(folder, read)
    with pytest.raises(UserError, match=r"^data/runs/hybrid/fusion.json: neither in the cache"):
        champion.parts_at(folder, replace(read, fusion={}))


def test_a_champion_that_cannot_be_measured_leaves_no_scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text("{}\n")
    Path("dvc.lock").write_text("schema: '2.0'\nstages: {prepare: {cmd: x}}\n")

    def fail(*_: object, **__: object) -> None:
        decision.SCRATCH.mkdir(parents=True)
        raise UserError("its encoder is unavailable")

    current = champion.Champion(1, "a", "first", "then", digests={"encoder": "0a"}, settings={"text": {}})
    for place, name, value in (
        (decision.metrics, "read_metrics", {"a": {"dev": {"nDCG@10": 0.5}}}),
        (decision.metrics, "best_model", "a"),
        (outlook, "measure_of", "nDCG@10"),
        (champion, "read_champions", [current]),
        (decision, "parts_of", Parts({}, {"encoder": "0b"}, {})),
        (outlook, "take_in", None),
        (outlook.measurement, "warn_if_not_comparable", None),
        (outlook.shrinkage, "refuse", None),
        (outlook.evidence, "foresee", None),
        (retrain, "run_pipeline", None),
    ):
        monkeypatch.setattr(place, name, lambda *_, value=value, **__: value)
    monkeypatch.setattr(decision, "evaluate_champion", fail)
    groupings: list[dict[str, str]] = []
    monkeypatch.setattr(decision.evidence, "choosing_metrics", lambda metrics, *_, groups: groupings.append(groups) or metrics)
    qrels = pa.table([["q1", "q2"], ["d", "d"], [1, 1]], schema=QRELS)
    write_table(Path("data/corpus/qrels/dev.parquet"), QRELS, [qrels])
    record, tree = history.Ended("0", "killed", "", ""), retraining_tree.Tree(tmp_path, tmp_path, "", None)
    with pytest.raises(UserError, match="its encoder is unavailable"):
        retrain._retrain_once(tmp_path, tree, record, check=lambda: None, processes=Processes(), display=Display())
    assert not decision.SCRATCH.exists()
    assert groupings == [{"q1": "q1", "q2": "q1"}], "those that choose know which share a document"


def test_a_champion_that_is_lost_is_told_before_a_training(fusion_repository: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Only its encoders matter for a comparison. It is no error: a clone whose run makes the same model has it then."""
    folder, commit = fusion_repository
    crowned, requests, warnings = champion.choose(folder, f"{commit}:hybrid"), list[str](), list[str]()
    error: UserError = Lost("data/encoders/a: neither in the cache nor on the remote")

    def report_lost(paths: Iterable[str], **_: object) -> None:
        requests.extend(paths)
        raise error

    outlook.measurement.warn_if_not_comparable(folder, crowned, "do this", warn=pytest.fail)
    assert outlook.measurement.is_measurable(folder, crowned)
    monkeypatch.setattr(outlook.measurement.outs, "refuse_lost", report_lost)
    outlook.measurement.warn_if_not_comparable(folder, crowned, "do this", warn=warnings.append)
    assert requests == ["data/encoders/a"]
    (line,) = warnings
    assert line.startswith("champion/1: data/encoders/a: neither in the cache nor on the remote. Unless this retraining makes it again,")
    assert line.endswith("will be refused; do this")
    assert not outlook.measurement.is_measurable(folder, crowned)
    error = UserError("data/encoders/a: not in the cache, and no remote can be asked for it (down)")
    outlook.measurement.warn_if_not_comparable(folder, crowned, "do this", warn=warnings.append)
    expected = "If that is still so after the training, the comparison, and so this retraining, fails"
    assert warnings[1:] == [f"champion/1: {error}. {expected}"], "it is not refused, and the next one tries again"
    assert not outlook.measurement.is_measurable(folder, crowned)


def test_a_champion_that_never_was_is_refused_by_its_number(fusion_repository: tuple[Path, str]) -> None:
    folder, commit = fusion_repository
    with pytest.raises(UserError, match=r"^champion/9: no such champion; there is none yet$"):
        champion.choose(folder, "champion/9")
    champion.choose(folder, f"{commit}:a")
    with pytest.raises(UserError, match=r"^champion/9: no such champion; the last is champion/1$"):
        champion.choose(folder, "champion/9")
