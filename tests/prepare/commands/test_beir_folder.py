"""Any source as a BEIR folder: prepare gives the same of the folder as of the source."""

import io
import json
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.core.errors import UserError
from tasks.core.sources.datasets import parse_dataset
from tasks.core.sources.forgotten import mark
from tasks.prepare.commands import beir_folder
from tasks.prepare.commands.beir_folder import Written, write_beir
from tasks.prepare.readers.kinds import read
from tasks.prepare.source import At, Document, Negative, Qrel, Query, Source
from tests.prepare.conftest import Prepares

Put = Callable[[dict[str, str | bytes]], Path]
TABLES = ("documents.parquet", *(f"{table}/{split}.parquet" for table in ("queries", "qrels") for split in ("train", "dev", "test")))
MSMARCO: dict[str, str | bytes] = {
    "collection.tsv": 'd1\tone\nd2\t \nd 3\tthree ü\nd4\t"four\n',
    "queries.train.tsv": "q1\tasks one\nq 2\tasks\u2028two\nq9\tnobody judged it\n",
    "queries.dev.tsv": "q3\tasks three\nq1\tasks one\n",
    "qrels.train.tsv": "q1\t0\td1\t1\nq 2\t0\td 3\t2\n",
    "qrels.dev.tsv": "q3\t0\td4\t1\nq3\t0\td1\t-1\n",
    "qidpidtriples.train.tsv": "q1\td1\td4\nq1\td1\td 3\nq 2\td 3\td1\n",
}
CSV: dict[str, str | bytes] = {
    "corpus.csv": 'id,title,text\n"d ""1""",T,"two\nlines"\nd2,,"a, b"\n\'d3,, x \n',
    "queries.csv": 'id,text\nq1,"asks\none"\nq2,asks two\n',
    "qrels/train.csv": 'query,doc,grade,weight\nq1,"d ""1""",1,0.1\nq1,d2,2,\n',
    "qrels/test.tsv": "query\tdoc\tgrade\nq2\t'd3\t1\n",
    "negatives.csv": "query,doc\nq1,'d3\n",
}
BEIR: dict[str, str | bytes] = {
    "corpus.jsonl": '{"_id": 1, "title": null, "text": "one"}\n{"_id": "d2", "title": "T", "text": ""}\n',
    "queries.jsonl": '{"_id": "q1", "text": "asks", "answers": ["1", "ü"], "metadata": {"lang": "de", "n": 1.0, "ok": true, "list": [1]}}\n'
    '{"_id": 2, "text": "two"}\n',
    "qrels/train.tsv": "query-id\tcorpus-id\tscore\tweight\nq1\t1\t1\t3.0000001\n",
    "qrels/validation.tsv": "2\td2\t1\n",
    "negatives.tsv": "query-id\tcorpus-id\nq1\td2\n",
}


def write_and_compare(prepare: Prepares, spec: str, folder: Path) -> Written:
    """Write the folder, and prepare it and the source."""
    folder.mkdir()
    written = write_beir(read(parse_dataset(spec)), folder)
    settings = {"ids": "escape", "empty_texts": "drop"}
    first, second = prepare(spec, **settings), prepare(f"beir:{folder}", **settings)
    for name in TABLES:
        assert (first.folder / name).read_bytes() == (second.folder / name).read_bytes(), name
    assert (first.official, first.counts) == (second.official, second.counts)
    columns = [sorted(corpus.folder.glob("columns/*")) for corpus in (first, second)]
    assert [file.read_bytes() for file in columns[0]] == [file.read_bytes() for file in columns[1]]
    return written


@pytest.mark.parametrize(("kind", "files"), [("msmarco", MSMARCO), ("csv", CSV), ("beir", BEIR)])
def test_prepare_gives_the_same_of_the_folder(
    prepare: Prepares, write_files: Put, tmp_path: Path, kind: str, files: dict[str, str | bytes]
) -> None:
    written = write_and_compare(prepare, f"{kind}:{write_files(files)}", tmp_path / "out")
    assert (written.documents, written.empty) == {"msmarco": (4, 1), "csv": (3, 0), "beir": (2, 0)}[kind]
    assert written.negatives == {"msmarco": 3, "csv": 1, "beir": 1}[kind]
    assert written.white == {"msmarco": 2, "csv": 1, "beir": 0}[kind]
    judged = [file.read_text().split("\n")[0].count("\t") for file in sorted((tmp_path / "out/qrels").glob("*.tsv"))]
    assert judged == {"msmarco": [2, 2], "csv": [2, 3], "beir": [2, 3]}[kind], "a column of weights where there are any"


def test_parquet_and_what_prepare_itself_has_written(prepare: Prepares, tmp_path: Path) -> None:
    source = tmp_path / "in"
    (source / "qrels").mkdir(parents=True)
    pq.write_table(pa.table({"_id": [1, 2], "title": [None, "T"], "text": ["one", "two\r\n"]}), source / "corpus.parquet")
    pq.write_table(pa.table({"_id": ["q1", "q2"], "text": ["a", "b"], "answers": [["x"], None]}), source / "queries.parquet")
    judged = {"query-id": ["q1"], "corpus-id": [1], "score": [1.0], "weight": [0.3]}
    pq.write_table(pa.table(judged), source / "qrels/train.parquet")
    pq.write_table(pa.table({"query-id": ["q2"], "corpus-id": [2], "score": [1]}), source / "qrels/validation.parquet")
    pq.write_table(pa.table({"query-id": ["q1"], "corpus-id": [2]}), source / "negatives.parquet")
    write_and_compare(prepare, f"parquet:{source}", tmp_path / "out")
    assert (tmp_path / "out/qrels/train.tsv").read_text() == "query-id\tcorpus-id\tscore\tweight\nq1\t1\t1\t0.3\n"
    corpus = prepare(f"parquet:{source}").folder
    write_and_compare(prepare, f"parquet:{corpus}", tmp_path / "again")


