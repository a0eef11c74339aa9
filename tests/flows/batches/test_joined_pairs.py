"""Files of pairs in the inbox whose texts have ids of the data set, while other batches give such an id a new text. (All small cases:
test_small_merges.)"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from flows.batches.pairs_files import FOLDER
from flows.intake.inbox import batches_to_merge, check_folder, known_records, take_in
from flows.intake.settings import Gate, Intake

HEAD = "id,query_id,query,passage,split,negative"
OTHERS = ("the dev answer", "the test answer")
SPLITS = ("1,q1,dev,the dev answer,dev,", "2,q2,test,the test answer,test,")  # so that no query gets its split by a hash
RULE = Intake(inbox="inbox", gate=Gate(shift=None, duplicates=None))


@pytest.fixture
def merge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[dict[str, str]]]:
    """Merge batches, by name, with a file of two questions: documents and queries by id, and judged texts. `kept_out`: why one is."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "inbox").mkdir()

    def write(file: Path, *rows: str) -> None:
        file.write_text("\n".join([HEAD, *rows, ""]))

    def merge_files(kept_out: str = "", **batches: str) -> list[dict[str, str]]:
        for name, rows in batches.items():
            write(tmp_path / f"inbox/{name}.csv", *rows.split(";"))
        outcome = take_in(RULE, "pairs:base.csv", tmp_path, say=lambda _: None)
        reasons = [batch.reason for batch in outcome.batches if batch.state != "accepted"]
        assert len(reasons) == bool(kept_out) and kept_out in "".join(reasons).replace(f"{tmp_path}/inbox/", "")
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


HERE = "found another text for document '7' than in b1.csv, and the text here is also under another id, or none"
THERE = "found another text for document '7' than in b1.csv, and the text there is also under another id, or none"


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("10,q10,when close?,at six,train,at nine", f"b2.csv:2: {HERE}"),
        ("9,q9,when in 2020?,at nine,train,", f"b2.csv:2: {HERE}"),
        ("11,q11,where?,here,train,", "b2.csv:2: found another text for query 'q8' than in b1.csv, and the text here is also"),
    ],
)
def test_a_later_batch_with_the_old_text_is_kept_out(merge: Callable[..., list[dict[str, str]]], row: str, reason: str) -> None:
    merged = merge(b1=f"{CORRECTION};8,q8,where is it?,main street,train,")
    assert merged[0] == {"7": "at ten", "8": "main street"} and merged[1]["q8"] == "where is it?"
    assert merge(reason, b2=row) == merged


def test_a_later_correction_of_a_text_with_two_ids_is_kept_out(merge: Callable[..., list[dict[str, str]]]) -> None:
    merged = merge(b1="9,q9,branch hours?,at nine,train,;8,q10,whence?,main street,train,")
    assert merged[0] == {"7": "at nine", "8": "main street"}
    assert merge(f"b2.csv:2: {THERE}, expected texts that only that id has; change the row in the data set", b2=CORRECTION) == merged
    documents, _, judged = merge(b2="8,q10,whence?,side street,train,")
    assert documents["8"] == "side street" and judged["where?"] == judged["whence?"] == "side street", "an id alone is corrected"


def test_the_latest_batch_counts_for_an_id_alone(merge: Callable[..., list[dict[str, str]]]) -> None:
    """Such as exports of the whole file, one a week."""
    old = "7,q7,when open?,at nine,train,;8,q8,where?,main street,train,"
    documents, _, judged = merge(b1=old, b2=f"{CORRECTION};8,q8,where?,main street,train,", b3="9,q9,who?,we,train,")
    assert documents == {"7": "at ten", "8": "main street", "9": "we"} and judged == {**JUDGED, "who?": "we"}


def test_a_folder_of_a_file_is_written_once(tmp_path: Path, merge: Callable[..., list[dict[str, str]]]) -> None:
    """A retraining may be reading it while something else reads the inbox."""
    merge(b1=CORRECTION, b2="10,q10,what?,main street,train,")
    folders = [*(tmp_path / FOLDER).glob("*/*.csv")]
    marks = [folder / "marked" for folder in folders]
    for file in marks:
        file.touch()
    merge(b3="8,q8,where is it?,main street,train,;11,q11,who?,we,train,")
    check_folder(RULE, "pairs:base.csv", tmp_path, folder=Path("b2.csv"))
    known_records(RULE, "pairs:base.csv", tmp_path)
    batches_to_merge(RULE, "pairs:base.csv", tmp_path)
    assert len(folders) == 3 and all(file.exists() for file in marks)


def test_a_batch_in_beir_form_corrects_too(tmp_path: Path, merge: Callable[..., list[dict[str, str]]]) -> None:
    (tmp_path / "inbox/b1").mkdir()
    (tmp_path / "inbox/b1/corpus.jsonl").write_text('{"_id": "7", "text": "at ten"}\n')
    documents, _, judged = merge(f"b2.csv:2: {HERE}".replace("b1.csv", "b1"), b2="9,q9,branch hours?,at nine,train,")
    assert documents == {"7": "at ten", "8": "main street"} and judged == JUDGED


def test_a_batch_in_beir_form_is_kept_out_too(tmp_path: Path, merge: Callable[..., list[dict[str, str]]]) -> None:
    merge(b1="9,q9,branch hours?,at nine,train,")
    (tmp_path / "inbox/b2").mkdir()
    (tmp_path / "inbox/b2/corpus.jsonl").write_text('{"_id": "7", "text": "at ten"}\n')
    documents, _, judged = merge(f"b2/corpus.jsonl:1: {THERE}")
    assert documents == {"7": "at nine", "8": "main street"} and judged["branch hours?"] == "at nine"
