"""Files of pairs in the inbox whose texts have ids of the data set, while other batches give such an id a new text."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from flows.batches.pairs_files import FOLDER
from flows.intake.inbox import batches_to_merge, check_folder, known_records, take_in
from flows.intake.settings import Gate, Intake
from tasks.core.text.plain import digest

HEAD = "id,query_id,query,passage,split,negative"
OTHERS = ("the dev answer", "the test answer")
SPLITS = ("1,q1,dev,the dev answer,dev,", "2,q2,test,the test answer,test,")  # so that no query gets its split by a hash
RULE = Intake(inbox="inbox", gate=Gate(shift=None, duplicates=None))


@pytest.fixture
def merge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[dict[str, str]]]:
    """Merge batches, by name, with a file of two questions: documents and queries by id, and judged texts."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "inbox").mkdir()

    def write(file: Path, *rows: str) -> None:
        file.write_text("\n".join([HEAD, *rows, ""]))

    def merge_files(**batches: str) -> list[dict[str, str]]:
        for name, rows in batches.items():
            write(tmp_path / f"inbox/{name}.csv", *rows.split(";"))
        outcome = take_in(RULE, "pairs:base.csv", tmp_path, say=lambda _: None)
        assert [batch.reason for batch in outcome.batches if batch.state != "accepted"] == []
        folder = Path(outcome.spec.removeprefix("beir:"))
        records = [[json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()] for name in ("corpus", "queries")]
        documents, queries = ({record["_id"]: record["text"] for record in some} for some in records)
        pairs = [line.split("\t") for file in (folder / "qrels").iterdir() for line in file.read_text().splitlines()[1:]]
        judged = {queries[query]: documents[document] for query, document, _ in pairs}
        return [{name: text for name, text in documents.items() if text not in OTHERS}, queries, judged]

    write(tmp_path / "base.csv", "7,q7,when open?,at nine,train,", "8,q8,where?,main street,train,", *SPLITS)
    return merge_files


CORRECTION = "7,q7,when open?,at ten,train,"
JUDGED = {"when open?": "at ten", "where?": "main street", "dev": "the dev answer", "test": "the test answer"}


def test_a_later_batch_with_the_old_text_leaves_the_correction(merge: Callable[..., list[dict[str, str]]]) -> None:
    merge(b1=CORRECTION)
    documents, _, judged = merge(b2="10,q10,when close?,at six,train,at nine")
    assert documents == {"7": "at ten", "8": "main street", "10": "at six", digest("at nine"): "at nine"}
    assert judged == {**JUDGED, "when close?": "at six"}
    documents, queries, judged = merge(b3="9,q9,when in 2020?,at nine,train,;8,q8,where is it?,main street,train,")
    assert documents["7"] == "at ten" and documents["9"] == "at nine" and queries["q8"] == "where is it?"
    documents, queries, _ = merge(b4="11,q11,where?,here,train,")
    assert queries["q8"] == "where is it?" and queries["q11"] == "where?", "so it is with queries"


def test_a_later_correction_leaves_the_old_text_to_an_earlier_batch(merge: Callable[..., list[dict[str, str]]]) -> None:
    documents, _, judged = merge(b1="9,q9,branch hours?,at nine,train,", b2="8,q10,whence?,at nine,train,")
    assert documents == {"7": "at nine", "8": "main street"}
    documents, _, judged = merge(b3=CORRECTION)
    old = digest("at nine")
    assert documents == {"7": "at ten", "8": "main street", "9": "at nine", old: "at nine"}, "8 has its text in the data set"
    assert judged == {**JUDGED, "branch hours?": "at nine", "whence?": "at nine"}


def test_a_batch_is_checked_beside_those_that_are_accepted(merge: Callable[..., list[dict[str, str]]]) -> None:
    """By itself, the second one's question has the id of the data set's, which is in train."""
    merge(b1="8,q8,where is it?,main street,train,")
    _, queries, judged = merge(b2="11,q11,where?,here,dev,")
    assert queries["q11"] == "where?" and judged["where?"] == "here" and judged["where is it?"] == "main street"


def test_a_folder_of_a_file_is_written_again_only_if_its_ids_are_affected(
    tmp_path: Path, merge: Callable[..., list[dict[str, str]]]
) -> None:
    def marks() -> list[str]:
        kept = sorted(file.parent.name for file in (tmp_path / FOLDER).glob("*/*/marked"))
        for folder in (tmp_path / FOLDER).glob("*/*.csv"):
            (folder / "marked").touch()
        return kept

    merge(b1="9,q9,branch hours?,at nine,train,", b2="10,q10,what?,main street,train,")
    marks()
    merge(b3="11,q11,who?,we,train,")
    assert marks() == ["b1.csv", "b2.csv", "base.csv"]
    merge(b4=CORRECTION)
    assert marks() == ["b2.csv", "b3.csv", "base.csv"]
    assert merge() == merge() and marks() == ["b1.csv", "b2.csv", "b3.csv", "b4.csv", "base.csv"]
    check_folder(RULE, "pairs:base.csv", tmp_path, folder=Path("b4.csv"))
    known_records(RULE, "pairs:base.csv", tmp_path)
    batches_to_merge(RULE, "pairs:base.csv", tmp_path)
    assert marks() == ["b1.csv", "b2.csv", "b3.csv", "b4.csv", "base.csv"], "a retraining may be reading them"
    (tmp_path / "inbox/b4.csv").unlink()
    documents, _, judged = merge()
    assert documents["7"] == "at nine" and "9" not in documents and judged["branch hours?"] == "at nine"


def test_a_batch_in_beir_form_corrects_too(tmp_path: Path, merge: Callable[..., list[dict[str, str]]]) -> None:
    (tmp_path / "inbox/b1").mkdir()
    (tmp_path / "inbox/b1/corpus.jsonl").write_text('{"_id": "7", "text": "at ten"}\n')
    documents, _, judged = merge(b2="9,q9,branch hours?,at nine,train,")
    assert documents == {"7": "at ten", "8": "main street", "9": "at nine"} and judged == {**JUDGED, "branch hours?": "at nine"}
