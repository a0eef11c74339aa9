"""What a row of each tool's file means; a row that means nothing is refused with its line."""

from typing import Any

import pytest

from flows.converting.forms import Example, Form, Passage, form_of
from tasks.core.errors import UserError

AT = "train.jsonl:7"
TEVATRON = {"query_id": 3, "query": "who", "positive_passages": [{"docid": "d1", "title": "T", "text": "one"}], "negative_passages": []}
IDS = {"query_id": "q", "query_text": "who", "query_image": None, "positive_document_ids": ["d1", 2], "negative_document_ids": ["d3"]}
FLAG = {"query": "who", "pos": ["one", "two"], "neg": ["three"], "pos_scores": [0.9, 0.8], "neg_scores": [0.1]}


def form(row: dict[str, Any]) -> Form:
    return form_of(AT, list(row))


def read(row: dict[str, Any]) -> Example:
    return form(row).read(AT, row)


def passages(*texts: str) -> list[Passage]:
    return [Passage(None, "", body) for body in texts]


def test_tevatron_with_passages() -> None:
    with_negatives = TEVATRON | {"negative_passages": [{"docid": 5, "text": "five"}, {"docid": "6", "title": None, "text": "six"}]}
    assert form(with_negatives).name == "Tevatron (passages)"
    assert read(with_negatives) == Example(AT, "3", "who", [Passage("d1", "T", "one")], [Passage("5", "", "five"), Passage("6", "", "six")])
    without_negatives = {key: value for key, value in TEVATRON.items() if key != "negative_passages"}
    assert read(without_negatives).negatives == []


@pytest.mark.parametrize("name", ["query_text", "query"])
def test_tevatron_with_ids(name: str) -> None:
    row = {(name if key == "query_text" else key): value for key, value in IDS.items()}
    assert form(row).name == "Tevatron (ids)"
    assert read(row) == Example(AT, "q", "who", [Passage("d1", "", None), Passage("2", "", None)], [Passage("d3", "", None)])
    assert "query_image" not in form(row).columns


def test_flag_embedding() -> None:
    assert form(FLAG).name == "FlagEmbedding"
    assert form(FLAG).by_text
    assert read(FLAG) == Example(AT, None, "who", passages("one", "two"), passages("three"))
    assert read({"query": "who", "pos": ["one"]}).negatives == []


