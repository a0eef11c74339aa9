"""A list of suspects, judged in a spreadsheet, becomes the qrels of a batch; wrong lines are refused with their number."""

import csv
import json
from pathlib import Path

import pyarrow as pa
import pytest

from flows.batches.merge import merge_folders
from flows.feedback.judgments import take_in
from flows.intake.inbox import take_in as take_batches
from flows.intake.settings import Intake
from tasks.core.errors import UserError
from tasks.core.tables.parquet import write_table
from tasks.core.tables.schemas import QUERIES
from tasks.failures.suspects import Suspect, write_suspects
from tasks.prepare.readers.beir import qrels


@pytest.fixture
def suspects(tmp_path: Path) -> Path:
    """What stage failures writes, with texts that need quotes."""
    path = tmp_path / "suspects/dev.csv"
    rows = [Suspect(query, doc, {"bm25": 1, "star": 2}) for query, doc in (("q1", "d1"), ("q1", "d,2"), ("q2", "d3"))]
    write_suspects(path, rows, {"q1": 'what is "it"?', "q2": "two\nlines"}, dict.fromkeys(("d1", "d,2", "d3"), ("Title, a", "text\n")))
    return path


def judge(path: Path, *scores: str) -> None:
    with path.open(newline="") as handle:
        header, *rows = list(csv.reader(handle))
    with path.open("w", newline="") as handle:
        csv.writer(handle).writerows([header, *([*row[:2], score, *row[3:]] for row, score in zip(rows, scores, strict=True))])


