"""What is said of a batch that the data set had, and that is kept out now."""

import json
import shutil
from pathlib import Path

import pytest

from flows.intake.inbox import Selection, take_in
from flows.intake.settings import Gate, Intake

RULE = Intake(inbox="inbox", gate=Gate(shift=None, duplicates=None))
LOSS = "batch 1: quarantined, so the data set, which had it (1 document, 1 query, 1 judgment), is now without it: 1 malformed line: "


@pytest.fixture
def batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A batch of a document and a judged query, and a data set of one document."""
    monkeypatch.chdir(tmp_path)
    for folder, name in (("base", "a"), ("inbox/1", "b"), ("inbox/2", "c")):
        Path(folder, "qrels").mkdir(parents=True)
        Path(folder, "corpus.jsonl").write_text(json.dumps({"_id": f"d{name}", "text": f"text {name}"}) + "\n")
        Path(folder, "queries.jsonl").write_text(json.dumps({"_id": f"q{name}", "text": f"query {name}"}) + "\n")
        Path(folder, "qrels/train.tsv").write_text(f"query-id\tcorpus-id\tscore\nq{name}\td{name}\t1\n")
    return Path("inbox/1")


def take(*, lasting: bool = True) -> Selection:
    return take_in(RULE, "beir:base", Path.cwd(), say=lambda _: None, lasting=lasting)


def test_a_batch_that_was_in_and_is_spoiled_is_not_told_of_as_a_new_one(batch: Path) -> None:
    """Its documents are served, and the next model would be trained and promoted without them."""
    Path("inbox/3").mkdir()
    Path("inbox/3/corpus.jsonl").write_text('{"_id": \n')
    assert [one.state for one in take().batches] == ["accepted", "accepted", "quarantined"]
    corpus = batch / "corpus.jsonl"
    good = corpus.read_text()
    corpus.write_text(good + '{"_id": \n')
    (bad,) = take(lasting=False).bad
    assert bad.line.startswith(LOSS)
    first = take()
    assert [one.line for one in first.bad] == [bad.line], "as it is sent to people"
    assert first.batches[2].line.startswith("batch 3: quarantined: 1 malformed line: "), "it never was in"
    assert take().batches[0].line == bad.line, "the run before may have failed"
    corpus.write_text(good)
    assert take().batches[0].line == "batch 1: accepted, 1 document (1 new), 1 query, 1 train judgment"


@pytest.mark.parametrize("others", [True, False])
def test_what_a_batch_had_is_known_after_a_run_while_it_is_being_fixed(batch: Path, *, others: bool) -> None:
    """Its next mistake would be that of a new batch. One that was removed meanwhile is a new batch."""
    if not others:
        shutil.rmtree("inbox/2")
    take()
    corpus = batch / "corpus.jsonl"
    corpus.write_text('{"_id": \n')
    assert take().bad[0].line.startswith(LOSS)
    for removed in (False, True):
        shutil.rmtree(batch)
        if not removed:
            batch.mkdir()
        assert [one.name for one in take().batches] == ["2"] * others, "it is being written, or gone"
        batch.mkdir(exist_ok=True)
        corpus.write_text("[]\n")
        assert take(lasting=False).batches[0].line.startswith(LOSS) != removed
