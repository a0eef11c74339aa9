"""Queries are drawn in the groups of the judgments that the systems were measured with, wherever the working tree is."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from ruamel.yaml import YAML

from flows.experiments import choice, store
from flows.experiments.choice import Tried
from flows.experiments.compare import compare
from flows.repository.git import git
from tasks.core.tables.parquet import write_table
from tasks.core.tables.schemas import QRELS
from tests.flows.experiments.test_compare import QUERIES_OF, Project, random_scores

HERE = Path("data/corpus/qrels/dev.parquet")
SYSTEMS = {"star": (1.0, "c", random_scores(1)), "warmup": (2.0, "c", random_scores(2))}


def write_qrels(path: Path, per_document: int) -> bytes:
    """Judgments in which `per_document` queries share each document."""
    rows = [QUERIES_OF, [f"d{number // per_document}" for number in range(len(QUERIES_OF))], [1] * len(QUERIES_OF)]
    write_table(path, QRELS, [pa.table(rows, schema=QRELS)])
    return path.read_bytes()


def commit_measured(project: Project, digest: str) -> str:
    """A commit whose systems were measured with the judgments of `digest`."""
    project.commit(SYSTEMS)
    lock: Any = YAML(typ="safe").load(Path("dvc.lock").read_text())
    for name, entry in lock["stages"].items():
        if name.startswith("evaluate@"):
            entry["deps"].append({"path": str(HERE), "md5": digest})
    with Path("dvc.lock").open("w") as file:
        YAML().dump(lock, file)
    git("commit", "--quiet", "--amend", "-a", "-m", "measured", folder=project.folder)
    return git("rev-parse", "HEAD", folder=project.folder)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    project = Project(tmp_path / "project")
    monkeypatch.chdir(project.folder)
    return project


def compared(capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """The number of groups in a comparison of the last commit's systems, and the note on them."""
    compare(["HEAD:star", "HEAD:warmup"], "dev", None, shown=0, as_json=True)
    found = json.loads(capsys.readouterr().out)
    compare(["HEAD:star", "HEAD:warmup"], "dev", None, shown=0, as_json=False)
    text = capsys.readouterr().out
    assert (f"note: {found['note']}\n" in text) if found["note"] else "note: " not in text
    return found["systems"][0]["groups"], found["note"]


def test_judgments_come_from_the_cache(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    commit_measured(project, project.add_object(write_qrels(project.folder / "other.parquet", 4)))
    assert compared(capsys) == (10, ""), "data/corpus is not checked out"
    write_qrels(HERE, 1)
    assert compared(capsys) == (10, ""), "data/corpus is of other data"


def test_missing_judgments_are_said(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    commit_measured(project, "0" * 32)
    theirs = "the judgments of dev that the systems were measured with are not in this clone, so"
    remedy = "; to test with theirs: dvc fetch --all-commits"
    assert compared(capsys) == (40, f"{theirs} queries are tested as independent{remedy}")
    write_qrels(HERE, 2)
    assert compared(capsys) == (20, f"{theirs} the groups of queries are those of {HERE}{remedy}")
    Path("params.yaml").write_text("report: {metric: RR@10, draws: queries}\n")
    assert compared(capsys) == (40, "")


def test_a_sweep_tests_with_the_judgments_of_its_points(project: Project) -> None:
    """Points run in trees of their own; the working tree may have no data."""
    digest = project.add_object(write_qrels(project.folder / "other.parquet", 40))
    for one, note in ((digest, ""), ("0" * 32, "; the judgments of dev that")):
        points = []
        for name in ("1", "2"):
            SYSTEMS["star"] = (1.0, "c", random_scores(int(name)))
            stored = store.read("x", commit_measured(project, one), "", cache=Path(".dvc/cache"))
            points.append(Tried((("lr", name),), [], [], {"report": {"metric": "RR@10"}}, stored))
        line = choice.choose(points, None, targets=(), check=lambda _: None)[1]
        assert ("(p = 1, " in line) == (one == digest), "all queries share a document, so nothing can be tested"
        assert line.partition(" queries)")[2].startswith(note) and bool(note) == ("judgments" in line)
