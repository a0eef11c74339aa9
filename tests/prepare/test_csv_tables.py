"""CSV and TSV with a header, and what `prepare` prints about any source: no rows for missing splits, plurals."""

import gzip
from typing import Any

import pytest

from tasks.core.errors import UserError
from tasks.core.plurals import counted
from tasks.core.sources.datasets import csv_layout, parse_dataset
from tasks.prepare.readers.csv_tables import read
from tasks.prepare.stats import stats_table

FILES: dict[str, str | bytes] = {
    "corpus.csv": 'text,id,title,price\n"red, ""fast"" fish\nswim",d2,Fish,3\r\nblue fish,1,,\n\nläuft — 鱼,d4,,\n',
    "queries.csv": "id,text\nq1,first\n7,seventh\n8,nobody asks\n",
    "qrels/train.csv": "query,doc,grade\nq1,d2,1\n7,1,2\n",
    "qrels/validation.csv": "query,doc,grade\nq1,1,1\n",
}
TABBED: dict[str, str | bytes] = {
    "corpus.tsv": 'id\ttitle\ttext\nd2\tFish\t"red, ""fast"" fish\nswim"\n1\t\tblue fish\nd4\t\tläuft — 鱼\n',
    "queries.tsv": "qid\tquery\nq1\tfirst\n7\tseventh\n8\tnobody asks\n",
    "qrels/train.tsv": "query-id\tcorpus-id\tscore\nq1\td2\t1\n7\t1\t2\n",
    "qrels/dev.tsv.gz": gzip.compress(b"query\tdoc\tgrade\nq1\t1\t1\n"),
}
EXCEL: dict[str, str | bytes] = {  # as German and French spreadsheets write it, with one file that something else wrote
    "corpus.csv": '\ufeffid;title;text\r\nd2;Fish;"red, ""fast"" fish\nswim"\r\n;;\r\n1;;blue fish\r\nd4;;läuft — 鱼\r\n',
    "queries.csv.gz": gzip.compress("\ufeff;\r\nid;text\r\nq1;first\r\n7;seventh\r\n8;nobody, asks\r\n".encode()),
    "qrels/train.csv": "query,doc,grade\nq1,d2,1\n7,1,2\n",
    "qrels/dev.csv": '"query";"doc";"grade";"a, note"\r\nq1;1;1;x\r\n',
}
TOLD: dict[str, str | bytes] = {  # with Excel's line that says the delimiter, and a comma in a header, which Excel does not quote
    **EXCEL,
    "corpus.csv": "\ufeffsep=;\r\nid;title;text;price, with tax\r\n"
    'd2;Fish;"red, ""fast"" fish\nswim";1,5\r\n1;;blue fish;\r\nd4;;läuft — 鱼;\r\n',
    "qrels/train.csv": "sep=,\nquery,doc,grade\nq1,d2,1\n7,1,2\n",
}


@pytest.mark.parametrize("files", [FILES, TABBED, EXCEL, TOLD, FILES | {"corpus.csv": b"\xef\xbb\xbf" + str(FILES["corpus.csv"]).encode()}])
def test_reads_a_folder(files: dict[str, str | bytes], prepare: Any, write_files: Any) -> None:
    prepared = prepare(f"csv:{write_files(files)}")
    assert prepared.documents == [("d2", "Fish", 'red, "fast" fish\nswim'), ("1", "", "blue fish"), ("d4", "", "läuft — 鱼")]
    assert prepared.queries == {"train": [("q1", "first", []), ("7", "seventh", [])], "dev": [("q1", "first", [])], "test": []}
    assert prepared.qrels == {"train": [("q1", "d2", 1), ("7", "1", 2)], "dev": [("q1", "1", 1)], "test": []}


def test_a_cell_longer_than_the_default_limit_of_csv(prepare: Any, write_files: Any) -> None:
    rows = "id,text\nd2," + "x " * 100_000 + "\n1,b\n"
    prepared = prepare(f"csv:{write_files(FILES | {'corpus.csv': rows})}")
    assert len(prepared.documents[0][2]) == 200_000


