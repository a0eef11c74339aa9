"""`retemper compare --query` over a repository written by hand: every figure is read off the lists below."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from flows.cli.main import main
from flows.experiments.one_query import show
from flows.repository.git import git
from tasks.core.errors import UserError
from tasks.core.statistics.judged import click_id
from tasks.core.tables.ids import IDS
from tasks.core.tables.parquet import write_table
from tasks.core.tables.schemas import DOCUMENTS, QRELS, QUERIES
from tests.flows.experiments.test_compare import Project

CLICK_1 = click_id("1")

DOCS = [(f"d{n:02}", "" if n % 2 else f"title {n}", f"text {n} \x1b[2J" + " and more" * 30) for n in range(14)]
STAR = [f"q1 Q0 d{n:02} {n + 1} {20 - n} star\n" for n in range(12)]  # d00, d01, ...
WARMUP = ["q2 Q0 d00 1 1 warmup\n", "q1 Q0 d13 1 0.5 warmup\n", "q1 Q0 gone 2 0.25 warmup\n", "q1 Q0 d02 3 0.125 warmup\n"]
GRADES = [("q1", "d02", 1), ("q1", "d11", 2), ("q1", "d13", 0), ("q1", "gone", 1), ("q2", "d00", 1)]
VALUES = {"q1": 1 / 3, "q2": 0.0}


def write_rows(path: str, schema: pa.Schema, rows: list[tuple[object, ...]]) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    write_table(Path(path), schema, [pa.table([list(column) for column in zip(*rows, strict=True)], schema=schema)])


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    project = Project(tmp_path / "project")
    monkeypatch.chdir(project.folder)
    runs = {"star": "".join(STAR), "warmup": "".join(WARMUP)}
    project.commit({"star": (1.0, "c", VALUES), "warmup": (1.0, "c", {"q1": 0.5, "q2": 1.0})}, runs)
    write_rows("data/corpus/documents.parquet", DOCUMENTS, list(DOCS))
    write_rows("data/corpus/qrels/dev.parquet", QRELS, list(GRADES))
    queries = [("q1", "what \x1b[2J\nis", []), ("q2", "two", []), ("q3", "unjudged", []), (CLICK_1, "of a log", [])]
    write_rows("data/corpus/queries/dev.parquet", QUERIES, list(queries))
    write_rows("data/corpus/queries/test.parquet", QUERIES, [("t1", "of test", [])])
    write_rows("data/corpus/queries/train.parquet", QUERIES, [("q9", "of train", [])])
    return project


def write_tokens(lengths: dict[str, list[int]], max_length: int) -> None:
    """Write a token folder; `lengths`: each document's passage lengths."""
    folder, sizes = Path("data/tokens/documents"), [size for rows in lengths.values() for size in rows]
    write_rows(str(folder / "ids.parquet"), IDS, [(doc,) for doc in lengths])
    np.zeros(sum(sizes), np.uint16).tofile(folder / "tokens.bin")
    np.save(folder / "offsets.npy", np.cumsum([0, *sizes]))
    np.save(folder / "owners.npy", np.repeat(np.arange(len(lengths), dtype=np.int32), [len(rows) for rows in lengths.values()]))
    meta = {"dtype": "uint16", "pad": 0, "max_length": max_length, "prefix": "", "tokenizer": "x"}
    (folder / "meta.json").write_text(json.dumps(meta))


