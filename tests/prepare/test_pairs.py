"""One file of questions and answers: equal texts are one record, and each query keeps its split when the file grows."""

import gzip
import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.core.errors import UserError
from tasks.core.sources.datasets import parse_dataset
from tasks.core.text.plain import Shares, digest
from tasks.prepare.readers.kinds import read
from tasks.prepare.readers.pairs import rows

ROWS = [  # question, answer, split
    ("How do I reset it?", "Hold the button.", "train"),
    ("how do I  RESET it?", "Press the button for\nfive seconds.", "Train"),
    ("Is it broken?", "hold the  button. ", "train"),
    ("Where is it?", 'In the "box", below; look, there.', "validation"),
    ("Who makes it?", "Hold the button.", "test"),
]
FIRST, SECOND, THIRD = (digest(ROWS[n][1]) for n in (0, 1, 3))


def write_csv(file: Path, mark: str) -> None:
    def quote(text: str) -> str:
        return '"' + text.replace('"', '""') + '"'

    lines = [mark.join(("Question", "answer", "split"))] + [mark.join(map(quote, row)) for row in ROWS]
    file.write_bytes(("\ufeff" + "\r\n".join(lines) + "\r\n").encode())


def write_jsonl(file: Path) -> None:
    lines = [json.dumps(dict(zip(("anchor", "positive", "split", "note"), (*row, 1), strict=True))) for row in ROWS]
    file.write_bytes(gzip.compress("\n".join(lines).encode()))


def write_parquet(file: Path) -> None:
    pq.write_table(pa.table(dict(zip(("query", "passage", "split"), zip(*ROWS, strict=True), strict=True))), file)


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("faq.csv", lambda file: write_csv(file, ",")),
        ("faq.CSV", lambda file: write_csv(file, ";")),
        ("faq.tsv", lambda file: write_csv(file, "\t")),
        ("faq.jsonl.gz", write_jsonl),
        ("faq.parquet", write_parquet),
    ],
)
def test_every_form_gives_the_same_data_set(prepare: Any, tmp_path: Path, name: str, write: Callable[[Path], None]) -> None:
    write(tmp_path / name)
    prepared = prepare(f"pairs:{tmp_path / name}")
    assert prepared.documents == [(FIRST, "", ROWS[0][1]), (SECOND, "", ROWS[1][1]), (THIRD, "", ROWS[3][1])]
    ids = [digest(ROWS[n][0]) for n in (0, 2, 3, 4)]
    assert prepared.queries == {
        "train": [(ids[0], ROWS[0][0], []), (ids[1], ROWS[2][0], [])],
        "dev": [(ids[2], ROWS[3][0], [])],
        "test": [(ids[3], ROWS[4][0], [])],
    }
    assert prepared.qrels == {
        "train": [(ids[0], FIRST, 1), (ids[0], SECOND, 1), (ids[1], FIRST, 1)],
        "dev": [(ids[2], THIRD, 1)],
        "test": [(ids[3], FIRST, 1)],
    }
    assert "equal_texts" not in prepared.stats or not prepared.stats["equal_texts"]


def test_a_growing_file_keeps_its_division_and_its_ids(prepare: Any, write_files: Any) -> None:
    def splits(count: int, *more_lines: str) -> dict[str, set[tuple[Any, ...]]]:
        lines = ["question,answer", *(f"question {n},answer {n}" for n in range(count)), *more_lines]
        prepared = prepare(f"pairs:{write_files({'faq.csv': chr(10).join(lines)}) / 'faq.csv'}", leaks="refuse")
        return {split: set(pairs) for split, pairs in prepared.qrels.items()}

    small, large = splits(200), splits(600, *(f"QUESTION  {n},other {n}" for n in range(200)))
    assert all(small[split] and small[split] < large[split] for split in small)
    for split, pairs in large.items():
        assert {query for query, _, _ in pairs} == {
            digest(f"question {n}") for n in range(600) if Shares(0.1, 0.1).split("train", f"question {n}") == split
        }, "as retemper convert divides"


@pytest.mark.parametrize(("split", "shares"), [("test", Shares(0.1, 0)), ("dev", Shares(0, 0.1))])
def test_a_split_without_a_row_is_a_tenth_of_train(prepare: Any, write_files: Any, split: str, shares: Shares) -> None:
    lines = ["query\ttext\tsplit", *(f"q {n}\tt {n}\ttrain" for n in range(300)), f"own\tt 1\t{split}"]
    prepared = prepare(f"pairs:{write_files({'a.tsv': chr(10).join(lines)}) / 'a.tsv'}")
    expected: dict[str, list[str]] = {"train": [], "dev": [], "test": []}
    for n in range(300):
        expected[shares.split("train", f"q {n}")].append(f"q {n}")
    expected[split].append("own")
    assert {split: [text for _, text, _ in queries] for split, queries in prepared.queries.items()} == expected


