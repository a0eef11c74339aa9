"""Models whose parts or metrics are of different generations, by a dvc.lock."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flows.champions.champion import record_of
from flows.experiments import store
from flows.pipeline import run
from flows.pipeline.plan import Plan
from flows.process.display import Outcome
from flows.repository.git import git
from flows.repository.graph import Graph, Stage
from flows.repository.lock import read_lock
from flows.results import generations, search
from flows.results.generations import current_metrics, find_mismatch, leave_out, outdated, refuse_truncated
from flows.results.metrics import read_metrics
from flows.storage.cache import folder_digest, object_path
from tasks.core.errors import Problem, UserError
from tasks.core.stage.frozen import freeze_parameters

DEPS = {
    "prepare": [],
    "tokenize": ["data/corpus"],
    "base": [],
    "pretrain@costa": ["data/encoders/base"],
    "train@star": ["data/encoders/costa", "data/tokens/documents"],
    "train@other": ["data/encoders/base"],
    "encode@star": ["data/tokens/documents", "data/encoders/star"],
    "index@star": ["data/embeddings/star", "data/encoders/star"],
    "retrieve@star": ["data/encoders/star", "data/embeddings/star"],
    "evaluate@star": ["data/runs/star", "data/corpus/qrels"],
    "index@other": ["data/encoders/other"],
    "evaluate@other": ["data/encoders/other"],
    "bm25": ["data/corpus"],
    "retrieve_bm25": ["data/candidates"],
    "fuse@hybrid": ["data/runs/bm25", "data/runs/star"],
    "evaluate_fuse@hybrid": ["data/runs/hybrid", "data/corpus/qrels"],
    "adore@tower": ["data/encoders/star", "data/embeddings/star"],
    "retrieve_adore@tower": ["data/encoders/tower", "data/indexes/tower"],
    "evaluate_adore@tower": ["data/runs/tower", "data/corpus/qrels"],
}
OUTS = {
    "prepare": ["data/corpus"],
    "tokenize": ["data/tokens"],
    "base": ["data/encoders/base"],
    "adore": ["data/encoders/", "data/indexes/"],
}
OUTS |= {
    "bm25": ["data/bm25", "data/candidates"],
    "retrieve_bm25": ["data/runs/bm25"],
    "fuse": ["data/runs/"],
    "retrieve": ["data/runs/"],
    "retrieve_adore": ["data/runs/"],
    "pretrain": ["data/encoders/"],
    "train": ["data/encoders/"],
    "encode": ["data/embeddings/"],
    "index": ["data/indexes/"],
}
FIGURES = {name: {"dev": {"nDCG@10": value}} for name, value in {"star": 0.9, "tower": 0.8, "other": 0.7, "hybrid": 0.6}.items()}


def entry(name: str, **changed: str) -> dict[str, Any]:
    """A stage of the lock; `changed`: other digests than the first ones, by path."""
    stage, _, model = name.partition("@")
    outs = [f"{out}{model}" if out.endswith("/") else out for out in OUTS.get(stage, [f"data/metrics/{model}.json"])]
    params = {"params.yaml": SETTINGS[stage]} if stage in SETTINGS else {}
    deps, out_entries = ([{"path": path, "md5": changed.get(path, f"first {path}")} for path in paths] for paths in (DEPS[name], outs))
    return {"cmd": "x", "params": params, "deps": deps, "outs": out_entries}


def lock(*stages: str, **changed: str) -> dict[str, Any]:
    """The lock after a whole run and one of `stages` alone, which has made `changed`, or read it."""
    return {name: entry(name, **(changed if name in stages else {})) for name in DEPS}


SETTINGS = {
    "adore": {"adore.tower": {"round": "star", "negatives": "none"}},
    "fuse": {"fuse.hybrid": {"first": "bm25", "second": "star"}},
}
STAR = {"data/encoders/star": "changed"}


@pytest.mark.parametrize(
    ("entries", "model", "message", "stage"),
    [
        (lock(), "star", "", ""),
        (lock("train@star", **STAR), "star", "encode@star was made from another data/encoders/star", "encode@star"),
        (lock("train@star", **STAR), "tower", "encode@star was made from another data/encoders/star", "encode@star"),
        (lock("train@star", **STAR), "other", "", ""),
        (
            lock("encode@star", **{"data/embeddings/star": "changed"}),
            "star",
            "index@star was made from another data/embeddings/star",
            "index@star",
        ),
        (lock("train@star", "encode@star", **STAR), "star", "index@star was made from another data/encoders/star", "index@star"),
        (lock("train@star", "encode@star", "index@star", **STAR), "star", "", "retrieve@star"),
        (lock("retrieve@star", **{"data/runs/star": "changed"}), "star", "", "evaluate@star"),
        (
            lock("train@star", "encode@star", "index@star", **STAR),
            "tower",
            "adore@tower was made from another data/encoders/star",
            "adore@tower",
        ),
        (lock("adore@tower", **{"data/encoders/tower": "changed"}), "tower", "", "retrieve_adore@tower"),
        (lock("prepare", **{"data/corpus": "changed"}), "star", "tokenize was made from another data/corpus", "tokenize"),
        (lock("pretrain@costa", **{"data/encoders/costa": "changed"}), "star", "", ""),  # star's own parts are of one generation
        (lock(), "hybrid", "", ""),
        (lock("train@star", **STAR), "hybrid", "encode@star was made from another data/encoders/star", "encode@star"),
        (
            lock("train@star", "encode@star", "index@star", **STAR),
            "hybrid",
            "retrieve@star was made from another data/enc",
            "retrieve@star",
        ),
        (
            lock("retrieve@star", **{"data/runs/star": "changed"}),
            "hybrid",
            "fuse@hybrid was made from another data/runs/star",
            "fuse@hybrid",
        ),
        (lock("bm25", **{"data/candidates": "changed"}), "hybrid", "retrieve_bm25 was made from another data/candidates", "retrieve_bm25"),
        (lock("fuse@hybrid", **{"data/runs/hybrid": "changed"}), "hybrid", "", "evaluate_fuse@hybrid"),
        ({"train@star": entry("train@star")}, "star", "", ""),
        ({}, "star", "", ""),
    ],
)
def test_parts_of_different_generations_are_named(entries: dict[str, Any], model: str, message: str, stage: str) -> None:
    assert find_mismatch(entries, model).startswith(message) and bool(find_mismatch(entries, model)) == bool(message)
    assert find_mismatch(entries, model, measured=True).partition(" ")[0] == stage


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        (lock(), {"star", "tower", "other", "hybrid"}),
        (lock("train@star", **STAR), {"other"}),
        (lock("pretrain@costa", **{"data/encoders/costa": "changed"}), {"other"}),
        (lock("base", **{"data/encoders/base": "changed"}), set()),
        (lock("prepare", **{"data/corpus": "changed"}), {"other"}),  # the tokens of star's training are of the old one
        (lock("adore@tower", **{"data/encoders/tower": "changed"}), {"star", "other", "hybrid"}),
        ({}, {"star", "tower", "other", "hybrid"}),
    ],
)
def test_metrics_of_replaced_artifacts_are_left_out(entries: dict[str, Any], expected: set[str]) -> None:
    metrics, note = current_metrics(FIGURES, entries)
    assert set(metrics) == expected
    groups = [group.split(" (measured before the current ") for group in note.removeprefix("excluded: ").split("; ") if group]
    assert {model for models, _ in groups for model in models.split(", ")} == FIGURES.keys() - expected
    assert {name for name in outdated(entries) if name.startswith("evaluate")} == {
        f"evaluate{ {'tower': '_adore', 'hybrid': '_fuse'}.get(model, '') }@{model}" for model in set(FIGURES) - expected
    }


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checkout: Path) -> Path:
    """A whole run, after which star alone was trained again."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text((checkout / "params.yaml").read_text())
    (tmp_path / "dvc.lock").write_text(json.dumps({"stages": lock("train@star", **STAR)}))
    for model, splits in FIGURES.items():
        (tmp_path / "data/indexes" / model).mkdir(parents=True)
        (tmp_path / "data/metrics").mkdir(exist_ok=True)
        (tmp_path / "data/metrics" / f"{model}.json").write_text(json.dumps(splits))
    return tmp_path