@pytest.mark.usefixtures("project")
def test_lists_values_and_ranks_of_relevant_documents(capsys: pytest.CaptureFixture[str]) -> None:
    write_tokens({"d02": [5], "d11": [8, 8], "d13": [8]}, 8)
    assert main(["compare", "star", "HEAD:warmup", "--query", "q1", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["split"], report["measure"], report["query"], report["text"]) == ("dev", "RR@10", "q1", "what \x1b[2J is")
    star, warmup = report["systems"]
    assert (star["name"], star["value"], star["listed"]) == ("star", pytest.approx(1 / 3), 12)
    assert [(hit["rank"], hit["score"], hit["id"]) for hit in star["top"]] == [(n + 1, 20 - n, f"d{n:02}") for n in range(10)]
    assert [(hit["id"], hit["grade"]) for hit in star["top"] if hit["relevant"]] == [("d02", 1)]
    assert (star["top"][0]["text"], len(star["top"][1]["text"]) <= 100) == ("title 0", True)
    assert star["top"][1]["text"].startswith("text 1 ")
    assert (warmup["name"], warmup["value"], warmup["listed"]) == ("HEAD:warmup", 0.5, 3)
    assert [(hit["id"], hit["grade"], hit["relevant"]) for hit in warmup["top"]] == [
        ("d13", 0, False), ("gone", 1, True), ("d02", 1, True),
    ]  # fmt: skip
    assert warmup["top"][1]["text"] is None
    assert [(document["id"], document["grade"], document["ranks"]) for document in report["relevant"]] == [
        ("d11", 2, [12, None]), ("d02", 1, [3, 3]), ("gone", 1, [None, 2]),
    ]  # fmt: skip
    assert [(document["tokens"], document["full"]) for document in report["relevant"]] == [(16, True), (5, False), (None, None)]


@pytest.mark.usefixtures("project")
def test_what_is_printed_is_for_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    write_tokens({"d02": [5], "d11": [8]}, 8)
    show(["star", "warmup"], "q1", split="dev", measure=None, as_json=False)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["dev", "q1:", "what", r"\x1b[2J", "is"] in lines
    assert ["star", "0.3333"] in lines and ["warmup", "0.5000"] in lines
    assert ["3", "18.0000", "d02", "1*", "title", "2"] in lines
    assert ["1", "0.5000", "d13", "0", "text", "13", r"\x1b[2J"] in [line[:7] for line in lines]
    missing = ["not", "among", "the", "first", "3"]
    assert ["d11", "2", "12", *missing, "8", "(full)", "text", "11"] in [line[:12] for line in lines]
    assert ["gone", "1", *["not", "among", "the", "first", "12"], "2", *["(not", "in", "this", "working", "tree's", "corpus)"]] in lines


@pytest.mark.usefixtures("project")
def test_a_run_file_and_a_system_that_finds_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    Path("own.trec").write_text("q2 Q0 d01 1 1.5 x\nq2 Q0 d00 2 1.5 x\nq2 Q0 d04 3 1 x\n")
    show(["star", "own.trec"], "q2", split="dev", measure=None, as_json=True)
    star, own = json.loads(capsys.readouterr().out)["systems"]
    assert (star["listed"], star["top"], own["value"]) == (0, [], 0.5)
    assert [(hit["id"], hit["score"]) for hit in own["top"]] == [("d01", 1.5), ("d00", 1.5), ("d04", 1.0)], "trec_eval's order"
    show(["star", "own.trec"], "q3", split="dev", measure=None, as_json=False)
    output = capsys.readouterr().out
    show(["star"], CLICK_1, split="dev", measure=None, as_json=False)
    assert "measured apart, with the other clicks" in capsys.readouterr().out
    assert "star\nfinds nothing" in output and "not measured" in output and "no document is judged relevant (grade 1 or more)" in output


def test_a_revision_of_another_corpus_is_told(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    lock = project.folder / "dvc.lock"
    lock.write_text(lock.read_text().replace("outs:", "outs:\n    - {path: data/corpus, md5: old}", 1))
    git("commit", "--quiet", "-am", "corpus", folder=project.folder)
    lock.write_text(lock.read_text().replace("md5: old", "md5: new"))
    show(["star", "HEAD:star"], "q1", split="dev", measure=None, as_json=True)
    assert json.loads(capsys.readouterr().out)["notes"] == [
        "HEAD:star: made from another data/corpus; texts and judgments here are this working tree's"
    ]


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    ("query", "line"),
    [
        ("q\x1b7", r"compare --query q\x1b7: found no such query among the 4 of dev, expected an id of one of them (q1, q2, q3, ...)"),
        ("t1", "compare --query t1: found a query of test, expected one of dev; add --split test"),
        ("q9", "compare --query q9: found a query of train, expected one of dev; systems are not measured on it"),
    ],
)
def test_an_unknown_query_is_one_line(query: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["compare", "star", "warmup", "--query", query])
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", f"retemper: {line}\n")


@pytest.mark.usefixtures("project")
def test_one_query_and_a_number_of_queries_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["compare", "star", "warmup", "--query", "q1", "--queries", "5"])
    assert capsys.readouterr().err == (
        "retemper: compare --query q1 --queries 5: found both, expected one query or those that differ most; drop one\n"
    )


def test_a_run_that_the_cache_lacks_is_one_line(project: Project) -> None:
    for path in project.objects.rglob("*"):
        if path.is_file() and path.read_bytes() == "".join(WARMUP).encode():
            path.unlink()
    with pytest.raises(UserError, match="compare warmup: data/runs/warmup is missing from this clone's cache, or corrupt; run retemper"):
        show(["star", "warmup"], "q1", split="dev", measure=None, as_json=False)
