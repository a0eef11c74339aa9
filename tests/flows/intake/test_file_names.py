"""Files of a batch that are no data, batches and files whose names are not UTF-8, and a `retemper forget` that fails half-way."""

import os
import time
from pathlib import Path

import pytest

from flows.intake.inbox import accept, list_batches, take_in
from flows.intake.settings import Gate, Intake
from flows.intake.verdict import Batch, kept_verdicts
from tasks.core.sources.forgotten import HEAD, mark
from tasks.prepare.commands.withdraw import withdraw_records

RULE = Intake(inbox="inbox", gate=Gate(shift=None, least=2))
SOURCE = "beir:base"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data set of a document, and a batch of copies of it."""
    monkeypatch.chdir(tmp_path)
    for folder, ids in (("base", ["one"]), ("inbox/1", ["n1", "n2", "n3", "n4"])):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "corpus.jsonl").write_text("".join(f'{{"_id": "{name}", "text": "one"}}\n' for name in ids))
    return tmp_path


def take(rule: Intake = RULE) -> list[Batch]:
    return list(take_in(rule, SOURCE, Path.cwd(), say=lambda _: None).batches)


def accept_by_hand() -> None:
    assert [batch.state for batch in take()] == ["quarantined"]
    accept(RULE, SOURCE, Path.cwd(), name="1")
    assert [batch.by for batch in take()] == ["hand"]


@pytest.mark.parametrize("name", [".DS_Store", "Thumbs.db", "desktop.ini", ".ipynb_checkpoints/corpus.jsonl"])
def test_a_file_that_is_no_data_costs_no_verdict(project: Path, name: str) -> None:
    accept_by_hand()
    (project / "inbox/1" / name).parent.mkdir(exist_ok=True)
    (project / "inbox/1" / name).write_text("of a file browser")
    assert [(batch.state, batch.by) for batch in take()] == [("accepted", "hand")]
    (project / "inbox/1/qrels").mkdir()
    (project / "inbox/1/qrels/dev.tsv").write_text("q1\tn1\t1\n")
    assert [batch.state for batch in take()] == ["quarantined"], "a new batch"


@pytest.mark.parametrize("name", [".DS_Store", "Thumbs.db", ".queries.jsonl.x7Yq2A"])
def test_a_file_browser_writes_no_batch_and_rsync_does(project: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    rule = Intake(inbox="inbox", settle_seconds=10)
    time.sleep(0.05)
    (project / "inbox/1" / name).write_text("x")
    later = (project / "inbox/1/corpus.jsonl").stat().st_ctime + 10.01
    monkeypatch.setattr(time, "time", lambda: later)
    states = [batch.state for batch in list_batches(rule, SOURCE, project)]
    assert states == ["being written" if name.startswith(".queries") else "not checked"]
    (project / "inbox/1/corpus.jsonl").unlink()
    assert [batch.state for batch in list_batches(rule, SOURCE, project)] == ["being written"], "nothing else is there yet"


def test_names_that_are_not_utf8_stop_nothing(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of an old archive, or a share of Windows."""
    other = project / "inbox" / os.fsdecode(b"M\xe4rz")
    other.mkdir()
    (other / "corpus.jsonl").write_text('{"_id": "x", "text": "x"}\n')
    (project / "inbox/1" / os.fsdecode(b"Lies mich f\xfcr.txt")).touch()
    accept_by_hand()
    said: list[str] = []
    (batch,) = take_in(RULE, SOURCE, project, say=said.append).batches
    assert (batch.name, batch.state, batch.by) == ("1", "accepted", "hand")
    assert said == [f"{project}/inbox/M\\xe4rz: found a name that is not UTF-8, so this batch is left out; rename it"]
    capsys.readouterr()
    assert [batch.name for batch in list_batches(RULE, SOURCE, project)] == ["1"]
    assert capsys.readouterr() == ("", f"{said[0]}\n"), "standard output is JSON with --json"
    other.rename(project / "inbox/März")
    assert [batch.name for batch in take()] == ["1", "März"]


def test_a_forgetting_that_fails_costs_no_verdict(project: Path) -> None:
    accept_by_hand()
    (project / "forgotten.txt").write_text(f"{HEAD}document {mark('document', 'n2')} 2026-11-30\n")
    with pytest.raises(PermissionError), kept_verdicts([project / "inbox/1"]):
        withdraw_records("batch", project / "inbox/1", {mark("document", "n2")}, dry=False)
        raise PermissionError  # of the next file
    assert [(batch.state, batch.by, batch.documents) for batch in take()] == [("accepted", "hand", 3)]
