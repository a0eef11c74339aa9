"""Batches and sources that change while they are listed: rsync and the like write under a temporary name, and rename at the end."""

import json
import shutil
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from flows.champions import tree
from flows.champions.history import Ended
from flows.intake import inbox, inspection, stamps
from flows.intake.inbox import accept, list_batches, take_in
from flows.intake.settings import Gate, Intake
from flows.intake.verdict import kept_verdicts
from flows.pages.origins import INTAKE
from flows.repository.git import git
from tasks.core.errors import UserError
from tasks.core.sources.forgotten import HEAD, mark
from tasks.prepare.commands.withdraw import withdraw_records

RULE = Intake(inbox="inbox", gate=Gate(shift=None))
REPLACE = Intake(inbox="inbox", mode="replace", gate=Gate(shift=None))
SOURCE = "beir:base"
UNFINISHED = ".corpus.jsonl.x7Yq2A"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data set and a batch, of one document each. A file with the name UNFINISHED is renamed as soon as it has been listed."""
    monkeypatch.chdir(tmp_path)
    for folder, text in (("base", "one"), ("inbox/1", "two")):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "corpus.jsonl").write_text(f'{{"_id": "{text}", "text": "{text}"}}\n')
    list_files = stamps.files_below

    def list_and_rename(path: Path) -> list[Path]:
        files = list_files(path)
        for file in files:
            if file.name == UNFINISHED:
                file.rename(file.with_name("corpus.jsonl"))
        return files

    for module in (stamps, inspection):
        monkeypatch.setattr(module, "files_below", list_and_rename)
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


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("beir:gone", "gone: not found, expected a BEIR folder with corpus.jsonl"),
        ("pairs:gone.csv", "gone.csv: not found, expected a file"),
    ],
)
def test_an_unavailable_data_set_is_not_called_unreadable(project: Path, source: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        inbox.known_records(RULE, source, project)


def test_a_source_whose_file_is_renamed_while_it_is_listed_ends_nothing(project: Path) -> None:
    update(project / "base")
    assert [batch.state for batch in take_in(RULE, SOURCE, project, say=lambda _: None).batches] == ["accepted"]
    assert not (project / "base" / UNFINISHED).exists(), "renamed on the way"


@pytest.mark.parametrize("mode", ["append", "replace"])
def test_a_batch_that_was_trained_on_is_never_left_out_because_it_is_being_written(project: Path, mode: str) -> None:
    """The champion has seen it: without it, the next model would silently be trained on less."""
    (project / "inbox/1/qrels").mkdir()
    (project / "inbox/1/queries.jsonl").write_text('{"_id": "q1", "text": "first"}\n{"_id": "q2", "text": "second"}\n')
    for split, query in (("train", "q1"), ("dev", "q2")):
        (project / f"inbox/1/qrels/{split}.tsv").write_text(f"query-id\tcorpus-id\tscore\n{query}\ttwo\t1\n")
    rule, waiting = (Intake(inbox="inbox", mode=mode, settle_seconds=seconds, gate=Gate(shift=None)) for seconds in (0, 3600))
    assert take_in(waiting, SOURCE, project, say=lambda _: None).batches == (), "a new one may wait"
    assert [batch.name for batch in take_in(rule, SOURCE, project, say=lambda _: None).batches] == ["1"]
    remedy = r"set it aside: rename it to \.1" if mode == "append" else rf"go back to dataset\.source: echo .* > {INTAKE.resolve()}"
    with pytest.raises(UserError, match=rf"inbox/1: found a batch of the last retraining that is being written, expected .*, or {remedy}$"):
        take_in(waiting, SOURCE, project)
    shutil.copytree(project / "inbox/1", project / "inbox/2")
    (project / "inbox/1").rename(project / "inbox/.1")
    if mode == "append":
        assert take_in(waiting, SOURCE, project, say=lambda _: None).batches == (), "set aside"
    else:
        with pytest.raises(
            UserError, match=r"inbox: found no batch of the last retraining, expected 1; .* go back to dataset\.source: echo"
        ):
            take_in(waiting, SOURCE, project)
    assert [batch.name for batch in take_in(rule, SOURCE, project, say=lambda _: None).batches] == ["2"]


def test_an_emptied_batch_that_was_trained_on_is_not_called_being_written(project: Path) -> None:
    """No wait ends that: its files are gone."""
    shutil.copytree(project / "inbox/1", project / "inbox/2")
    (project / "inbox/2/corpus.jsonl").write_text('{"_id": "three", "text": "three"}\n')
    (project / "inbox/3.csv").write_text("question,answer\none,eins\n")
    rule = RULE.model_copy(update={"settle_seconds": 0.0})
    assert [batch.state for batch in take_in(rule, SOURCE, project, say=lambda _: None).batches] == ["accepted"] * 3
    (project / "inbox/2/corpus.jsonl").rename(project / "corpus.jsonl")
    message = "found an empty batch, expected the content that the last retraining read; put it back, or remove {} to continue without it"
    with pytest.raises(UserError, match=f"^{project}/inbox/2: {message.format('2')}$"):
        take_in(rule, SOURCE, project)
    (project / "inbox/2/corpus.jsonl").write_text("")
    with pytest.raises(UserError, match=f"^{project}/inbox/2: {message.format('2')}$"):
        take_in(rule, SOURCE, project)
    shutil.rmtree(project / "inbox/2")
    assert take_in(rule, SOURCE, project, say=lambda _: None).missing == ("2",)
    (project / "inbox/3.csv").write_text("")
    with pytest.raises(UserError, match=f"^{project}/inbox/3.csv: {message.format('3.csv')}$"):
        take_in(rule, SOURCE, project)


def test_a_batch_that_was_trained_on_and_changes_while_it_is_read_ends_the_retraining(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def merge_and_change(folders: list[Path], **form: Any) -> None:
        (project / "inbox/1/corpus.jsonl").write_text('{"_id": "three", "text": "three"}\n')
        merge_folders(folders, **form)

    merge_folders = inbox.merge_folders
    assert [batch.name for batch in take_in(RULE, SOURCE, project, say=lambda _: None).batches] == ["1"]
    monkeypatch.setattr(inbox, "merge_folders", merge_and_change)
    with pytest.raises(UserError, match=r"inbox/1: found a batch of the last retraining that is being written"):
        take_in(RULE, SOURCE, project)
    monkeypatch.undo()
    monkeypatch.chdir(project)
    assert [batch.name for batch in take_in(RULE, SOURCE, project, say=lambda _: None).batches] == ["1"]


@pytest.mark.parametrize("form", ["beir", "csv"])
def test_an_emptied_file_of_a_batch_that_was_trained_on_ends_the_retraining(project: Path, form: str) -> None:
    """`cp` and `>` truncate a file before they write it. The batch was accepted with 0 documents, and the merge had lost them."""
    (project / "inbox/1/corpus.jsonl").unlink()
    documents, queries = '{"_id": "two", "text": "two"}\n{"_id": "three", "text": "three"}\n', '{"_id": "q1", "text": "first"}\n'
    contents = {"corpus.jsonl": (documents, "2 documents"), "queries.jsonl": (queries, "1 query")}
    if form == "csv":
        contents = {
            "corpus.csv": ("id,text\ntwo,two\nthree,three\n", "2 documents"),
            "queries.csv": ("id,text\nq1,first\n", "1 query"),
        }
    contents |= {
        "qrels/dev.tsv": ("query-id\tcorpus-id\tscore\nq1\tone\t1\n", "1 judgment"),
        "negatives.tsv": ("query-id\tcorpus-id\nq1\tone\n", "1 negative"),
    }
    (project / "inbox/1/qrels").mkdir()
    for name, (text, _) in contents.items():
        (project / "inbox/1" / name).write_text(text)
    assert [batch.state for batch in take_in(RULE, SOURCE, project, say=lambda _: None).batches] == ["accepted"]
    for name, (text, what) in contents.items():
        file = project / "inbox/1" / name
        file.write_text("")
        message = f"{file}: found an empty file, expected {what}, as when batch 1 was accepted; put its content back, or remove the file"
        for lasting in (True, False):
            with pytest.raises(UserError, match=f"^{message} to continue without it$"):
                take_in(RULE, SOURCE, project, say=lambda _: None, lasting=lasting)
        file.write_text(text)
    (project / "inbox/1/corpus.jsonl").unlink(missing_ok=True)
    (project / "inbox/1/corpus.csv").unlink(missing_ok=True)
    assert [batch.documents for batch in take_in(RULE, SOURCE, project, say=lambda _: None).batches] == [0], "as the message says"


def forget_document(project: Path, batch: str, name: str) -> None:
    """As `retemper forget` does it."""
    marks = {mark("document", name)}
    (project / "forgotten.txt").write_text(f"{HEAD}document {mark('document', name)} 2026-11-30\n")
    with kept_verdicts([project / "inbox" / batch]):
        withdraw_records("batch", project / "inbox" / batch, marks, dry=False)


def test_a_batch_whose_only_record_is_forgotten_ends_no_retraining(project: Path) -> None:
    assert [batch.state for batch in take_in(RULE, SOURCE, project, say=lambda _: None).batches] == ["accepted"]
    forget_document(project, "1", "two")
    selection = take_in(RULE, SOURCE, project, say=lambda _: None)
    assert (selection.batches, selection.missing) == ((), ())


def test_a_batch_without_a_file_that_forget_has_emptied_is_trained_on(project: Path) -> None:
    (project / "inbox/1/queries.jsonl").write_text('{"_id": "q1", "text": "first"}\n')
    assert [batch.state for batch in take_in(RULE, SOURCE, project, say=lambda _: None).batches] == ["accepted"]
    forget_document(project, "1", "two")
    (batch,) = take_in(RULE, SOURCE, project, say=lambda _: None).batches
    assert (batch.state, batch.documents, batch.queries) == ("accepted", 0, 1)


def test_a_batch_that_a_person_let_in_stays_in_without_a_forgotten_record(project: Path) -> None:
    rule = Intake(inbox="inbox", gate=Gate(shift=None, least=2))
    corpus = project / "inbox/1/corpus.jsonl"
    corpus.write_text("".join(f'{{"_id": "n{number}", "text": "one"}}\n' for number in range(4)))
    assert [batch.state for batch in take_in(rule, SOURCE, project, say=lambda _: None).batches] == ["quarantined"]
    accept(rule, SOURCE, project, name="1")
    assert [batch.state for batch in take_in(rule, SOURCE, project, say=lambda _: None).batches] == ["accepted"]
    forget_document(project, "1", "n2")
    (batch,) = take_in(rule, SOURCE, project, say=lambda _: None).batches
    assert (batch.state, batch.by, batch.documents) == ("accepted", "hand", 3)
    corpus.write_text(corpus.read_text().replace("n3", "n4"))  # another batch in its place
    forget_document(project, "1", "n1")
    assert [batch.state for batch in take_in(rule, SOURCE, project, say=lambda _: None).batches] == ["quarantined"]


def test_a_batch_that_a_person_lets_in_during_a_retraining_is_let_in(project: Path) -> None:
    """That retraining was begun without it; the next one takes it."""
    rule = Intake(inbox="inbox", gate=Gate(shift=None, least=2))
    (project / "inbox/1/corpus.jsonl").write_text("".join(f'{{"_id": "n{number}", "text": "one"}}\n' for number in range(2)))
    (project / "inbox/2").mkdir()
    (project / "inbox/2/corpus.jsonl").write_text('{"_id": "n9", "text": "two"}\n')
    assert [batch.state for batch in take_in(rule, SOURCE, project, say=lambda _: None).batches] == ["quarantined", "accepted"]

    def accept_meanwhile(line: str) -> None:
        if "now merging" in line:
            accept(rule, SOURCE, project, name="1")

    said: list[str] = []
    selection = take_in(rule, SOURCE, project, say=said.append, doing=accept_meanwhile)
    assert [batch.state for batch in selection.batches] == ["quarantined", "accepted"] and selection.bad == ()
    assert said[-1] == "batch 1: accepted by hand after its check; left for the next run"
    assert [batch.state for batch in take_in(rule, SOURCE, project, say=lambda _: None).batches] == ["accepted", "accepted"]


def test_a_new_batch_without_a_byte_is_being_written_and_one_with_an_empty_file_is_not(project: Path) -> None:
    """Some exports always write all their files."""
    (project / "inbox/1/corpus.jsonl").write_text("")
    assert [batch.state for batch in list_batches(RULE, SOURCE, project)] == ["being written"]
    (project / "inbox/1/queries.jsonl").write_text('{"_id": "q1", "text": "first"}\n')
    for _ in range(2):
        assert [batch.line for batch in take_in(RULE, SOURCE, project, say=lambda _: None).batches] == [
            "batch 1: accepted, 0 documents (0 new), 1 query"
        ]


@pytest.fixture
def exports(project: Path) -> Path:
    """An inbox of two whole data sets, `a` and `b`, of which a retraining has read the second."""
    folder = project / "inbox"
    whole = folder / "1"
    (whole / "qrels").mkdir()
    (whole / "queries.jsonl").write_text('{"_id": "q1", "text": "first"}\n{"_id": "q2", "text": "second"}\n')
    for split, query in (("train", "q1"), ("dev", "q2")):
        (whole / f"qrels/{split}.tsv").write_text(f"query-id\tcorpus-id\tscore\n{query}\ttwo\t1\n")
    shutil.copytree(whole, folder / "a")
    whole.rename(folder / "b")
    assert take_in(REPLACE, SOURCE, project, say=lambda _: None).spec == f"beir:{folder / 'b'}"
    return folder


def test_replaced_data_never_go_back_because_a_batch_is_kept_out(project: Path, exports: Path) -> None:
    file = exports / "b/corpus.jsonl"
    whole = file.read_text()
    file.write_text(f"{whole}{{\n")
    message = r"inbox/b: found a batch that is kept out \(1 malformed line: .*:2: .*\), expected .*; fix it, or go back to a: echo .* > "
    for _ in range(2):
        with pytest.raises(UserError, match=f"{message}{INTAKE.resolve()}$"):
            take_in(REPLACE, SOURCE, project)
    file.write_text(whole)
    assert take_in(REPLACE, SOURCE, project).spec == f"beir:{exports / 'b'}", "good again"
    file.write_text(f"{whole}{{\n")
    shutil.copytree(exports / "a", exports / "c")
    taken = take_in(REPLACE, SOURCE, project)
    assert (taken.spec, [batch.name for batch in taken.bad]) == (f"beir:{exports / 'c'}", ["b"]), "a later one is good"
    with (exports / "c/corpus.jsonl").open("a") as handle:
        handle.write("{\n")
    shutil.rmtree(exports / "a")
    (exports / "b").rename(exports / ".b")
    with pytest.raises(UserError, match=r"inbox/c: found a batch that is kept out \(.*; fix it, or go back to dataset\.source: echo .* > "):
        take_in(REPLACE, SOURCE, project)


def test_replaced_data_never_go_back_because_the_inbox_is_not_mounted(project: Path, exports: Path) -> None:
    exports.rename(project / "share")
    exports.mkdir()
    message = "inbox: found no batch of the last retraining, expected b; mount .*, or go back to {}: echo .* > .*intake.json$"
    for lasting in (True, False, True):
        with pytest.raises(UserError, match=message.format("dataset.source")):
            take_in(REPLACE, SOURCE, project, lasting=lasting)
    shutil.copytree(project / "share/a", exports / "a")
    with pytest.raises(UserError, match=message.format("a")):
        take_in(REPLACE, SOURCE, project)
    (project / "share/b").rename(exports / ".b")
    assert take_in(REPLACE, SOURCE, project).spec == f"beir:{exports / 'a'}", "a person has set b aside"
    (exports / "a").rename(exports / "0")
    assert take_in(REPLACE, SOURCE, project).spec == f"beir:{exports / '0'}", "a new one in place of the one that is gone"
    (exports / "0").rename(project / "0")
    with pytest.raises(UserError, match="expected 0; mount"):
        take_in(REPLACE, SOURCE, project)
    INTAKE.write_text("[]")
    assert take_in(REPLACE, SOURCE, project).spec == f"beir:{project / 'base'}", "as the message says"


def test_an_emptied_data_set_is_put_back_or_an_earlier_one_taken_as_the_message_says(project: Path, exports: Path) -> None:
    whole = {path: path.read_text() for path in exports.glob("b/**/*.*")}
    for path in whole:
        path.write_text("")
    message = f"inbox/b: found an empty batch, expected .*; put it back, or go back to a: echo .* > {INTAKE.resolve()}$"
    with pytest.raises(UserError, match=message):
        take_in(REPLACE, SOURCE, project)
    INTAKE.write_text("[]")
    assert take_in(REPLACE, SOURCE, project).spec == f"beir:{exports / 'a'}"
    for path, text in whole.items():
        path.write_text(text)
    assert take_in(REPLACE, SOURCE, project).spec == f"beir:{exports / 'b'}"
    shutil.rmtree(exports / "a")
    for path in whole:
        path.write_text("")
    with pytest.raises(UserError, match=r"; put it back, or go back to dataset\.source: echo .* > "):
        take_in(REPLACE, SOURCE, project)


def test_a_data_set_that_is_being_written_is_set_aside_or_left_as_the_message_says(project: Path, exports: Path) -> None:
    """Without another data set, one that is set aside counts as one on a share that is not mounted."""
    update(exports / "b")
    with pytest.raises(UserError, match=r"inbox/b: found .* that is being written, expected .*, or set it aside: rename it to \.b$"):
        take_in(REPLACE, SOURCE, project)
    (exports / "b").rename(exports / ".b")
    assert take_in(REPLACE, SOURCE, project).spec == f"beir:{exports / 'a'}"
    (exports / ".b").rename(exports / "b")
    assert take_in(REPLACE, SOURCE, project).spec == f"beir:{exports / 'b'}"
    shutil.rmtree(exports / "a")
    update(exports / "b")
    with pytest.raises(UserError, match=rf" being written, expected .*, or go back to dataset\.source: echo .* > {INTAKE.resolve()}$"):
        take_in(REPLACE, SOURCE, project)
    INTAKE.write_text("[]")
    update(exports / "b")
    assert take_in(REPLACE, SOURCE, project).spec == f"beir:{project / 'base'}"


def test_without_an_accepted_batch_replaced_data_are_the_source(project: Path) -> None:
    """A batch is a whole data set, and this one has no judgment."""
    for _ in range(2):
        taken = take_in(REPLACE, SOURCE, project, say=lambda _: None)
        assert (taken.spec, [batch.state for batch in taken.batches]) == (f"beir:{project / 'base'}", ["quarantined"])


def test_a_replaced_data_set_that_a_person_may_accept_is_accepted_as_the_message_says(project: Path, exports: Path) -> None:
    with (exports / "b/corpus.jsonl").open("a") as handle:
        handle.writelines(f'{{"_id": "c{number}", "text": "one and the same"}}\n' for number in range(60))
    with pytest.raises(
        UserError, match=r"\(59 of 61 new .*\), expected .*; accept it \(retemper intake accept b\), or .* to a: echo .* > "
    ):
        take_in(REPLACE, SOURCE, project)
    accept(REPLACE, SOURCE, project, name="b")
    assert take_in(REPLACE, SOURCE, project).spec == f"beir:{exports / 'b'}"


@pytest.mark.parametrize("mode", ["append", "replace"])
def test_a_machine_that_has_not_retrained_yet_misses_the_batches_of_the_others(project: Path, mode: str) -> None:
    """Its inbox may be a folder on which nothing is mounted; the data set would silently be dataset.source alone."""
    project = project.rename(project.with_name(f"my {project.name}"))  # the command is to be copied
    batches = [{"name": "0", "state": "quarantined"}, {"name": "1", "state": "accepted"}]
    git("init", "--quiet", folder=project)
    blob = git("hash-object", "-w", "--stdin", text=json.dumps(asdict(Ended("a", "promoted", "", "", intake=batches))), folder=project)
    files = git("mktree", text=f"100644 blob {blob}\t{tree.RECORD}\n", folder=project)
    git("update-ref", tree.BRANCH, git("commit-tree", files, "-m", "of another machine", folder=project), folder=project)
    shutil.rmtree(project / "inbox/1")
    rule = Intake(inbox="inbox", mode=mode)
    with pytest.raises(UserError, match=r"inbox: found no batch of the last retraining, expected 1; .*: echo .* > .*$") as refusal:
        take_in(rule, SOURCE, project)
    command = str(refusal.value).rpartition(": ")[2]
    assert command.startswith("echo '[]' > "), "zsh takes [] for a pattern"
    subprocess.run(["sh", "-c", command], check=True)
    assert take_in(rule, SOURCE, project).batches == ()