def test_a_search_refuses_the_new_encoder_over_the_old_vectors(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    class Done:
        returncode = 0

    monkeypatch.setattr(search.subprocess, "run", lambda command, **_: commands.append(command) or Done())
    for model in ("star", None):
        with pytest.raises(
            UserError, match=r"^dvc\.lock: model star: encode@star was made from another data/encoders/star, .* retemper run"
        ):
            search.search("words", 3, model)
    assert search.search("words", 3, "other") == 0
    (project / "dvc.lock").write_text(json.dumps({"stages": lock("train@star", "encode@star", "index@star", **STAR)}))
    assert search.search("words", 3, "star") == 0
    with pytest.raises(UserError, match="model star: retrieve@star was made from another"):  # chosen by another model's metrics
        search.search("words", 3, None)
    assert len(commands) == 2


def test_a_model_of_two_generations_is_not_crowned(project: Path) -> None:
    git("init", "--quiet", folder=project)
    git("add", "dvc.lock", folder=project)
    git("commit", "--quiet", "-m", "half a run", folder=project)
    commit = git("rev-parse", "HEAD", folder=project)
    assert "encoder" in record_of(project, commit, "other")["digests"]
    with pytest.raises(
        UserError, match=rf"^dvc\.lock of commit {commit[:12]}: model star: encode@star was made from another data/encoders/star"
    ):
        record_of(project, commit, "star")


def test_the_table_of_a_run_leaves_old_metrics_out(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both metrics that are old according to dvc.lock, and those that the run should have measured but did not."""
    metric = (project / "data/metrics/other.json").absolute()
    graph = Graph({"train@other": Stage("train@other", (), ()), "evaluate@other": Stage("evaluate@other", ("train@other",), (metric,))})
    monkeypatch.setattr(run, "make_plan", lambda *_, **__: Plan(graph, frozenset(), None, False, None))
    monkeypatch.setattr(run, "cache_folder", Path)
    monkeypatch.setattr(run.remotes, "register_again", lambda *_: None)
    monkeypatch.setattr(run, "_execute", lambda *_, **__: dict.fromkeys(graph.stages, Outcome("Cached")))
    run.run(["evaluate@other"])
    output = capsys.readouterr().out
    assert "other  dev     0.7000" in output and "0.9000" not in output and "0.8000" not in output
    assert "excluded: hybrid, star, tower (measured before the current data/encoders/star was made)\n" in output
    monkeypatch.setattr(run, "_execute", lambda *_, **__: {"train@other": Outcome("Failed", problem=Problem("stage", "boom"))})
    with pytest.raises(run.StagesFailed):
        run.run(["evaluate@other"])
    output = capsys.readouterr().out
    assert "0.7000" not in output and "excluded: other (evaluation skipped)" in output


@pytest.mark.usefixtures("project")
def test_a_run_that_measures_nothing_says_nothing_of_metrics(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """As `retemper run prepare`, or a retraining: nobody asked for a table of the former data set, or for what it lacks."""
    graph = Graph({"prepare": Stage("prepare", (), ())})
    monkeypatch.setattr(run, "make_plan", lambda *_, **__: Plan(graph, frozenset(), None, False, None))
    monkeypatch.setattr(run, "cache_folder", Path)
    monkeypatch.setattr(run.remotes, "register_again", lambda *_: None)
    monkeypatch.setattr(run, "_execute", lambda *_, **__: {"prepare": Outcome("Ran")})
    run.run(["prepare"])
    output = capsys.readouterr().out
    assert "\nprepare  Ran " in output and "excluded" not in output and "0.7000" not in output


def test_models_that_are_left_out_for_one_reason_share_it() -> None:
    reasons = {"a": "evaluation skipped", "gone": "evaluation skipped", "b": "other", "c": "evaluation skipped"}
    assert leave_out({name: {} for name in "abcd"}, reasons) == ({"d": {}}, "excluded: a, c (evaluation skipped); b (other)")


def test_an_experiment_has_no_earlier_metrics(project: Path) -> None:
    """The baseline's entry stays in dvc.lock where a sweep's targets do not need the model."""
    git("init", "--quiet", folder=project)
    cache, text = project / "cache", (project / "dvc.lock").read_text()
    for model, splits in FIGURES.items():
        figures = json.dumps(splits).encode()
        digest = hashlib.md5(figures).hexdigest()
        file = object_path(cache / "files/md5", digest)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(figures)
        text = text.replace(f"first data/metrics/{model}.json", digest)
    (project / "dvc.lock").write_text(text)
    git("add", "dvc.lock", "params.yaml", folder=project)
    git("commit", "--quiet", "-m", "x", folder=project)
    assert set(store.read("x", "HEAD", "", cache=cache).metrics) == {"other"}


def test_training_alone_makes_a_models_metrics_stale(toy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the dvc.lock that DVC itself writes."""
    monkeypatch.chdir(toy.folder)
    freeze_parameters()
    toy.command(sys.executable, "-m", "dvc", "repro", "report")
    assert set(current_metrics(read_metrics())[0]) == {"a", "b"} and not current_metrics(read_metrics())[1]
    toy.set_rounds(a="9", b="1")
    freeze_parameters()
    toy.command(sys.executable, "-m", "dvc", "repro", "--single-item", "train@a")
    metrics, note = current_metrics(read_metrics())
    assert set(metrics) == {"b"}
    assert note == "excluded: a (measured before the current data/encoders/a was made)"


def add_listing(cache: Path, files: dict[str, str]) -> str:
    oid, text = folder_digest(files), json.dumps([{"md5": files[name], "relpath": name} for name in sorted(files)])
    object_path(cache / "files/md5", oid).parent.mkdir(parents=True, exist_ok=True)
    object_path(cache / "files/md5", oid).write_text(text)
    return oid


def test_parts_of_a_folder_that_was_made_again_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a run on changed data that was stopped in training: the old vectors and figures counted as current."""
    monkeypatch.setattr(generations, "cache_folder", lambda: tmp_path)
    documents, qrels = {"ids": "1" * 32, "tokens": "2" * 32}, {"dev.parquet": "3" * 32}
    tokens = add_listing(tmp_path, {f"documents/{name}": oid for name, oid in documents.items()} | {"queries/dev": "4" * 32})
    corpus = add_listing(tmp_path, {f"qrels/{name}": oid for name, oid in qrels.items()})
    changed = {"data/corpus": corpus, "data/tokens": tokens}
    stopped = lock("prepare", "tokenize", **changed)
    assert find_mismatch(stopped, "star") == "encode@star was made from another data/tokens/documents"
    assert set(current_metrics(FIGURES, stopped)[0]) == {"other"}
    parts = {"data/tokens/documents": folder_digest(documents), "data/corpus/qrels": folder_digest(qrels)}
    whole = lock(*DEPS, **changed, **parts)
    assert find_mismatch(whole, "star", measured=True) == "" and current_metrics(FIGURES, whole) == (FIGURES, "")
    unmeasured = lock(*(name for name in DEPS if name != "evaluate@star"), **changed, **parts)
    assert find_mismatch(unmeasured, "star", measured=True).startswith("evaluate@star was made from another data/corpus")
    object_path(tmp_path / "files/md5", tokens).unlink()
    assert find_mismatch(stopped, "star") == "", "unknown, as in a clone that has not fetched the listing"


@pytest.mark.parametrize(
    ("split", "refused", "refused_measured"),
    [("train", set(), set()), ("dev", {"hybrid"}, {"star", "tower", "hybrid"}), ("test", set(), {"star", "tower", "hybrid"})],
)
def test_only_the_queries_that_a_model_is_judged_by_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, split: str, refused: set[str], refused_measured: set[str]
) -> None:
    """After training queries were added, no word was searched with a model of stage adore until it was trained again."""
    monkeypatch.setattr(generations, "cache_folder", lambda: tmp_path)
    readers = {
        "index@star": ("dev",),
        "adore@tower": ("train",),
        **dict.fromkeys(["retrieve@star", "retrieve_adore@tower", "fuse@hybrid"], ("dev", "test")),
    }
    files = {f"queries/{name}/ids.parquet": digit * 32 for name, digit in (("train", "1"), ("dev", "2"), ("test", "3"))}
    before = {
        f"data/tokens/queries/{name}": folder_digest({"ids.parquet": files[f"queries/{name}/ids.parquet"]})
        for name in ("train", "dev", "test")
    }
    files[f"queries/{split}/ids.parquet"] = "4" * 32
    entries = lock("tokenize", **{"data/tokens": add_listing(tmp_path, files)})
    for stage, splits in readers.items():
        entries[stage]["deps"] += [{"path": path, "md5": before[path]} for name in splits if (path := f"data/tokens/queries/{name}")]
    models = ("star", "tower", "hybrid")
    assert {model for model in models if find_mismatch(entries, model)} == refused
    assert {model for model in models if find_mismatch(entries, model, measured=True)} == refused_measured


def test_parts_are_compared_as_dvc_records_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make = "import sys; from pathlib import Path; Path('whole/part/b').mkdir(parents=True); Path('whole/one').write_text('1'); "
    make += "[Path('whole/part', name).write_text(Path('word').read_text() + name) for name in ('b/c', 'b.d', 'Z')]"
    Path("make.py").write_text(make)
    read = "cmd: python -c 0, deps: [{}], outs: []"
    stages = [f"  part: {{{read.format('whole/part')}}}", f"  one: {{{read.format('whole/one')}}}"]
    stages.insert(0, f"  whole: {{cmd: '{sys.executable} make.py', deps: [word], outs: [whole]}}")
    Path("dvc.yaml").write_text("\n".join(["stages:", *stages, ""]).replace("python -c", f"{sys.executable} -c"))
    for word, stale in (("a", {}), ("b", {"part": "whole/part"})):
        Path("word").write_text(word)
        commands = [["init", "--no-scm", "--quiet"], ["repro"]] if word == "a" else [["repro", "--single-item", "whole"]]
        for command in commands:
            subprocess.run([sys.executable, "-m", "dvc", *command], check=True, capture_output=True)
        assert outdated(read_lock()) == stale


def test_an_artifact_that_lacks_bytes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """faiss opens an IVF file that lacks its last 7 bytes, and finds other documents."""
    monkeypatch.chdir(tmp_path)
    index = tmp_path / "data/indexes/star/index.faiss"
    index.parent.mkdir(parents=True)
    index.write_bytes(b"x" * 1000)
    lock = {"index@star": {"outs": [{"path": "data/indexes/star", "md5": "a.dir", "size": 1000}, {"path": "data/other", "size": 1}]}}
    outs = [Path("data/indexes/star"), Path("data/encoders/star")]
    refuse_truncated(lock, outs)
    index.write_bytes(b"x" * 1001)  # a file that DVC ignores
    refuse_truncated(lock, outs)
    index.write_bytes(b"x" * 993)
    with pytest.raises(
        UserError,
        match=r"^data/indexes/star: found 993 bytes, expected the 1,000 of dvc\.lock: it is corrupt or being made; run",
    ):
        refuse_truncated(lock, outs)
    del lock["index@star"]["outs"][0]["size"]
    refuse_truncated(lock, outs)
