"""Records of batches: CSV is read as prepare reads it; malformed lines are named, and reading goes on."""

import gzip
from pathlib import Path

import pytest

from flows.batches.records import documents, files_of, files_without_header, judgments, queries
from tasks.core.errors import UserError
from tasks.prepare.readers import csv_tables

FORMS = {
    "commas": {
        "corpus.csv": 'text,extra,docid\n"one, two",x,d1\n\n"say ""three""\nfour",y,d2\n',
        "queries.tsv": "qid\tquery\nq1\twhat is one\n",
        "qrels/dev.csv": "grade,query,pid,weight\n2,q1,d1,\n1,q1,d2,0.25\n",
    },
    "semicolons": {
        "corpus.csv": '\ufeff;;\r\ntext;"extra, or not";docid\r\none, two;x;d1\r\n;;\r\n"say ""three"";\r\nfour";y;d2\r\n',
        "queries.csv": "\ufeffsep=;\r\nqid;query;said, by whom\r\nq1;what is one;x\r\n",
        "qrels/dev.csv": "grade,query,pid,weight\n2,q1,d1,\n1,q1,d2,0.25\n",
    },
}


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("texts", FORMS.values(), ids=list(FORMS))
def test_csv_is_read_as_prepare_reads_it(tmp_path: Path, compressed: bool, texts: dict[str, str]) -> None:
    (tmp_path / "qrels").mkdir()
    for name, text in texts.items():
        file = tmp_path / name
        if compressed:
            file.with_name(f"{file.name}.gz").write_bytes(gzip.compress(text.encode()))
        else:
            file.write_text(text)
    source, files = csv_tables.read(tmp_path), files_of(tmp_path)
    assert [(str(record.at), *record[1:]) for record in source.documents()] == [tuple(record) for record in documents(files, pytest.fail)]
    assert [(str(record.at), record.id, record.text, bool(record.answers)) for record in source.queries[""]()] == [
        tuple(record) for record in queries(files, pytest.fail)
    ]
    assert [tuple(record)[1:] for record in source.qrels["dev"]()] == [tuple(record)[1:] for record in judgments(files, "dev", pytest.fail)]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("q1\td1", "found 2 columns ('q1\\td1'), expected 3"),
        ("q1\td1\tx", "found grade 'x', expected an integer"),
        ("\td1\t1", "found query-id '' and corpus-id 'd1'"),
        ("q1\td1\t1\t0.5", "found 4 columns"),
    ],
)
def test_a_wrong_judgment_is_named_and_reading_goes_on(tmp_path: Path, line: str, message: str) -> None:
    text = f"query-id\tcorpus-id\tscore\n{line}\nq2\td2\t1\n"
    assert problem_in(tmp_path / "qrels/dev.tsv", text).startswith(f"{tmp_path}/qrels/dev.tsv:2: {message}")


def problem_in(file: Path, text: str) -> str:
    """The only problem with a file of qrels whose judgment of q2 is read."""
    file.parent.mkdir()
    file.write_text(text)
    problems: list[str] = []
    assert [judgment.query for judgment in judgments(files_of(file.parents[1]), "dev", problems.append)] == ["q2"]
    (problem,) = problems
    return problem


@pytest.mark.parametrize("row", ['q1,"d1\tx",1', 'q1,"a\nb",1', '"q\t1",d1,1'])
def test_an_id_in_csv_that_would_shift_columns_of_the_merge(tmp_path: Path, row: str) -> None:
    problem = problem_in(tmp_path / "qrels/dev.csv", f"query-id,corpus-id,score\n{row}\nq2,d2,1\n")
    assert problem.startswith(f"{tmp_path}/qrels/dev.csv:2: found id ")
    assert problem.endswith(", expected a non-empty one without tabs, line ends, or NUL")


@pytest.mark.parametrize("grade", ["1.0", "-1e3", "nan"])
def test_a_wrong_grade_in_the_first_line_is_no_header(tmp_path: Path, grade: str) -> None:
    expected = f"found grade '{grade}', expected an integer up to 1,000 (0 not relevant, 1 or more relevant)"
    assert problem_in(tmp_path / "qrels/dev.tsv", f"q1\td1\t{grade}\nq2\td2\t1\n") == f"{tmp_path}/qrels/dev.tsv:1: {expected}"


def test_columns_in_another_order(tmp_path: Path) -> None:
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels/train.tsv").write_text("corpus_id\tquery_id\tscore\n1\t2\t1\n")
    problems: list[str] = []
    assert list(judgments(files_of(tmp_path), "train", problems.append)) == []
    assert problems == [
        f"{tmp_path}/qrels/train.tsv:1: found columns corpus_id, query_id, score, expected query-id, corpus-id, score in this order"
    ]


