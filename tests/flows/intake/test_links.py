"""Batches whose judgments are in a folder that others write, behind a link."""

from pathlib import Path

import pytest

from flows.intake.inbox import take_in
from flows.intake.settings import Gate, Intake
from flows.intake.verdict import Batch, kept_verdicts
from tasks.core.sources.forgotten import mark
from tasks.prepare.commands.withdraw import withdraw_records

RULE = Intake(inbox="inbox", gate=Gate(shift=None))
HEADER = "query-id\tcorpus-id\tscore\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data set and a batch of one document; the batch's qrels are a link to the folder `shared`."""
    monkeypatch.chdir(tmp_path)
    for folder, text in (("base", "one"), ("inbox/1", "two")):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "corpus.jsonl").write_text(f'{{"_id": "{text}", "text": "{text}"}}\n')
    (tmp_path / "base/queries.jsonl").write_text('{"_id": "q1", "text": "first"}\n')
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared/train.tsv").write_text(f"{HEADER}q1\tone\t1\n")
    (tmp_path / "inbox/1/qrels").symlink_to(tmp_path / "shared")
    return tmp_path


def take(project: Path) -> Batch:
    (batch,) = take_in(RULE, "beir:base", project, say=lambda _: None).batches
    return batch


def test_judgments_behind_a_linked_folder_are_checked_when_they_change(project: Path) -> None:
    assert (take(project).state, take(project).judgments) == ("accepted", {"train": 1})
    (project / "shared/train.tsv").write_text(f"{HEADER}q1\tone\t1\nnobody\tnothing\t1\n")
    assert take(project).state == "quarantined"


def test_a_linked_folder_of_judgments_alone_is_a_batch(project: Path) -> None:
    (project / "inbox/1/corpus.jsonl").unlink()
    assert (take(project).state, take(project).judgments) == ("accepted", {"train": 1})


def test_a_batch_with_nothing_left_but_judgments_behind_a_link_is_not_set_aside(project: Path) -> None:
    batch = project / "inbox/1"
    with kept_verdicts([batch]):
        assert withdraw_records("batch", batch, {mark("document", "two")}, dry=False).counts == {str(batch / "corpus.jsonl"): 1}
    assert [path.name for path in (project / "inbox").iterdir()] == ["1"]
    assert (project / "shared/train.tsv").read_text() == f"{HEADER}q1\tone\t1\n"
