"""The name and the columns of one file of questions and answers."""

from pathlib import Path

import pytest

from tasks.core.errors import Invalid, Unavailable, UserError
from tasks.core.sources.pairs import Columns, columns_of, file_and_columns, pairs_file


@pytest.mark.parametrize("name", ["faq.csv", "faq.CSV", "faq.tsv.gz", "faq.jsonl", "faq.ndjson.gz", "faq.parquet"])
def test_a_file_of_a_known_form(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    assert pairs_file(tmp_path / name) == tmp_path / name


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("faq.json", "write one object a line, as .jsonl"),
        ("faq.xlsx", "save it as CSV in UTF-8"),
        ("faq.csv.zip", "unpack it"),
        ("faq.parquet.gz", "convert or rename it"),
        ("faq", "convert or rename it"),
    ],
)
def test_another_form_is_refused_with_a_remedy(tmp_path: Path, name: str, remedy: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(UserError, match=rf"{name}: found a file of another form, expected .*\.jsonl, \.ndjson.*; {remedy}$"):
        pairs_file(tmp_path / name)


def test_a_missing_file_is_unavailable_and_a_folder_is_none(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"faq\.csv: not found"):
        pairs_file(tmp_path / "faq.csv")
    with pytest.raises(UserError, match=r"found a folder, expected a file .*; name one file in it"):
        pairs_file(tmp_path)


@pytest.mark.parametrize(
    ("names", "columns"),
    [
        (["question", "answer"], Columns(0, 1)),
        (["Answer ", "category", " Question"], Columns(2, 0)),
        (["anchor", "positive", "negative"], Columns(0, 1, negatives=(2,))),
        (["negative_10", "query", "passage", "negative_2", "negative"], Columns(1, 2, negatives=(4, 3, 0))),
        (["sentence1", "sentence2"], Columns(0, 1)),
        (["id", "Title", "text", "query_id", "query", "SPLIT"], Columns(4, 2, title=1, id=0, query_id=3, split=5)),
    ],
)
def test_columns_are_known_by_their_names_in_any_order_and_case(names: list[str], columns: Columns) -> None:
    assert columns_of("faq.csv:1", names) == columns


@pytest.mark.parametrize(
    ("names", "line"),
    [
        (
            ["Frage", "Antwort"],
            r"f:1: found columns Frage, Antwort, expected a query \(anchor \| query .*, or name them, as pairs:FILE#query=",
        ),
        (["id", "title", "text"], r"found columns id, title, text, .*; if there are only documents, save them as corpus\.csv in a folder$"),
        (
            ["question", "answer", "passage"],
            r"f:1: found columns answer and passage, expected one of them; rename or drop the others, or name",
        ),
        (["question", "Question", "answer"], r"found columns question and Question, expected one of them"),
        (
            ["query", "text", "label"],
            r"found column label, expected rows whose passage answers the query; .*pairs:FILE#label=.*retemper conv",
        ),
        (["question", "title", "answer", "negative"], r"found columns title and negative, expected one of them"),
        ([f"{n}{'x' * 50}" for n in range(30)], r"found columns 0x{39}, .* \.\.\., expected"),
    ],
)
def test_other_columns_are_refused_in_a_line_that_names_them(names: list[str], line: str) -> None:
    with pytest.raises(Invalid, match=line):
        columns_of("f:1", names)


@pytest.mark.parametrize(
    ("spec", "file", "columns"),
    [
        ("faq.csv", "faq.csv", ""),
        ("faq#1.csv", "faq#1.csv", ""),
        ("faq#1.csv#passage= Antwort ,query=Frage", "faq#1.csv", "#query=Frage,passage=Antwort"),
        ("a/faq.csv#query=Frage, kurz,id=", "a/faq.csv", "#query=Frage%2C kurz,id="),
        ("faq.csv#label=,query=Frage", "faq.csv", "#query=Frage,label="),
        ("faq.csv#query=Frage/Problem: 100 % #1", "faq.csv", "#query=Frage%2FProblem%3A 100 %25 %231"),
    ],
)
def test_a_spec_may_name_columns(spec: str, file: str, columns: str) -> None:
    assert file_and_columns(spec) == (file, columns)
    assert file_and_columns(file + columns) == (file, columns)


@pytest.mark.parametrize(
    ("spec", "line"),
    [
        (
            "f.csv#frage=Frage",
            r"^dataset 'pairs:f\.csv#frage=Frage': found the role 'frage', expected query, passage, title, id, query_id, split",
        ),
        ("f.csv#query=a,query=b", r"found query twice, expected .*, each once; for example pairs:FILE#query=NAME,passage=NAME$"),
        ("f.csv#label=stars", r"found the role 'label', expected .*, or label=, each once"),
        ("f.csv#query=", r"found no column name for query, expected one, for example pairs:FILE#"),
    ],
)
def test_a_spec_names_columns_by_their_roles(spec: str, line: str) -> None:
    with pytest.raises(UserError, match=line):
        file_and_columns(spec)


@pytest.mark.parametrize(
    ("names", "named", "columns"),
    [
        (["Nr", "Frage ", "ANTWORT"], "#query=Frage,passage=Antwort", Columns(1, 2)),
        (["id", "question", "answer", "split"], "#id=,split=", Columns(1, 2)),
        (["", "id", "question", "answer", ""], "#id=,split=,label=", Columns(2, 3)),
        (["question", "answer", "answer_long"], "#passage=answer_long", Columns(0, 2)),
        (["question", "answer", "text"], "#passage=text", Columns(0, 2)),
        (["title", "text", "id"], "#query=title", Columns(0, 1, id=2)),
        (["query", "text", "Score", "label"], "#label=", Columns(0, 1)),
        (["Frage, kurz", "label", "negative"], "#query=Frage%2C kurz,passage=label", Columns(0, 1, negatives=(2,))),
    ],
)
def test_columns_that_a_spec_names_go_before_known_ones(names: list[str], named: str, columns: Columns) -> None:
    assert columns_of("faq.csv:1", names, named) == columns


def test_a_named_column_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(
        Invalid, match=r"^f:1: found columns Nr, question, answer, expected Frage, the column of the query in #query=Frage; fix"
    ):
        columns_of("f:1", ["Nr", "question", "answer"], "#query=Frage")