def test_judged_rows_join_the_data_set(suspects: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    judge(suspects, "1", "0", "")
    assert take_in(suspects, Path("inbox/judged"), "dev") == (2, 1)
    assert [tuple(row[1:4]) for row in qrels(Path("inbox/judged/qrels/dev.tsv"))] == [("q1", "d1", 1), ("q1", "d,2", 0)]
    data = Path("data set")
    (data / "qrels").mkdir(parents=True)
    (data / "corpus.jsonl").write_text("".join(json.dumps({"_id": doc, "text": "x"}) + "\n" for doc in ("d1", "d,2", "d3")))
    (data / "queries.jsonl").write_text('{"_id": "q1", "text": "what"}\n')
    (data / "qrels/dev.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td3\t1\n")
    assert take_batches(Intake(inbox="inbox", mode="append"), "beir:data set", Path()).spec.startswith("beir:")
    merge_folders([data, Path("inbox/judged")], Path("united"), Path("united.json"))
    assert [tuple(row[1:4]) for row in qrels(Path("united/qrels/dev.tsv"))] == [("q1", "d3", 1), ("q1", "d1", 1), ("q1", "d,2", 0)]


@pytest.mark.parametrize(("dev", "test", "refused"), [(["q1"], ["q2"], True), ([], [], False), (["q1", "q2"], ["q2"], False)])
def test_a_query_of_the_other_split_is_refused(
    dev: list[str], test: list[str], refused: bool, suspects: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless it is in both already, or new: what people typed."""
    monkeypatch.chdir(tmp_path)
    for split, ids in (("dev", dev), ("test", test)):
        rows = [{"id": query, "text": "x", "answers": None} for query in ids]
        write_table(Path(f"data/corpus/queries/{split}.parquet"), QUERIES, [pa.RecordBatch.from_pylist(rows, QUERIES)])
    judge(suspects, "1", "0", "1")
    if not refused:
        assert take_in(suspects, Path("judged"), "dev") == (3, 0)
        return
    with pytest.raises(UserError, match=r"dev\.csv: found query q2, which is in test, expected queries of dev; use --split test$"):
        take_in(suspects, Path("judged"), "dev")
    assert not Path("judged").exists()


def test_a_made_query_is_refused(suspects: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for corpus, ids in (("corpus", ["q1"]), ("pseudo", ["q1", "q2"])):
        rows = [{"id": query, "text": "x", "answers": None} for query in ids]
        write_table(Path(f"data/{corpus}/queries/dev.parquet"), QUERIES, [pa.RecordBatch.from_pylist(rows, QUERIES)])
    judge(suspects, "1", "0", "1")
    with pytest.raises(
        UserError, match=r"dev\.csv: found query q2, which was made from a document, expected queries of the source; collect"
    ):
        take_in(suspects, Path("judged"), "dev")
    judge(suspects, "1", "0", "")
    assert take_in(suspects, Path("judged"), "dev") == (2, 1)


def test_a_spreadsheet_may_write_semicolons(suspects: Path, tmp_path: Path) -> None:
    with suspects.open(newline="") as handle:
        header, *rows = list(csv.reader(handle))
    with suspects.open("w", newline="", encoding="utf-8-sig") as handle:
        csv.writer(handle, delimiter=";").writerows([header, *([*row[:2], "1", *row[3:]] for row in rows)])
    for batch in ("batch", "told"):
        assert take_in(suspects, tmp_path / batch, "dev") == (3, 0)
        assert [tuple(row[1:4]) for row in qrels(tmp_path / batch / "qrels/dev.tsv")] == [
            ("q1", "d1", 1),
            ("q1", "d,2", 1),
            ("q2", "d3", 1),
        ]
        suspects.write_text(f"sep=;\n{suspects.read_text(encoding='utf-8-sig')}", encoding="utf-8")
    suspects.write_text("sep=;\nquery-id;corpus-id;score\nq1;d1;x\n")
    with pytest.raises(UserError, match=r":3: found score 'x'"):
        take_in(suspects, tmp_path / "other", "dev")


def test_a_batch_is_not_overwritten(suspects: Path, tmp_path: Path) -> None:
    judge(suspects, "1", "1", "1")
    take_in(suspects, tmp_path / "batch", "test")
    with pytest.raises(UserError, match=r"batch/qrels/test\.tsv: already exists, expected a new batch"):
        take_in(suspects, tmp_path / "batch", "test")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("query-id;corpus-id;score\nq1;d1;1;x\n", "dev.csv:2: found more cells than columns, expected a cell with semicolons in quotes"),
        ("query-id;corpus-id,score\nq1;d1;1\n", "dev.csv:1: found commas and semicolons in the header"),
        ("query-id,score\nq1,1\n", "dev.csv:1: no column corpus-id, expected a header with query-id, corpus-id, score"),
        ("query-id,corpus-id,score\nq1,d1,\n", "dev.csv: no row has a score, expected 0"),
        ("query-id,corpus-id,score\nq1,d1,yes\n", "dev.csv:2: found score 'yes', expected 0"),
        ("query-id,corpus-id,score\nq1,d1,-1\n", "dev.csv:2: found score '-1'"),
        ("query-id,corpus-id,score\nq1,,1\n", "dev.csv:2: found query-id 'q1' and corpus-id '', expected two ids"),
        ('query-id,corpus-id,score\n"q\t1",d1,1\n', "dev.csv:2: found query-id"),
        (
            'query-id,corpus-id,score\nq1,"d\n1",1\n',
            "dev.csv:3: found query-id 'q1' and corpus-id 'd\\n1', expected two ids without tabs, line ends",
        ),
        ("query-id,corpus-id,score\nq1,d\0,1\n", "dev.csv:2: found query-id 'q1' and corpus-id 'd\\x00'"),
        ("query-id,corpus-id,score\nq1,d1,1001\n", "dev.csv:2: found score '1001', expected 0 (not relevant), 1, or more, up to 1,000"),
        ("query-id,corpus-id,score\nq1,d1,١\n", "dev.csv:2: found score '١'"),
        ("query-id,corpus-id,score\nq1,d1,1" + 4400 * "0" + "\n", "dev.csv:2: found score '1000"),
        ("query-id,corpus-id,score\nq1,d,2,1\n", "dev.csv:2: found more cells than columns"),
        ('query-id,corpus-id,score,text\nq1,d1,1,"one\nq2,d2,1,two\n', "dev.csv:2: cannot be read (unexpected end of data)"),
        ("query-id,corpus-id,score\nq1,d1,1\nq1,d1,0\n", "dev.csv:3: found score 0 for q1 and d1, 1 before"),
    ],
)
def test_wrong_lines_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "dev.csv"
    path.write_text(text)
    with pytest.raises(UserError) as refusal:
        take_in(path, tmp_path / "batch", "dev")
    assert message in str(refusal.value)
    assert not (tmp_path / "batch").exists()


def test_a_missing_file_and_one_that_is_no_text(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not found; retemper run writes"):
        take_in(tmp_path / "none.csv", tmp_path / "batch", "dev")
    path = tmp_path / "dev.csv"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="cannot be read"):
        take_in(path, tmp_path / "batch", "dev")
    with pytest.raises(UserError, match="cannot be read"):
        take_in(tmp_path, tmp_path / "batch", "dev")


def test_one_score_written_in_two_ways_is_one(tmp_path: Path) -> None:
    path = tmp_path / "dev.csv"
    path.write_text(f"query-id,corpus-id,score,text\nq1,d1,01\nq1,d1,1,{'x' * 200_000}\n")
    assert take_in(path, tmp_path / "batch", "dev") == (1, 0)
    assert (tmp_path / "batch/qrels/dev.tsv").read_text() == "query-id\tcorpus-id\tscore\nq1\td1\t1\n"


def test_ids_keep_their_white_space(tmp_path: Path) -> None:
    """With prepare.ids: escape, "d1" and "d1 " are two documents."""
    path = tmp_path / "dev.csv"
    path.write_text('query-id,corpus-id,score\nq1,d1 , 1 \n" q1",d1,0\n')
    assert take_in(path, tmp_path / "batch", "dev") == (2, 0)
    assert (tmp_path / "batch/qrels/dev.tsv").read_text() == "query-id\tcorpus-id\tscore\nq1\td1 \t1\n q1\td1\t0\n"
