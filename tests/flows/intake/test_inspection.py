"""Batches and sources that change while they are listed: rsync and the like write under a temporary name, and rename at the end."""

import shutil
from pathlib import Path

import pytest

from flows.intake import inspection
from flows.intake.inbox import list_batches, take_in
from flows.intake.settings import Gate, Intake

RULE = Intake(inbox="inbox", gate=Gate(shift=None))
SOURCE = "beir:base"
UNFINISHED = ".corpus.jsonl.x7Yq2A"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data set and a batch, of one document each. A file with the name UNFINISHED is renamed as soon as it has been listed."""
    monkeypatch.chdir(tmp_path)
    for folder, text in (("base", "one"), ("inbox/1", "two")):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "corpus.jsonl").write_text(f'{{"_id": "{text}", "text": "{text}"}}\n')
    list_files = inspection._files_of

    def list_and_rename(path: Path) -> list[Path]:
        files = list_files(path)
        for file in files:
            if file.name == UNFINISHED:
                file.rename(file.with_name("corpus.jsonl"))
        return files

    monkeypatch.setattr(inspection, "_files_of", list_and_rename)
    return tmp_path


def update(folder: Path) -> None:
    """As rsync does, just before it renames the new file."""
    shutil.copy(folder / "corpus.jsonl", folder / UNFINISHED)


def test_a_batch_whose_file_is_renamed_while_it_is_listed_is_being_written(project: Path) -> None:
    update(project / "inbox/1")
    assert [batch.state for batch in list_batches(RULE, SOURCE, project)] == ["being written"]
    update(project / "inbox/1")
    assert take_in(RULE, SOURCE, project, say=lambda _: None).batches == ()
    assert [batch.state for batch in take_in(RULE, SOURCE, project, say=lambda _: None).batches] == ["accepted"]


def test_a_source_whose_file_is_renamed_while_it_is_listed_ends_nothing(project: Path) -> None:
    update(project / "base")
    assert [batch.state for batch in take_in(RULE, SOURCE, project, say=lambda _: None).batches] == ["accepted"]
    assert not (project / "base" / UNFINISHED).exists(), "renamed on the way"