def test_the_default(prepare: Prepares, tmp_path: Path) -> None:
    written = write_and_compare(prepare, "demo", tmp_path / "out")
    assert written.documents == 10_033 and sum(written.queries.values()) > 9_000


def test_documents_alone(write_files: Put, tmp_path: Path) -> None:
    folder = write_files({"corpus.csv": "id,text\nd1,one\n"})
    source = read(parse_dataset(f"csv:{folder}"), needs_qrels=False)
    (tmp_path / "out").mkdir()
    assert write_beir(source, tmp_path / "out").documents == 1
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["corpus.jsonl"]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"queries.dev.tsv": "q3\tasks three\nq1\tother words\n"}, r"queries.dev.tsv:2: query 'q1' has a different text in another split"),
        (
            {"qrels.dev.tsv": "q3\t0\td4\t1\nq9\t0\td4\t1\n"},
            r"qrels.dev.tsv:2: query 'q9' belongs to another split, expected a query of dev",
        ),
    ],
)
def test_splits_that_one_file_of_queries_cannot_serve(
    write_files: Put, tmp_path: Path, files: dict[str, str | bytes], message: str
) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(UserError, match=message):
        write_beir(read(parse_dataset(f"msmarco:{write_files(MSMARCO | files)}")), tmp_path / "out")


def test_ids_and_texts_that_the_files_cannot_hold(write_files: Put, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    table = {"corpus.csv": 'id,text\n"d\t1",one\n', "queries.csv": "id,text\nq1,a\n", "qrels/train.csv": 'query,doc,grade\nq1,"d\t1",1\n'}
    with pytest.raises(UserError, match=r"train.csv:2: found id 'd\\t1', expected no tab or line break"):
        write_beir(read(parse_dataset(f"csv:{write_files({**table})}")), tmp_path / "out")
    half = write_files({**BEIR, "corpus.jsonl": '{"_id": "1", "text": "\\ud800"}\n'})
    with pytest.raises(UserError, match=r"corpus.jsonl:1: the text contains an unpaired surrogate"):
        write_beir(read(parse_dataset(f"beir:{half}")), tmp_path / "out")


def test_memory_does_not_grow_with_the_corpus(tmp_path: Path) -> None:
    def peak_bytes(count: int) -> int:
        def documents() -> Iterator[Document]:
            return (Document(At("x", n), str(n), "", "some words " * 20) for n in range(count))

        def qrels() -> Iterator[Qrel]:
            return (Qrel(At("x", n), "q", str(n), 1) for n in range(count))

        negatives = lambda: (Negative(At("x", n), "q", str(n)) for n in range(count))  # noqa: E731
        source = Source(documents, {"": lambda: iter([Query(At("x", 1), "q", "asks", [])])}, {"train": qrels}, negatives)
        (folder := tmp_path / str(count)).mkdir()
        tracemalloc.start()
        write_beir(source, folder)
        bytes_at_peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return bytes_at_peak

    peak_bytes(100)
    assert peak_bytes(20_000) < peak_bytes(4_000) + 100_000


def test_forgotten_records_stay_out(
    write_files: Put, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(beir_folder, "read_marks", lambda: {mark("document", "d4"): "document"})
    monkeypatch.setattr(
        sys, "stdin", io.StringIO(json.dumps({"source": f"msmarco:{write_files(MSMARCO)}", "folder": str(tmp_path / "out")}))
    )
    (tmp_path / "out").mkdir()
    beir_folder.main()
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["documents"] == 3
    assert "d4" not in "".join(file.read_text() for file in (tmp_path / "out").rglob("*.*sv"))


def test_the_process(write_files: Put, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    question = json.dumps({"source": f"csv:{write_files(CSV)}", "folder": str(tmp_path / "out")})
    command = [sys.executable, "-m", "tasks.prepare.commands.beir_folder"]
    result = subprocess.run(command, input=question, capture_output=True, text=True, check=True)
    assert json.loads(result.stdout.splitlines()[-1]) == {
        "documents": 3, "titled": 1, "white": 1, "empty": 0, "negatives": 1,
        "queries": {"": 2}, "judgments": {"train": 2, "test": 1}, "left_out": {},
    }  # fmt: skip


def test_a_line_break_in_an_id_of_a_negative_is_quoted(tmp_path: Path) -> None:
    ids = ["a\nb", "a\rb", 'a"b', "a\tb", "a b"]
    documents = lambda: (Document(At("x", 1), doc, "", "text") for doc in ["d", *ids])  # noqa: E731
    negatives = lambda: (Negative(At("x", 1), "q", doc) for doc in ids)  # noqa: E731
    queries, qrels = {"": lambda: iter([Query(At("x", 1), "q", "asks", [])])}, {"train": lambda: iter([Qrel(At("x", 1), "q", "d", 1)])}
    (tmp_path / "out").mkdir()
    write_beir(Source(documents, queries, qrels, negatives), tmp_path / "out")
    assert [negative.doc for negative in read(parse_dataset(f"beir:{tmp_path / 'out'}")).negatives()] == ids
