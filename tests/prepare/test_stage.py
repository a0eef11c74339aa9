"""The entry point: outs are complete or absent and always the same bytes; an error is one line and status 2."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tasks.core.files import folder_digest
from tasks.core.params.sections import read_yaml

ROOT = Path(__file__).resolve().parents[2]
OUTS = ("corpus", "negatives/none", "negatives/random", "negatives/official", "weights")


def run(folder: Path, seed: str = "0", **params: object) -> subprocess.CompletedProcess[str]:
    """The stage, with `params` in place of sections of params.yaml."""
    path = folder / "params.yaml"
    path.write_text(json.dumps(read_yaml(path) | params))
    outs = [
        part
        for flag, name in zip(("--out", "--none", "--random", "--official", "--weights"), OUTS, strict=True)
        for part in (flag, f"data/{name}")
    ]
    command = [sys.executable, "-m", "tasks.prepare", *outs]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def project(tmp_path: Path, tiny_corpus: Any) -> Path:
    (tmp_path / "params.yaml").write_text(f"dataset: {{source: 'beir:{tiny_corpus.beir}'}}\nprepare: {{}}\n")
    return tmp_path


def test_source_from_params_gives_the_same_bytes_each_time(project: Path, tiny_corpus: Any) -> None:
    digests = []
    for seed in ("1", "2"):
        result = run(project, seed=seed)
        assert result.returncode == 0, result.stderr
        digests.append([folder_digest(project / "data" / name) for name in OUTS])
    assert digests[0] == digests[1]
    lines = result.stdout.splitlines()
    assert lines[0] == f"beir:{tiny_corpus.beir}"
    assert lines[1].split()[:2] == ["documents", "60"]
    assert [line.split()[:2] for line in lines[3:]] == [["train", "40"], ["dev", "10"], ["test", "10"]]
    assert sorted(path.name for path in (project / "data").iterdir()) == ["corpus", "negatives", "weights"]


def test_a_missing_source_is_one_line(project: Path) -> None:
    result = run(project, dataset={"source": "beir:nowhere"})
    assert (result.returncode, result.stdout) == (2, "")
    assert (
        result.stderr.startswith("retemper: nowhere: not found, expected a BEIR folder with corpus.jsonl")
        and result.stderr.count("\n") == 1
    )


def test_a_late_error_leaves_no_out(project: Path, tmp_path: Path) -> None:
    """The bad negative comes after a complete corpus of 20,000 good documents."""
    folder = tmp_path / "msmarco"
    folder.mkdir()
    (folder / "collection.tsv").write_text("".join(f"{i}\tpassage {i}\n" for i in range(20_000)))
    (folder / "queries.train.tsv").write_text("1\tquestion\n")
    (folder / "qrels.train.tsv").write_text("1\t0\t1\t1\n")
    (folder / "qidpidtriples.train.full.tsv").write_text("1\t1\t2\n1\t1\tx\n")
    result = run(project, dataset={"source": "msmarco:msmarco"})
    last = result.stderr.splitlines()[-1]
    assert (result.returncode, result.stdout) == (2, "")
    assert last.startswith("retemper: msmarco/qidpidtriples.train.full.tsv:2: document 'x' is not in the dataset; add it")
    assert "Traceback" not in result.stderr
    assert not [path for path in (project / "data").rglob("*") if path.is_file()]
    assert run(project, prepare={"official_depth": 0}).returncode == 0, "negatives of which none are kept are not read"
    assert sorted(path.name for path in (project / "data").iterdir()) == ["corpus", "negatives", "weights"]


def test_an_unknown_key_is_refused(project: Path) -> None:
    (project / "params.yaml").write_text("dataset: {source: demo}\nprepare: {unknown_document: drop}\n")
    result = run(project)
    assert result.returncode == 2
    assert "params.yaml: prepare.unknown_document: unknown key, expected one of unknown_documents" in result.stderr