def test_ids_and_titles_are_those_of_the_first_row(prepare: Any, write_files: Any) -> None:
    text = (
        "id,title,answer,query_id,question,split\n7,A,x,q1,one,train\n8,B,x,q2,two,train\n9,A,X ,,ONE,train\n"
        "10,,y,,three,train\n,,z,q5,four,dev\n"
    )
    prepared = prepare(f"pairs:{write_files({'faq.csv': text}) / 'faq.csv'}")
    assert prepared.documents == [("7", "A", "x"), ("8", "B", "x"), ("10", "", "y"), (digest("z"), "", "z")]
    assert prepared.qrels["train"] == [("q1", "7", 1), ("q2", "8", 1), (digest("three"), "10", 1)]
    assert prepared.qrels["dev"] == [("q5", digest("z"), 1)]


def test_negatives_are_documents_and_ready_made_negatives(prepare: Any, write_files: Any) -> None:
    rows = [
        {"anchor": "one", "positive": "x", "negative_1": "n1", "negative_2": "y", "split": "train"},
        {"anchor": "two", "positive": "y", "negative_1": "n1", "negative_2": None, "split": "train"},
        {"anchor": "two", "positive": "w", "negative_1": "Y", "negative_2": "", "split": "train"},
        {"anchor": "held", "positive": "x", "negative_1": "n2", "negative_2": "n1", "split": "dev"},
    ]
    prepared = prepare(f"pairs:{write_files({'t.jsonl': chr(10).join(map(json.dumps, rows))}) / 't.jsonl'}")
    assert [text for _, _, text in prepared.documents] == ["x", "n1", "y", "w", "n2"]
    names = {query: text for query, text, _ in prepared.queries["train"]}, {doc: text for doc, _, text in prepared.documents}
    assert [(names[0][row[0]], names[1][row[1]]) for row in prepared.official] == [("one", "n1"), ("one", "y"), ("two", "n1")]
    assert prepared.counts == {"kept": 3, "that are known positives": 1, "of a query outside the training split": 2}


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("a.csv", "question,answer\na,b,c\n", r"a\.csv:2: found 3 cells, expected 2 as in the header \(question, answer\)"),
        ("a.csv", "", r"a\.csv: empty, expected a header \(anchor \| query"),
        ("a.csv", "\nq,a\n", r"a\.csv:2: found columns q, a, expected a query"),
        ("a.csv", "question,answer\n", r"a\.csv has no documents, expected at least one"),
        ("a.csv", "question,answer\n,b\n", r"a\.csv:2: .*without text|a\.csv:2: .*empty"),
        ("a.csv", "question,answer,split\na,b,eval\n", r"a\.csv:2: found split 'eval', expected train, dev \(or validation\), or test"),
        ("a.csv", "question,answer,id\na,b,1\nc,d,1\n", r"a\.csv:3: found id '1' for two different texts, .*exclude it: pairs:FILE#id=$"),
        ("a.csv", "question,answer,qid\na,b,1\nc,b,1\n", r"a\.csv:3: found query_id '1' for two different texts, .*pairs:FILE#query_id=$"),
        ("a.jsonl", '{"question": "a", "answer": 5}\n', r"a\.jsonl:1: found text 5, expected a string"),
        ("a.jsonl", "", r"a\.jsonl: found no line, expected JSON lines with anchor"),
        ("a.jsonl", "question,answer\n", r"a\.jsonl:1: not JSON"),
        ("a.parquet", "question,answer\n", r"a\.parquet: cannot be read as Parquet"),
    ],
)
def test_a_mistake_is_a_line_with_its_place(prepare: Any, write_files: Any, name: str, text: str, line: str) -> None:
    with pytest.raises(UserError, match=line):
        prepare(f"pairs:{write_files({name: text}) / name}")


def test_it_can_be_read_twice(write_files: Any) -> None:
    source = read(parse_dataset(f"pairs:{write_files({'a.csv': 'query,text' + chr(10) + 'a,b' + chr(10)}) / 'a.csv'}"))
    assert list(source.documents()) == list(source.documents()) and list(source.queries[""]()) == list(source.queries[""]())


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_columns_of_any_name_are_read(prepare: Any, tmp_path: Path, form: str) -> None:
    rows = [{"id": "1", "Frage, kurz": "What?", "Antwort": "This."}, {"id": "1", "Frage, kurz": "Who?", "Antwort": "He."}]
    file = tmp_path / f"faq.{form}"
    if form == "csv":
        file.write_text('id;"Frage, kurz";Antwort\n1;What?;This.\n1;Who?;He.\n')
    elif form == "jsonl":
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        pq.write_table(pa.Table.from_pylist(rows), file)
    prepared = prepare(f"pairs:{file}#query=frage, kurz,passage=Antwort,id=")
    assert prepared.documents == [(digest("This."), "", "This."), (digest("He."), "", "He.")]
    assert {text for queries in prepared.queries.values() for _, text, _ in queries} == {"What?", "Who?"}


