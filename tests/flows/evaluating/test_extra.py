"""Further data sets: what is measured there, when it is measured again, and which mistakes are refused before anything runs."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from dvc.repo import Repo

from flows.evaluating import evaluate, extra, extra_results
from flows.evaluating.evaluate import Plan
from flows.parameters import edit
from flows.parameters.checks import check_file
from flows.pipeline import run
from flows.process.problems import RunFailed
from flows.repository.graph import read_graph
from flows.repository.worktree import SECOND
from tasks.core.errors import Problem, Unavailable
from tasks.core.params.sections import read_yaml
from tasks.core.stage.frozen import freeze

SYSTEMS = ["bm25", "init", "warmup", "taught", "tower", "hybrid"]
FROZEN = ("data/params.json", "data/code.json", "data/source.json")
LOCK: dict[str, Any] = {"train@warmup": {"outs": [{"path": "data/encoders/warmup", "md5": "trained"}]}}


@pytest.fixture
def project(small: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A finished project with one further data set: a copy of its own data."""
    monkeypatch.chdir(small.folder)
    shutil.copytree(small.folder / "beir", small.folder / "copied")
    small.set("extra", {"copied": "beir:copied"})
    freeze()
    return small


def plan() -> Plan:
    return extra.plan_of("copied", check_file(), read_yaml(Path("params.yaml")))[0]


def test_on_the_same_data_every_system_has_its_own_figures(project: Any, run_plan: Callable[[Plan], Path]) -> None:
    metrics = {name: json.loads(project.read(f"data/metrics/{name}.json")) for name in SYSTEMS}
    tree = run_plan(plan())
    assert {file.stem: json.loads(file.read_text()) for file in (tree / "data/metrics").glob("*.json")} == metrics


@pytest.mark.usefixtures("project")
def test_what_the_figures_depend_on_is_in_the_digest() -> None:
    """Compared with DVC's view of which stages the run reaches, and which sections and code they track."""
    extra_plan = plan()
    edit.apply(extra_plan.edits, Path("params.yaml"), lambda _: None)
    with Repo() as repo:
        names = read_graph(repo).upstream_of(extra_plan.targets).stages
        dependencies = [dep for stage in repo.index.stages if stage.addressing in names for dep in stage.params]
    tracked = {file: {key.split(".")[0] for dep in dependencies if dep.def_path == file for key in dep.params} for file in FROZEN}
    assert tracked["data/code.json"] == set(extra.STAGES)
    set_by_run = {"queries", "rounds", "encoders", "fuse"}  # set to what the digest has of encoders and fusions
    assert tracked["data/params.json"] == {*extra.READ, *set_by_run}
    assert tracked["data/source.json"] == {"dataset", "encoder", "encoders"}


def test_any_change_of_what_is_measured_is_another_digest(project: Any) -> None:
    entry, lock = check_file().extra["copied"], LOCK

    def digest(**change: Any) -> str:
        sections = read_yaml(Path("params.yaml")) | change.get("sections", {})
        return extra.digest_of(
            entry.model_copy(update=change.get("entry", {})), change.get("revision", "r"), sections, lock=change.get("lock", lock)
        )

    first = digest()
    assert digest() == first
    encoders = {"train@warmup": {"outs": [{"path": "data/encoders/warmup", "md5": "another"}]}}
    digests = [
        digest(revision="another"),
        digest(entry={"titles": True}),
        digest(lock={**LOCK, **encoders}),
        digest(sections={"text": {"titles": True}}),
        digest(sections={"report": {"alpha": 0.01}}),
    ]
    record = json.loads(project.read("data/runs/hybrid/fusion.json"))
    project.write("data/runs/hybrid/fusion.json", json.dumps(record | {"weight": 0.123}))
    digests.append(digest())
    project.write("data/runs/hybrid/fusion.json", json.dumps(record))
    code = json.loads(project.read("data/code.json"))
    project.write("data/code.json", json.dumps(code | {"encode": "edited"}))
    digests.append(digest())
    assert len({first, *digests}) == len(digests) + 1
    project.write("data/code.json", json.dumps(code | {"report": "edited", "analyses": "edited"}))
    assert digest(sections={"analyses": {}, "failures": {"model": "x"}, "index": {"factory": "PQ8"}}) == first


