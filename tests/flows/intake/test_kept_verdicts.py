"""Verdicts when `retemper forget` removes a record from the source that batches were checked beside."""

import json
from pathlib import Path

import pytest

from flows.intake.inbox import accept, take_in
from flows.intake.settings import Gate, Intake
from flows.intake.verdict import Batch, kept_beside
from tasks.core.sources.forgotten import HEAD, mark
from tasks.prepare.commands.withdraw import withdraw_records

STRICT, LOOSE = (Intake(inbox="inbox", gate=Gate(shift=None, duplicates=share, least=2)) for share in (0.0, 1.0))
COPIES = "".join(json.dumps({"_id": f"n{number}", "text": "three"}) + "\n" for number in range(4))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data set of the documents one and two, and a batch of copies, which only LOOSE accepts."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base").mkdir()
    (tmp_path / "base/corpus.jsonl").write_text('{"_id": "one", "text": "one"}\n{"_id": "two", "text": "two"}\n')
    (tmp_path / "inbox/1").mkdir(parents=True)
    (tmp_path / "inbox/1/corpus.jsonl").write_text(COPIES)
    return tmp_path


def take(project: Path, rule: Intake) -> list[Batch]:
    return list(take_in(rule, "beir:base", project, say=lambda _: None).batches)


def forget_document(project: Path, name: str) -> None:
    """As `retemper forget` does it."""
    marks = {mark("document", name)}
    (project / "forgotten.txt").write_text(f"{HEAD}document {mark('document', name)} 2026-11-30\n")
    with kept_beside([project / "base"]):
        assert withdraw_records("beir", project / "base", marks, dry=False).counts


def test_an_accepted_batch_is_not_judged_again_when_the_source_loses_a_forgotten_record(project: Path) -> None:
    """Without the champion's corpus, which forget removes, its texts would be compared by words."""
    assert [batch.state for batch in take(project, LOOSE)] == ["accepted"]
    forget_document(project, "two")
    for _ in range(2):
        assert [batch.state for batch in take(project, STRICT)] == ["accepted"]


def test_it_is_checked_for_what_it_needs_of_the_forgotten_record(project: Path) -> None:
    (project / "inbox/1/queries.jsonl").write_text('{"_id": "q1", "text": "first"}\n')
    (project / "inbox/1/qrels").mkdir()
    (project / "inbox/1/qrels/train.tsv").write_text("query-id\tcorpus-id\tscore\nq1\ttwo\t1\nq1\tone\t1\n")
    assert [batch.judgments for batch in take(project, LOOSE)] == [{"train": 2}]
    forget_document(project, "two")
    assert [(batch.state, batch.judgments) for batch in take(project, STRICT)] == [("accepted", {"train": 1})]


def test_a_verdict_beside_another_state_of_the_source_is_not_kept(project: Path) -> None:
    assert [batch.state for batch in take(project, LOOSE)] == ["accepted"]
    with (project / "base/corpus.jsonl").open("a") as handle:
        handle.write('{"_id": "four", "text": "four"}\n')
    forget_document(project, "two")
    assert [batch.state for batch in take(project, STRICT)] == ["quarantined"]
    accept(STRICT, "beir:base", project, name="1")
    assert [batch.by for batch in take(project, STRICT)] == ["hand"]