@pytest.mark.parametrize(
    ("files", "line"),
    [
        ({"corpus.csv": "id,text\nd2,a,b\n"}, r"corpus\.csv:2: found 3 cells, expected 2 as in the header \(id, text\)"),
        ({"corpus.csv": 'id,text\nd2,a\n1,"b\nmore\n'}, r"corpus\.csv:3: invalid CSV in the row that begins here"),
        ({"corpus.csv": "name;text\nd2;a\n"}, r"csv:1: found columns name, text, expected .*id.* separated by commas or semicolons$"),
        (
            {"corpus.csv": "\nid;text,price\nd2;a\n"},
            r"corpus\.csv:2: found commas and semicolons in the header \('id;text,price'\), expected one",
        ),
        ({"corpus.csv": "id;text\r\nd2;a\r\n1;b;c\r\n"}, r"corpus\.csv:3: found 3 cells, expected 2 as in the header \(id, text\)"),
        ({"corpus.csv": 'id;text\nd2;a\n1;"b\nmore\n'}, r"corpus\.csv:3: invalid CSV in the row that begins here"),
        ({"corpus.csv": ""}, r"corpus\.csv: empty, expected a header \(id, title, text\)"),
        ({"qrels/train.csv": "query;doc;grade\nq1;d2;1,0\n"}, r"train\.csv:2: found grade '1,0', expected an integer"),
        ({"qrels/train.csv": "query;doc;grade;weight\nq1;d2;1;0,5\n"}, r"train\.csv:2: found weight '0,5', expected .*, such as 0\.5;"),
        ({"corpus.csv": "sep=;\nid;text\nd2;a;b\n"}, r"corpus\.csv:3: found 3 cells, expected 2"),
        ({"corpus.csv": "sep=;\n"}, r"corpus\.csv: empty, expected a header"),
        ({"qrels/train.csv": "query,doc,grade\nq1,d2,high\n"}, r"train\.csv:2: found grade 'high', expected an integer"),
        ({"qrels/other.csv": "query,doc,grade\n"}, r"other\.csv: found qrels of an unknown split, expected train\.csv"),
        ({"corpus.csv": "id,text,text\nd2,a,b\n"}, r"corpus\.csv:1: found column text 2 times, expected it once; rename or drop one"),
        ({"qrels/train.csv": "query,doc,grade,weight\nq1,d2,1,0\n"}, r"train\.csv:2: found weight '0', expected a number above 0"),
        ({"qrels/test.txt": "q1 0 d2 1\n"}, r"test\.txt: found qrels that are not read, expected test\.csv or test\.tsv \(or \.gz\)"),
        ({"queries.csv": b"id,text\nq1,\xff\n"}, r"queries\.csv:2: not UTF-8"),
    ],
)
def test_an_error_names_file_and_line(files: dict[str, str | bytes], line: str, prepare: Any, write_files: Any) -> None:
    folder = write_files(FILES | files)
    with pytest.raises(UserError, match=line) as refusal:
        prepare(f"csv:{folder}")
    assert "\n" not in str(refusal.value)


def test_duplicate_tables_and_missing_qrels_are_refused(write_files: Any) -> None:
    with pytest.raises(UserError, match=r"corpus\.tsv exists too"):
        csv_layout(write_files(FILES | {"corpus.tsv": "id\ttext\n"}))
    with pytest.raises(UserError, match=r"found no qrels, expected train\.csv, dev\.csv, or test\.csv \(query,doc,grade; or \.tsv\)"):
        folder = write_files({})
        for file in (folder / "qrels").iterdir():
            file.unlink()
        csv_layout(folder)


def test_an_unknown_kind_says_how_to_convert_the_data() -> None:
    with pytest.raises(UserError, match=r"unknown kind 'xlsx', expected .*csv:PATH.*; other data: export it as CSV \(corpus\.csv: id,"):
        parse_dataset("xlsx:data.xlsx")


def test_statistics_omit_missing_splits_and_use_plurals(prepare: Any, write_files: Any, capsys: pytest.CaptureFixture[str]) -> None:
    files = FILES | {"corpus.csv": "id,text\nd2,a\n1,b\nd4,\nd5,\n", "queries.csv": "id,text\nq1,first\n7,seventh\n8,\n"}
    prepared = prepare(f"csv:{write_files(files)}", empty_texts="drop")
    lines = stats_table(prepared.stats).splitlines()
    assert [line.split()[0] for line in lines[2:4]] == ["train", "dev"], "no row for a missing split"
    assert lines[4:] == ["also in dev or test: 1 query of train", "dropped: 2 documents without text", "dropped: 1 query without text"]
    assert not prepared.counts and prepared.official == [] and "official" not in capsys.readouterr().err, (
        "nothing is printed about missing negatives"
    )
    assert counted(1, "qrels of an unknown document") == "1 qrel of an unknown document"
    assert counted(1200, "qrels of an unknown document") == "1,200 qrels of an unknown document"


def test_pairs_may_weigh_more_or_less_than_one(write_files: Any) -> None:
    folder = write_files(FILES | {"qrels/train.csv": "weight,query,doc,grade\n0.25,q1,d2,1\n,7,1,2\n3,7,d4,1\n"})
    assert [line.weight for line in read(folder).qrels["train"]()] == [0.25, 1, 3]


def test_documents_with_a_title_alone_are_told(prepare: Any, write_files: Any) -> None:
    rows = "id,title,text\nd2,Fish,\n1,Sea,\nd4,,läuft\n"
    prepared = prepare(f"csv:{write_files(FILES | {'corpus.csv': rows})}")
    assert "with a title only: 2 documents; empty unless text.titles is true" in stats_table(prepared.stats)