@pytest.fixture
def runs(project: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """`retemper run` with an up-to-date main graph and fake second trees; returns the names of trees as they are made."""
    names: list[str] = []

    @contextmanager
    def second_run(_: Plan, folder: Path, **__: Any) -> Iterator[Path]:
        names.append(folder.name)
        if (Path("failing")).exists():
            raise RunFailed(Problem("stage", "prepare: failed", 1))
        yield project.folder

    monkeypatch.setattr(extra, "second_run", second_run)
    monkeypatch.setattr(run, "run", lambda _, edit_and_check, **__: edit_and_check())
    return names


def test_every_system_is_measured_once_and_shown(project: Any, runs: list[str]) -> None:
    report, before = project.read("data/report/report.html"), project.state()
    result = project.retemper("run")
    assert (result.status, result.err, runs) == (0, "", ["copied"])
    folder = project.folder / "data/extra/copied"
    for name in SYSTEMS:
        assert (folder / f"metrics/{name}.json").read_bytes() == project.read(f"data/metrics/{name}.json")
        assert (folder / f"values/{name}/test.parquet").read_bytes() == project.read(f"data/values/{name}/test.parquet")
        task = json.loads((folder / f"mteb/{name}.json").read_text())
        metrics = json.loads(project.read(f"data/metrics/{name}.json"))
        assert task["task_name"] == "copied"
        assert {split: row[0]["main_score"] for split, row in task["scores"].items()} == {s: metrics[s]["nDCG@10"] for s in metrics}
        assert f"{metrics['test']['nDCG@10']:.4f}" in result.out
    assert "extra.copied: beir:copied, 60 documents, zero-shot" in result.out
    assert "not measured here: three, crossed, again, which reorder other systems' runs" in result.out
    page = (project.folder / ".retemper/report.html").read_text()
    assert page.count('<h2 id="extra-copied">On copied</h2>') == page.count('<a href="#extra-copied">On copied</a>') == 1
    assert project.read("data/report/report.html") == report
    assert {name: digest for name, digest in project.state().items() if not name.startswith("data/extra/")} == before, "it chooses nothing"

    result = project.retemper("run")
    assert (result.status, runs) == (0, ["copied"]), "nothing has changed"
    assert "extra.copied: beir:copied" in result.out and "measuring" not in result.out
    assert (project.folder / ".retemper/report.html").read_text() == page, "its section is there once"


def test_it_is_measured_again_where_the_data_changed_and_removed_where_it_is_named_no_more(project: Any, runs: list[str]) -> None:
    project.retemper("run")
    queries = project.read("copied/queries.jsonl")
    project.write("copied/queries.jsonl", queries + b"\n")
    result = project.retemper("run", "evaluate")  # stages by name measure nothing else
    assert (result.status, runs, "extra." in result.out) == (0, ["copied"], False)
    assert "On copied" not in (project.folder / ".retemper/report.html").read_text(), "no figures of other data"
    project.retemper("run")
    assert runs == ["copied", "copied"] and "On copied" in (project.folder / ".retemper/report.html").read_text()
    (project.folder / ".retemper/extra/copied").mkdir(parents=True)
    project.set("extra", {})
    result = project.retemper("run")
    assert (result.status, runs) == (0, ["copied", "copied"])
    assert not (project.folder / "data/extra").exists() and not list((project.folder / ".retemper/extra").iterdir())
    assert "On copied" not in (project.folder / ".retemper/report.html").read_text()


def test_one_that_fails_leaves_the_others_and_the_status_says_so(project: Any, runs: list[str]) -> None:
    shutil.copytree(project.folder / "beir", project.folder / "second")
    project.retemper("run")
    project.set("extra", {"copied": "beir:copied", "second": {"source": "beir:second", "relevance": {"test": 2}}})
    project.write("failing", "")
    result = project.retemper("run")
    assert (result.status, result.err, runs) == (1, "retemper: prepare: failed\n", ["copied", "second"])
    assert "extra.copied: beir:copied" in result.out and not (project.folder / "data/extra/second").exists()


def test_runs_in_second_trees_measure_nothing_else(project: Any, runs: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECOND, "1")
    assert project.retemper("run").status == 0 and runs == [] and not (project.folder / "data/extra").exists()


def test_an_unavailable_source_is_needed_only_to_measure(project: Any, runs: list[str]) -> None:
    project.retemper("run")
    (project.folder / "copied").rename(project.folder / "elsewhere")
    result = project.retemper("run")
    assert (result.status, runs) == (0, ["copied"]) and "extra.copied: beir:copied" in result.out
    message = "warning: params.yaml: extra.copied.source: copied: not found, expected a BEIR folder with corpus.jsonl"
    assert message in result.err and result.err.endswith("; continuing with its last known digest\n") and result.err.count("\n") == 1


@pytest.mark.parametrize(
    ("entry", "arrange", "message"),
    [
        ({"new": "beir:nowhere"}, None, "params.yaml: extra.new.source: nowhere: not found, expected a BEIR folder"),
        ({"new": "tsv:copied"}, None, "params.yaml: extra.new.source: dataset 'tsv:copied': unknown kind 'tsv'"),
        ({"new": "beir:copied"}, "qrels", "params.yaml: extra.new.source: copied/qrels: found no qrels, expected train.tsv"),
        ({"new": "beir:copied"}, "qrels/dev.tsv qrels/test.tsv", "extra.new.source: copied: found qrels of train, expected dev or test"),
        ({"bm25": "beir:copied"}, None, "params.yaml: extra.bm25: the name bm25 is reserved"),
        ({"New": "beir:copied"}, None, "params.yaml: extra.New: found the name 'New', expected up to 64 lowercase letters"),
        ({"a": "beir:copied", "b": {"source": " beir:copied"}}, None, "params.yaml: extra.b: found the same as extra.a; remove one"),
        ({"a": {"source": "demo", "relevance": 0}}, None, "params.yaml: extra.a.relevance.dev: found 0; input should be greater"),
        ({"a": {"sources": "demo"}}, None, "params.yaml: extra.a.source: missing; add it"),
    ],
)
def test_a_mistake_is_one_line_before_anything_runs(
    project: Any, runs: list[str], entry: dict[str, Any], arrange: str | None, message: str
) -> None:
    for name in (arrange or "").split():
        path = project.folder / "copied" / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    project.set("extra", entry)
    before = project.state()
    result = project.retemper("run")
    assert (result.status, result.out, result.err.count("\n"), runs) == (2, "", 1, [])
    assert message in result.err
    assert project.state() == before


def test_settings_of_a_data_set_are_its_own(project: Any) -> None:
    settings = {"titles": True, "ignore_identical_ids": True, "relevance": {"test": 2}, "document_length": 16, "drop": True}
    project.set("extra", {"copied": {"source": "beir:copied", **settings}})
    project.set("tokenize.query_prefix", "as trained: ")
    edits = set(plan().edits)
    expected = {"text.titles=true", "retrieve.ignore_identical_ids=true", 'evaluate.relevance={"dev": 1, "test": 2}'}
    expected |= {"tokenize.document_length=16", "tokenize.query_length=32", 'prepare.empty_texts="drop"'}
    expected |= {'tokenize.query_prefix="as trained: "', f'dataset.source="beir:{project.folder / "copied"}"', "adore={}"}
    assert expected <= edits
    project.set("extra", {"copied": "beir:copied"})
    assert {"text.titles=false", 'evaluate.relevance={"dev": 1, "test": 1}', "tokenize.document_length=24"} <= set(plan().edits)


@pytest.mark.usefixtures("runs")
def test_a_data_set_that_goes_away_in_between_is_one_line(project: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def second_run(*_: Any, **__: Any) -> Any:
        raise Unavailable("copied: not found")

    monkeypatch.setattr(extra, "second_run", second_run)
    result = project.retemper("run")
    assert (result.status, result.err) == (2, "retemper: extra.copied: copied: not found\n")


def test_names_are_those_of_the_evaluation() -> None:
    assert set(evaluate.SPLITS) == set(extra_results.REPORTED)