def test_weights_and_wrong_ones(tmp_path: Path) -> None:
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels/train.tsv").write_text(
        "query-id\tcorpus-id\tscore\tweight\nq1\td1\t1\t0.5\nq1\td2\t1\t-1\nq1\td3\t1\tnan\nq1\td4\t1\t1e-50\n"
    )
    problems: list[str] = []
    assert [judgment.weight for judgment in judgments(files_of(tmp_path), "train", problems.append)] == [0.5]
    assert [line.partition(": ")[2] for line in problems] == [
        f"found weight '{cell}', expected a number above 0 (1e-30 to 1e30), such as 0.5" for cell in ("-1", "nan", "1e-50")
    ]
    (tmp_path / "qrels/train.tsv").write_text("query-id\tcorpus-id\tscore\tweight \nq1\td1\t1\t0.5\n")
    assert list(judgments(files_of(tmp_path), "train", problems.append)) == [], "prepare does not take this header for one with weights"
    assert "found 4 columns" in problems[-1]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("corpus.jsonl", b'{"_id": "d1", "text": "\xff"}\n', ":1: not UTF-8 at byte 24"),
        ("corpus.jsonl", b'{"_id": "d1", "text": 3}\n', ":1: found text 3, expected a string"),
        ("corpus.jsonl", b'{"_id": "d1", "text": "x", "_id": "d2"}\n', ":1: found the key '_id' twice in an object, expected it once"),
        ("corpus.jsonl", b'{"_id": true, "text": "x"}\n', ":1: found _id True"),
        ("corpus.jsonl", b'{"_id": "d", "text": "\\ud800"}\n', ":1: the text contains an unpaired surrogate"),
        ("corpus.jsonl", b'{"_id": "d\\u0000", "text": "x"}\n', ":1: found id 'd\\x00', expected a non-empty one without tabs, line ends"),
        ("corpus.jsonl", b'{"_id": "d", "title": 1, "text": "x"}\n', ":1: found title 1"),
        ("corpus.jsonl.gz", gzip.compress(b'{"_id": "d1", "text": "x"}\n' * 9, mtime=0)[:40], "the gzip file is truncated or corrupt here"),
        ("corpus.csv", b'id,text\nd1,"x\n', ":2: invalid CSV in the row that begins here"),
        ("corpus.csv", b"id,body,text\nd1,x\n", ":2: found 2 cells, expected 3"),
        ("corpus.csv", b"id;body;text\nd1;x\n", ":2: found 2 cells, expected 3"),
        ("corpus.csv", b"id;text,body\nd1;x\n", ":1: found commas and semicolons in the header ('id;text,body'), expected one of them"),
        ("corpus.csv", b"name,text\nd1,x\n", ":1: found columns name, text, expected _id or id"),
    ],
)
def test_what_is_wrong_with_a_document(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    problems: list[str] = []
    list(documents(files_of(tmp_path), problems.append))
    assert problems and message in problems[0] and str(tmp_path / name) in problems[0]


def test_two_forms_in_one_batch(tmp_path: Path) -> None:
    (tmp_path / "corpus.csv").write_text("id,text\n")
    (tmp_path / "queries.jsonl").write_text("")
    with pytest.raises(UserError, match=r"queries.jsonl: corpus.csv exists too, expected either JSON lines or CSV"):
        files_of(tmp_path)
    (tmp_path / "queries.jsonl").unlink()
    (tmp_path / "corpus.tsv").write_text("id\ttext\n")
    with pytest.raises(UserError, match=r"corpus.csv: corpus.tsv exists too"):
        files_of(tmp_path)


def test_json_lines_beside_negatives_in_csv_are_two_forms(tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_text("")
    (tmp_path / "negatives.csv").write_text("query,doc\n")
    with pytest.raises(UserError, match=r"corpus.jsonl: negatives.csv exists too, expected either JSON lines or CSV"):
        files_of(tmp_path)
    assert files_of(tmp_path, "beir").all() == [tmp_path / "corpus.jsonl"]


def test_a_column_said_twice_and_qrels_that_would_not_be_read(tmp_path: Path) -> None:
    (tmp_path / "corpus.csv").write_text("id,text,text\nd1,a,b\n")
    problems: list[str] = []
    assert list(documents(files_of(tmp_path), problems.append)) == []
    assert problems == [f"{tmp_path}/corpus.csv:1: found column text 2 times, expected it once"]
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels/dev.TSV").touch()
    with pytest.raises(UserError, match=r"dev.TSV: found qrels that are not read, expected dev.csv or dev.tsv"):
        files_of(tmp_path)


def test_a_table_of_delimiters_alone_has_no_header(tmp_path: Path) -> None:
    (tmp_path / "corpus.csv").write_text("\ufeff;;\r\n;;\r\n", encoding="utf-8")
    assert [path.name for path in files_without_header(files_of(tmp_path))] == ["corpus.csv"]