def test_an_id_that_no_text_has_is_free_for_another(prepare: Any, write_files: Any) -> None:
    prepared = prepare(
        f"pairs:{write_files({'a.csv': 'question,answer,id' + chr(10) + 'a,x,1' + chr(10) + 'b,X,2' + chr(10) + 'c,y,2' + chr(10)}) / 'a.csv'}"  # noqa: E501
    )
    assert [doc for doc, _, _ in prepared.documents] == ["1", "2"]


@pytest.mark.parametrize(
    ("rows", "problem"), [("one,\ntwo,x", "document has an empty title and text"), ("one,x\n ,y", "query has an empty text")]
)
def test_an_empty_text_is_named_by_its_place(prepare: Any, write_files: Any, rows: str, problem: str) -> None:
    """Not by an id, which would be the digest of an empty text."""
    folder = write_files({"faq.csv": f"question,answer\n{rows}\n"})
    with pytest.raises(UserError, match=rf"faq.csv:{2 + rows.startswith('one,x')}: the {problem}; fill it"):
        prepare(f"pairs:{folder / 'faq.csv'}")


@pytest.mark.parametrize("ending", ["csv", "TSV", "jsonl", "parquet"])
def test_a_column_may_have_two_roles(prepare: Any, tmp_path: Path, ending: str) -> None:
    """In Parquet, it counted as two columns, one too many."""
    table = {"question": ["a b", "c d"], "answer": ["x y", "z w"], "url": ["u1", "u2"]}
    file = tmp_path / f"faq.{ending}"
    if ending == "parquet":
        pq.write_table(pa.table(table), file)
    elif ending == "jsonl":
        file.write_text("".join(json.dumps(dict(zip(table, row, strict=True))) + "\n" for row in zip(*table.values(), strict=True)))
    else:
        rows = [list(table), *zip(*table.values(), strict=True)]
        file.write_text("".join(("," if ending == "csv" else "\t").join(row) + "\n" for row in rows))
    prepared = prepare(f"pairs:{file}#title=url,id=url")
    assert [(doc, title) for doc, title, _ in prepared.documents] == [("u1", "u1"), ("u2", "u2")]


@pytest.mark.parametrize("column", ["id", "query_id"])
def test_half_a_character_in_an_id_is_refused(prepare: Any, tmp_path: Path, column: str) -> None:
    rows = [{"query": "a b", "passage": "c d", column: name} for name in ("x", "\ud800x")]
    (tmp_path / "faq.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(UserError, match=r"faq.jsonl:2: found id '\\ud800x', expected one without an unpaired surrogate"):
        prepare(f"pairs:{tmp_path / 'faq.jsonl'}")


@pytest.mark.parametrize(
    ("row", "line"),
    [
        ({"split": "test"}, r"found the key 'split', expected the keys of the first line; write it in the first line too \(train if"),
        ({"Title": "T"}, r"found the key 'Title', expected the keys of the first line; write it in the first line too \(null if"),
        ({"negative": "n"}, r"found the key 'negative', expected the keys of the first line; "),
        ({"note": "", "id": 7}, r"found the key 'id', expected the keys of the first line; "),
        ({"label": 0}, r"found column label, expected rows whose passage answers the query; "),
        ({"question": "c"}, r"found columns query and question, expected one of them; "),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_column_that_the_first_line_lacks_is_refused(prepare: Any, write_files: Any, row: dict[str, Any], line: str) -> None:
    """It was ignored: a row of test could be trained on, and a label of 0 was a positive."""
    rows = [{"query": f"q {n}", "answer": f"a {n}", **added} for n, added in enumerate(({}, {"comment": 1}, row))]
    folder = write_files({"faq.jsonl": "".join(json.dumps(row) + "\n" for row in rows)})
    with pytest.raises(UserError, match=rf"faq\.jsonl:3: {line}"):
        prepare(f"pairs:{folder / 'faq.jsonl'}")
    excluded = f"pairs:{folder / 'faq.jsonl'}#label=,id=,title="
    if row.keys() & {"label", "id", "Title"}:
        assert [text for _, _, text in prepare(excluded).documents] == ["a 0", "a 1", "a 2"]


def test_other_columns_of_parquet_do_not_matter(tmp_path: Path) -> None:
    """Whatever their type and their names."""
    table = pa.table({"query": [row[0] for row in ROWS], "split": [row[2] for row in ROWS], "answer": [row[1] for row in ROWS]})
    pq.write_table(table, tmp_path / "faq.parquet")
    times = pa.array([datetime(2024, 1, n) for n in range(1, 6)])
    table = (
        table.add_column(0, "created_at", times)
        .append_column("query.at", times)
        .append_column("vector", pa.array([[0.5, n] for n in range(5)]))
    )
    for note in ("x", "y"):
        table = table.add_column(2, "note", pa.array([note] * 5))
    pq.write_table(table, tmp_path / "more.parquet")
    expected = [row[1:] for row in rows(tmp_path / "faq.parquet", "")]
    assert [row[:2] for row in expected] == [row[:2] for row in ROWS]
    assert [row[1:] for row in rows(tmp_path / "more.parquet", "")] == expected
