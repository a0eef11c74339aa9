"""A file of pairs beside the data set: how often that is read."""

from pathlib import Path
from typing import Any

import pytest

from tasks.core.errors import UserError
from tasks.core.sources.datasets import parse_dataset
from tasks.core.text.plain import digest
from tasks.prepare.commands import pairs_batch
from tasks.prepare.commands.joined_ids import JoinedIds
from tasks.prepare.commands.pairs_batch import beside_pairs, splits_of
from tasks.prepare.readers import kinds, pairs
from tasks.prepare.readers.pairs import Ids

ROWS = [
    *((f"q {n}", f"a {n}", "train") for n in range(60)),
    ("Q  7", "b", "dev"),
    ("q 8", "b", "test"),
    ("q 9", "b", "dev"),
    ("q 9", "c", "test"),
]


@pytest.mark.parametrize("splits", [{"train"}, {"train", "dev"}, {"train", "test"}, {"train", "dev", "test"}], ids=len)
def test_splits_are_those_of_the_data_set(tmp_path: Path, splits: set[str]) -> None:
    """As reading it as a data set gives them: without rows of dev or test, a hash does."""
    lines = [",".join(row) for row in ROWS if row[2] in splits]
    (tmp_path / "faq.csv").write_text("\n".join(["question,answer,split", *lines, ""]))
    base = parse_dataset(f"pairs:{tmp_path}/faq.csv")
    ids = {digest(query) for query, _, _ in ROWS[::2]} | {digest("Q 7"), digest("q 9"), digest("new")}
    batch = beside_pairs(base, ids, queries=JoinedIds(Ids("query_id")), documents=JoinedIds(Ids("id")))
    assert batch.known_splits == splits_of(kinds.read(base), ids) and digest("new") not in batch.known_splits
    assert batch.splits == splits and batch.known_splits


def test_the_data_set_is_read_once_for_each_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It used to be six times, so an inbox of 50 files read it 300 times after each change."""
    for name in ("faq", "new"):
        (tmp_path / f"{name}.csv").write_text("question,answer\n" + "".join(f"{name} {n},a {n}\n" for n in range(60)))
    opened: list[str] = []
    rows = pairs.rows

    def record_opened(file: Path, columns: str) -> Any:
        opened.append(file.name)
        return rows(file, columns)

    for module in (pairs, pairs_batch):
        monkeypatch.setattr(module, "rows", record_opened)
    source = pairs_batch.read(parse_dataset(f"pairs:{tmp_path}/new.csv"), parse_dataset(f"pairs:{tmp_path}/faq.csv"))
    (tmp_path / "out").mkdir()
    pairs_batch.write(source.source, tmp_path / "out")
    assert opened.count("faq.csv") == 1


def read_beside(folder: Path, base: str, added: str) -> tuple[dict[str, str], dict[str, str], set[tuple[str, str]]]:
    """The texts of documents and queries by id, and the judgments, of a file's rows as an addition to those of another."""
    (folder / "faq.csv").write_text(base)
    (folder / "new.csv").write_text(added)
    source = pairs_batch.read(*(parse_dataset(f"pairs:{folder}/{name}.csv") for name in ("new", "faq"))).source
    judged = {(qrel.query, qrel.doc) for split in source.qrels.values() for qrel in split()}
    queries = {query.id: query.text for query in source.queries[""]()}
    return {document.id: document.text for document in source.documents()}, queries, judged


BASE = "id,query_id,question,answer,negative\n0,q0,how,restart,\n1,q1,why,charge,wait\n2,q2,How,Restart,\n3,q3,who,we,\n"
HEAD = "id,query_id,question,answer,negative\n"


def test_known_texts_have_the_ids_of_the_data_set(tmp_path: Path) -> None:
    documents, queries, judged = read_beside(tmp_path, BASE, f"{HEAD}10,q10,HOW,we,\n11,q11,when,restart,charge\n12,q12,what,wait,\n")
    waiting = digest("wait")
    assert documents == {"3": "we", "0": "restart", "1": "charge", waiting: "wait"}
    assert queries == {"q0": "HOW", "q11": "when", "q12": "what"}
    assert judged == {("q0", "3"), ("q11", "0"), ("q12", waiting)}


def test_known_texts_without_an_id_are_not_added_twice(tmp_path: Path) -> None:
    base = f"{HEAD},,how,restart,wait\n1,q1,why,charge,\n"
    documents, queries, judged = read_beside(tmp_path, base, f"{HEAD}8,q8,How,Restart,\n9,q9,what,wait,\n")
    assert documents == {digest("restart"): "Restart", digest("wait"): "wait"}
    assert queries == {digest("how"): "How", "q9": "what"}
    assert judged == {(digest("how"), digest("restart")), ("q9", digest("wait"))}
    documents, queries, _ = read_beside(tmp_path, base, f"{HEAD},,why,charge,\n,,when,now,\n9,,what,off,\n")
    assert documents == {"1": "charge", digest("now"): "now", "9": "off"}, "nor those that the file has without one"
    assert queries == {"q1": "why", digest("when"): "when", digest("what"): "what"}


