"""Documents, queries, and pairs on disk: each once, in order; what contradicts is refused."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.converting.forms import Passage
from flows.converting.store import Store, new_store, text_id
from tasks.core.errors import UserError


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with new_store(tmp_path) as opened:
        yield opened
    assert [path.name for path in tmp_path.iterdir()] == ["corpus.jsonl"]


def add_pair(store: Store, query: str, doc: str, split: str = "train", grade: int = 1) -> None:
    number = store.query("f:1", query, f"asks {query}")
    assert number is not None
    store.judge("f:1", number, split=split, doc=store.document("f:1", Passage(doc, "", f"text of {doc}")), grade=grade)


def test_documents_are_written_once_in_the_order_first_seen(tmp_path: Path) -> None:
    with new_store(tmp_path) as store:
        store.index_texts()
        numbers = [
            store.document("f:1", Passage(*fields)) for fields in (("b", "T", "ü"), ("a", "", "ü"), ("b", "T", "ü"), ("a", "", None))
        ]
        assert numbers[0] == numbers[2] != numbers[1] == numbers[3]
        assert store.document("f:2", Passage(None, "", "ü")) == numbers[1], "a text without an id is the document that has it"
        assert store.document("f:2", Passage(None, "", "new")) not in numbers
        assert store.documents == 3
    lines = (tmp_path / "corpus.jsonl").read_text(encoding="utf-8").splitlines()
    assert lines[0] == '{"_id": "b", "title": "T", "text": "ü"}'
    assert [json.loads(line)["_id"] for line in lines] == ["b", "a", "11507a0e2f5e69d5"]


def test_the_id_of_a_text_is_a_part_of_its_digest() -> None:
    assert text_id("abc") == "ba7816bf8f01cfea"  # of the example in FIPS 180-2


def test_one_text_under_two_ids_is_two_documents(store: Store) -> None:
    assert store.document("f:1", Passage("a", "", "same")) != store.document("f:2", Passage("b", "", "same"))
    store.index_texts()
    assert store.document("f:3", Passage(None, "", "same")) == 1, "the first of them"


@pytest.mark.parametrize("other", [Passage("a", "", "another"), Passage("a", "T", "text"), Passage("a", "tex", "t"), Passage("a", "", "")])
def test_one_id_with_two_texts_is_refused(store: Store, other: Passage) -> None:
    store.document("f:1", Passage("a", "", "text"))
    with pytest.raises(UserError, match="f:9: document 'a' has another title or text at f:1, expected one text per id; fix the file"):
        store.document("f:9", other)


def test_unknown_ids_are_refused(store: Store) -> None:
    with pytest.raises(
        UserError, match=r"f:2: document 'a' is not in any corpus, expected its text; give the file that has it with --corpus$"
    ):
        store.document("f:2", Passage("a", "", None))
    with pytest.raises(UserError, match=r"f:2: query 'q' is unknown, expected its text; give the file that has it with --queries$"):
        store.query_of("f:2", "q")


def test_one_query_id_with_two_texts_is_refused(store: Store) -> None:
    assert store.query("f:1", "q", "who") == store.query("f:2", "q", "who") == store.query_of("f:3", "q")[0]
    with pytest.raises(UserError, match="f:4: query 'q' has another text at f:1, expected one text per id"):
        store.query("f:4", "q", "who ")


def test_half_characters_are_refused(store: Store) -> None:
    for add in (lambda: store.query("f:4", None, "a\ud800"), lambda: store.document("f:4", Passage("d", "\udfff", "x"))):
        with pytest.raises(UserError, match="f:4: the text contains an unpaired surrogate"):
            add()


def test_two_grades_of_one_pair_are_refused(store: Store) -> None:
    add_pair(store, "q", "d", grade=2)
    add_pair(store, "q", "d", grade=2)
    add_pair(store, "q", "d", "dev", grade=1)
    assert list(store.judged("train")) == [("q", "d", 2)]
    with pytest.raises(UserError, match="f:1: found grade 1 for a query and document that had grade 2 before, expected one grade"):
        add_pair(store, "q", "d", grade=1)


def test_queries_without_a_relevant_document_are_left_out_by_split(store: Store) -> None:
    add_pair(store, "q1", "d1", grade=0)
    add_pair(store, "q2", "d1")
    add_pair(store, "q2", "d2", grade=0)
    add_pair(store, "q2", "d3", "dev", grade=0)
    add_pair(store, "q3", "d1", "test", grade=-1)
    assert list(store.queries()) == [("q2", "asks q2", "{}")]
    assert list(store.judged("train")) == [("q2", "d1", 1), ("q2", "d2", 0)]
    assert list(store.judged("dev")) == list(store.judged("test")) == []
    assert [store.count(split) for split in ("train", "dev", "test")] == [1, 0, 0]
    assert store.count_left_out() == {"queries without a relevant document": 2}


def test_negatives_keep_their_order_less_what_is_relevant(store: Store) -> None:
    for query in ("q1", "q2"):
        add_pair(store, query, f"d{query}")
    queries = {name: store.query_of("f:1", name)[0] for name in ("q1", "q2")}
    empty = store.document("f:1", Passage("empty", "", " "))
    for query, doc in (("q2", "x"), ("q1", "z"), ("q1", "y"), ("q1", "dq1"), ("q1", "z"), ("q2", "dq1")):
        store.reject(queries[query] or 0, store.document("f:1", Passage(doc, "", f"text of {doc}")))
    store.reject(queries["q1"] or 0, empty)
    assert list(store.negatives()) == [("q2", "x"), ("q1", "z"), ("q1", "y"), ("q2", "dq1")]
    assert store.count_left_out() == {
        "documents without title and text": 1,
        "negatives that are relevant to their query": 1,
        "negatives without text": 1,
    }


def test_what_has_no_text_is_left_out_and_counted(store: Store) -> None:
    assert store.query("f:1", "q0", " \n") is None
    assert store.query_of("f:1", "q0") == (None, " \n")
    number = store.query("f:1", "q1", "who")
    assert number is not None
    doc = store.document("f:1", Passage("d", " ", "\t"))
    assert doc is None
    assert store.document("f:2", Passage("d", "", None)) is None
    store.judge("f:1", number, split="train", doc=doc, grade=1)
    assert store.document("f:2", Passage("t", "only a title", "")) is not None
    assert store.documents == 1
    assert store.count_left_out() == {
        "documents without title and text": 1,
        "pairs with a document without text": 1,
        "queries without a relevant document": 1,
        "queries without text": 1,
    }


def test_leaks_are_found_by_plain_text(store: Store) -> None:
    for name, text, split in (("q1", "Who  Is", "train"), ("q2", "who is", "test"), ("q3", "other", "train"), ("q4", "dev", "dev")):
        number = store.query("f:1", name, text)
        assert number is not None
        store.judge("f:1", number, split=split, doc=store.document("f:1", Passage("d", "", "x")), grade=1)
    assert store.leaks() == 1
    add_pair(store, "q5", "d5", "train")
    add_pair(store, "q5", "d5", "dev")
    assert store.leaks() == 2


def test_ids_with_white_space_are_counted(store: Store) -> None:
    add_pair(store, "q 1", "d\u00a01")
    add_pair(store, "q 1", "d 2")
    assert store.white == 2