@pytest.mark.parametrize(
    ("row", "positives", "negatives"),
    [
        ({"anchor": "who", "positive": "one"}, ["one"], []),
        ({"question": "who", "answer": "one"}, ["one"], []),
        ({"sentence1": "who", "sentence2": "one"}, ["one"], []),
        ({"positive": "one", "query": "who"}, ["one"], []),
        ({"anchor": "who", "positive": "one", "negative": "two"}, ["one"], ["two"]),
        ({"anchor": "who", "positive": "one", "negative_10": "c", "negative_2": "b", "negative_1": "a"}, ["one"], ["a", "b", "c"]),
        ({"anchor": "who", "positive": "one", "negative_1": "a", "negative_2": None}, ["one"], ["a"]),
        ({"anchor": "who", "positive": "one", "negative": "two", "score": 3.7}, ["one"], ["two"]),
        ({"anchor": "who", "positive": "one", "negative_1": "two", "scores": [0.9, 0.1]}, ["one"], ["two"]),
        ({"sentence1": "who", "sentence2": "one", "label": 1}, ["one"], []),
        ({"sentence1": "who", "sentence2": "one", "label": 0}, [], ["one"]),
        ({"sentence1": "who", "sentence2": "one", "score": 1.0}, ["one"], []),
        ({"query": "who", "answer": "one", "labels": 0.0}, [], ["one"]),
        ({"query": "who", "docs": ["one", "two", "three"], "labels": [0, 1.0, False]}, ["two"], ["one", "three"]),
        ({"anchor": "who", "positive": ["one", "two"], "labels": [1, 1]}, ["one", "two"], []),
    ],
)
def test_sentence_transformers(row: dict[str, Any], positives: list[str], negatives: list[str]) -> None:
    assert form(row).name == "sentence-transformers"
    assert read(row) == Example(AT, None, "who", passages(*positives), passages(*negatives))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (["premise", "hypothesis"], f"{AT}: found premise, hypothesis, expected the keys of Tevatron (query_id, query, positive_"),
        ([], "found no keys, expected the keys of"),
        (["query", "text"], "FlagEmbedding (query, pos), or sentence-transformers (anchor, query, question or sentence1, and positive"),
        (["anchor", "query", "positive"], f"{AT}: found both anchor and query, expected one of them"),
        (["query", "answer", "label", "score"], "found both label and score"),
        (["query", "answer", "id"], f"{AT}: found column id, expected those of sentence-transformers (anchor|query"),
        (["query", "positive", "negative_x"], "found column negative_x, expected"),
    ],
)
def test_other_keys_are_refused(keys: list[str], message: str) -> None:
    with pytest.raises(UserError) as error:
        form_of(AT, keys)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("first", "change", "message"),
    [
        (TEVATRON, {"query_id": None}, "found no query_id, expected a string or an integer; fix the file"),
        (TEVATRON, {"query_id": True}, "found query_id True, expected a string or an integer"),
        (TEVATRON, {"query_id": 1.0}, "found query_id 1.0"),
        (
            TEVATRON,
            {"query_id": "a\tb"},
            r"found query_id 'a\tb', expected a non-empty id without tabs, line ends, NUL, or half",
        ),
        (TEVATRON, {"query_id": "a\0"}, r"found query_id 'a\x00'"),
        (TEVATRON, {"query_id": ""}, "found query_id ''"),
        (TEVATRON, {"query_id": "\ud800"}, r"found query_id '\ud800'"),
        (TEVATRON, {"query": None}, "found no query, expected a string"),
        (TEVATRON, {"query": ["who"]}, "found query ['who'], expected a string"),
        (TEVATRON, {"positive_passages": None}, "found no positive_passages, expected a list of passages (docid, title, text)"),
        (TEVATRON, {"positive_passages": {}}, "found positive_passages {}, expected a list"),
        (TEVATRON, {"positive_passages": ["x"]}, "found 'x' in positive_passages, expected an object with docid, title, and text"),
        (TEVATRON, {"positive_passages": [{"text": "x"}]}, "found no positive_passages.docid"),
        (TEVATRON, {"negative_passages": [{"docid": "d"}]}, "found no negative_passages.text, expected a string"),
        (TEVATRON, {"negative_passages": [{"docid": "d", "title": 1, "text": "x"}]}, "found negative_passages.title 1"),
        (TEVATRON, {"answers": ["a", 1]}, "found answers ['a', 1], expected a list of strings"),
        (TEVATRON, {"metadata": "new"}, "found metadata 'new', expected an object"),
        (IDS, {"positive_document_ids": "d1"}, "found positive_document_ids 'd1', expected a list of ids"),
        (IDS, {"negative_document_ids": [None]}, "found no negative_document_ids item, expected a string or an integer"),
        (FLAG, {"pos": "one"}, "found pos 'one', expected a list of strings"),
        (FLAG, {"neg": ["one", 2]}, "found neg item 2, expected a string"),
        ({"anchor": "a", "positive": "b"}, {"positive": None}, "found no positive, expected a string"),
        ({"anchor": "a", "positive": "b"}, {"positive": ["b"]}, "found positive ['b'], expected a string"),
        ({"anchor": "a", "positive": "b"}, {"negative": "c"}, "found negative, expected the keys of the first line (anchor, positive)"),
        ({"anchor": "a", "positive": "b", "score": 1}, {"score": 0.8}, "found score 0.8, expected 1 (a positive) or 0 (a negative)"),
        ({"anchor": "a", "positive": "b", "score": 1}, {"score": float("nan")}, "found score nan"),
        ({"anchor": "a", "positive": "b", "label": 1}, {"label": "1"}, "found label '1'"),
        ({"query": "a", "docs": ["b", "c"], "labels": [1, 0]}, {"labels": [0, None]}, "found no labels, expected 1"),
        ({"query": "a", "docs": ["b", "c"], "labels": [1, 0]}, {"labels": [1]}, "found labels [1], expected a list of 2, one for each"),
        ({"query": "a", "docs": ["b", "c"], "labels": [1, 0]}, {"labels": 1}, "found labels 1, expected a list of 2"),
        ({"query": "a", "docs": ["b", "c"], "labels": [1, 0]}, {"docs": ["b", 3]}, "found docs 3, expected a string"),
        ({"query": "a", "docs": ["b", "c"], "labels": [1, 0]}, {"docs": "b"}, "found labels [1, 0], expected 1"),
        ({"anchor": "a", "positive": "b", "label": 1}, {"label": None}, "found no label"),
        ({"anchor": "a", "positive": "b", "label": 1}, {"label": 2}, "found label 2"),
    ],
)
def test_a_wrong_row_is_refused(first: dict[str, Any], change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        form(first).read(AT, first | change)
    assert str(error.value).startswith(f"{AT}: ")
    assert message in str(error.value)


def test_another_name_for_negatives_is_refused() -> None:
    with pytest.raises(UserError, match=r"found key negs, expected neg for FlagEmbedding's negatives; rename it$"):
        form({"query": "a", "pos": ["b"], "negs": ["c"]})
    assert form({"query": "a", "pos": ["b"], "neg_scores": []}).name == "FlagEmbedding"