def test_a_known_id_gets_a_new_text_if_no_other_row_has_the_old_one(tmp_path: Path) -> None:
    documents, queries, _ = read_beside(tmp_path, BASE, f"{HEAD}1,q1,why not,charge it,\n")
    assert (documents, queries) == ({"1": "charge it"}, {"q1": "why not"})
    documents, _, judged = read_beside(tmp_path, BASE, f"{HEAD}0,q0,how,turn off,\n2,q2,how,turn off,\n")
    assert documents == {"0": "turn off"} and judged == {("q0", "0")}, "every row that had the old text"
    documents, _, judged = read_beside(tmp_path, BASE, f"{HEAD}0,q0,how,we,\n")
    assert documents == {"3": "we"} and judged == {("q0", "3")}, "a known text, so document 0 keeps its own"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("0,q8,what,turn off,", "another text for id '0', whose text rows with other ids of .*faq.csv have too, such as '2', expected"),
        ("8,q0,what,help,", "another text for query_id 'q0', whose text rows with other ids of .*faq.csv have too, such as 'q2', expected"),
        ("9,q8,what,charge,\n9,q9,when,help,", "new.csv:3: found id '9' for two different texts"),
    ],
)
def test_a_new_text_that_would_be_that_of_other_rows_is_refused(tmp_path: Path, row: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_beside(tmp_path, BASE, f"{HEAD}{row}\n")


def test_a_text_takes_no_id_that_the_file_gives_another_text(tmp_path: Path) -> None:
    documents, queries, judged = read_beside(tmp_path, BASE, f"{HEAD}1,q1,why not,charge it,charge\n10,q10,why,wait,\n")
    charge, waiting = digest("charge"), digest("wait")
    assert documents == {"1": "charge it", charge: "charge", waiting: "wait"}, "the old text as a negative of its correction"
    assert queries == {"q1": "why not", "q10": "why"} and judged == {("q1", "1"), ("q10", waiting)}
    documents, _, judged = read_beside(tmp_path, BASE, f"{HEAD}3,q8,what,help,\n8,q9,when,we,\n")
    assert documents == {"3": "help", "8": "we"} and judged == {("q8", "3"), ("q9", "8")}, "or under another id"
    documents, _, judged = read_beside(tmp_path, BASE, f"{HEAD}1,q1,why,we,\n3,q3,who,charge,\n")
    assert documents == {"1": "we", "3": "charge"} and judged == {("q1", "1"), ("q3", "3")}, "two answers that had been swapped"
    documents, _, judged = read_beside(tmp_path, BASE, f"{HEAD}0,q1,why,charge,restart\n1,q3,who,we,\n")
    assert documents == {"1": "charge", "0": "restart", "3": "we"}, "no id has another text in the end, since all texts are known"
    assert judged == {("q1", "1"), ("q3", "3")}


@pytest.mark.parametrize("role", ["id", "query_id"])
def test_row_numbers_as_ids_are_refused(tmp_path: Path, role: str) -> None:
    """A row was put in front: what the data set judges by the old numbers would be of other texts."""
    rows, added = ["how,restart", "why,charge"], ["when,now", "how,restart", "why,charge"]
    base, new = ("\n".join([f"{role},question,answer", *(f"{n},{row}" for n, row in enumerate(some)), ""]) for some in (rows, added))
    message = rf"new.csv:3: found a text that .*faq.csv has under {role} '0', which is another text in this file, expected ids that stay"
    with pytest.raises(UserError, match=message):
        read_beside(tmp_path, base, new)
    documents, queries, _ = read_beside(tmp_path, base, f"{role},question,answer\n0,when,now\n2,when else,restart\n")
    assert (documents if role == "id" else queries)["0"] == ("now" if role == "id" else "when"), "without the old pair"


def test_ids_of_questions_and_answers_may_both_be_row_numbers(tmp_path: Path) -> None:
    """Then each judgment by the old numbers is one of the new rows."""
    rows, added = ["how,restart", "why,charge"], ["when,now", "how,restart", "why,charge"]
    head = "id,query_id,question,answer"
    base, new = ("\n".join([head, *(f"{n},{n},{row}" for n, row in enumerate(some)), ""]) for some in (rows, added))
    documents, queries, judged = read_beside(tmp_path, base, new)
    assert documents == {"0": "now", "1": "restart", "2": "charge"} and queries == {"0": "when", "1": "how", "2": "why"}
    assert judged == {("0", "0"), ("1", "1"), ("2", "2")}
