"""A file of pairs beside the data set: how often that is read."""

from pathlib import Path
from typing import Any

import pytest

from tasks.core.errors import UserError
from tasks.core.sources.datasets import parse_dataset
from tasks.core.sources.forgotten import mark
from tasks.core.text.plain import digest
from tasks.prepare.commands import pairs_batch
from tasks.prepare.commands.joined_ids import JoinedIds
from tasks.prepare.commands.pairs_batch import add_pairs, splits_of
from tasks.prepare.commands.withdraw import count_in_pairs, marked_texts
from tasks.prepare.readers import kinds, pairs

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
    known_splits, found = add_pairs(base, ids, queries=JoinedIds("query"), documents=JoinedIds("document"))
    assert known_splits == splits_of(kinds.read(base), ids, {}) and digest("new") not in known_splits
    assert found == splits and known_splits


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


def test_a_known_id_gets_a_new_text(tmp_path: Path) -> None:
    documents, queries, judged = read_beside(tmp_path, BASE, f"{HEAD}1,q1,why not,charge it,\n")
    assert (documents, queries, judged) == ({"1": "charge it"}, {"q1": "why not"}, {("q1", "1")})
    documents, queries, judged = read_beside(tmp_path, BASE, f"{HEAD}3,q8,what,us,restart\n8,q9,when,charge,\n3,q3,who,us,\n")
    assert documents == {"3": "us", "0": "restart", "1": "charge"} and judged == {("q8", "3"), ("q9", "1"), ("q3", "3")}, "beside others"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            "0,q8,what,turn off,",
            "new.csv:2: found another text for id '0' than in faq.csv, while .*faq.csv:4 has the old text under id '2', ",
        ),
        (
            "2,q8,what,turn off,",
            "new.csv:2: found another text for id '2' than in faq.csv, while .*faq.csv:2 has the old text under id '0', ",
        ),
        ("8,q0,what,help,", "another text for query_id 'q0' than in faq.csv, while .*faq.csv:4 has the old text under query_id 'q2', "),
        ("3,q8,what,Charge,", "another text for id '3' than in faq.csv, while .*faq.csv has the new text under id '1', expected"),
        ("3,q8,what,wait,", "another text for id '3' than in faq.csv, while .*faq.csv has the new text under no id, expected"),
        ("3,q8,what,us,\n8,q9,when,we,", "new.csv:2: found another text for id '3' .* while .*new.csv:3 has the old text under id '8', "),
        ("3,q8,what,us,we", "new.csv:2: found another text for id '3' .* while .*new.csv:2 has the old text under no id, "),
        ("8,q9,when,us,\n3,q8,what,us,", "new.csv:3: found another text for id '3' .* while .*new.csv:2 has the new text under id '8', "),
        ("1,q1,why,we,\n3,q3,who,charge,", "new.csv:2: found another text for id '1' .* has the new text under id '3', "),
        ("9,q8,what,charge,\n9,q9,when,help,", "new.csv:3: found id '9' for two different texts"),
    ],
)
def test_a_correction_that_is_not_of_one_id_alone_is_refused(tmp_path: Path, row: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        read_beside(tmp_path, BASE, f"{HEAD}{row}\n")
    assert "'9'" in str(error.value) or "change the row in faq.csv instead, or if the column numbers rows, exclude it" in str(error.value)


@pytest.mark.parametrize("base", ["other,old,,\nreset,old,C,\n", "reset,old,C,\nother,it,D,old\n"], ids=["row", "negative"])
def test_rows_without_an_id_keep_the_old_text(tmp_path: Path, base: str) -> None:
    head = "question,answer,id,negative\n"
    with pytest.raises(UserError, match=r"another text for id 'C' than in faq.csv, while .*faq.csv:. has the old text under no id"):
        read_beside(tmp_path, f"{head}{base}", f"{head}reset,new,C,\n")


@pytest.mark.parametrize("role", ["id", "query_id"])
def test_row_numbers_as_ids_are_refused(tmp_path: Path, role: str) -> None:
    """A row was put in front: what the data set judges by the old numbers would be of other texts."""
    rows, added = ["how,restart", "why,charge"], ["when,now", "how,restart", "why,charge"]
    base, new = ("\n".join([f"{role},question,answer", *(f"{n},{row}" for n, row in enumerate(some)), ""]) for some in (rows, added))
    with pytest.raises(UserError, match=rf"new.csv:2: found another text for {role} '0' .* dataset.source=pairs:FILE#{role}=$"):
        read_beside(tmp_path, base, new)


@pytest.mark.parametrize("form", ["pairs", "beir"])
def test_a_corrected_question_keeps_its_split(tmp_path: Path, form: str) -> None:
    for name, word in (("faq", "wat"), ("new", "what")):
        lines = [f"q{n},{word} is {n},answer {n}" for n in range(100)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["query_id,question,answer", *lines, ""]))
    base = parse_dataset(f"pairs:{tmp_path}/faq.csv")
    if form == "beir":
        (tmp_path / "beir").mkdir()
        pairs_batch.write(kinds.read(base), tmp_path / "beir")
        base = parse_dataset(f"beir:{tmp_path}/beir")
    both = [kinds.read(base), pairs_batch.read(parse_dataset(f"pairs:{tmp_path}/new.csv"), base).source]
    former, corrected = ({split: {qrel.query for qrel in qrels()} for split, qrels in one.qrels.items()} for one in both)
    assert former == corrected and all(former.values())


@pytest.mark.parametrize(
    ("marked", "left_out"),
    [
        (("document", "A"), {"new text", "secret text"}),
        (("query", "Q"), {"q one"}),
        (("document", digest("secret text")), {"secret text"}),
        (("document", "E"), {"fifth"}),
        (("document", "F"), {"fifth"}),
    ],
    ids=["the new text's id", "a question's id", "the text's digest", "one of its ids", "another of its ids"],
)
def test_forgotten_records_are_left_out_by_id_and_by_text(tmp_path: Path, marked: tuple[str, str], left_out: set[str]) -> None:
    head, marks = "question,answer,id,query_id,negative", frozenset({mark(*marked)})
    (tmp_path / "faq.csv").write_text(f"{head}\nq one,secret text,A,Q,\nq two,other,C,R,\n")
    lines = [
        "q one,new text,A,Q,",
        "q three,secret text,B,S,",
        "q four,other,C,T,secret text",
        "Q one,other,C,U,",
        "q five,fifth,E,V,",
        "q,fifth,F,W,",
    ]
    rows = [line.split(",") for line in lines if marked[1] == "A" or ",A," not in line]
    (tmp_path / "new.csv").write_text("\n".join([head, *(",".join(row) for row in rows), ""]))
    source = pairs_batch.read(*(parse_dataset(f"pairs:{tmp_path}/{name}.csv") for name in ("new", "faq")), marks).source
    documents = {one.id: one.text for one in source.documents()}
    queries = {one.id: one.text.lower() for one in source.queries[""]()}
    judged = {(queries[qrel.query], documents[qrel.doc]) for qrels in source.qrels.values() for qrel in qrels()}
    negatives = [documents[one.doc] for one in source.negatives()]
    assert judged == {(row[0].lower(), row[1]) for row in rows if not {row[0].lower(), row[1]} & left_out}
    assert not {*documents.values(), *queries.values()} & left_out and negatives == ["secret text"] * ("secret text" not in left_out)
    counted = count_in_pairs(tmp_path / "new.csv", "", marks, marked_texts(tmp_path / "faq.csv", "", marks))
    assert {text.lower() for text in counted.texts} == left_out, "the note of forget counts them"
