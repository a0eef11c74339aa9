"""The inbox: every batch is checked once. A good one is merged with the data set; a bad one is kept out without stopping the others.

The verdict is kept in the project, one JSON file per batch: in .retemper/accepted, or in .retemper/quarantine with the reasons. It is valid
as long as the batch's files, the source, and all batches of the last merge are the same. Every run checks a quarantined batch again, since
what it lacked may have come. A shift that was found stays found, whatever a later champion's vectors would say.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from flows.batches.foreseen import settings_of
from flows.batches.known import Known
from flows.batches.merge import OUT, absolute, merge_folders
from flows.batches.records import form_of
from flows.intake.gate import may_arrive_later
from flows.intake.inspection import Inbox, Say
from flows.intake.settings import Intake
from flows.intake.verdict import Batch, counts, is_news, save
from flows.pages.origins import INTAKE
from flows.process.processes import Processes
from tasks.core.errors import UserError
from tasks.core.files import write_json
from tasks.core.params.sections import read_yaml
from tasks.core.sources.forgotten import FILE as FORGOTTEN
from tasks.core.sources.forgotten import read_marks

PARAMS = Path("params.yaml")


@dataclass(frozen=True)
class Selection:
    """The SPEC to train on, every batch that was looked at, and `bad`: batches quarantined for the first time, or for a new reason."""

    spec: str
    batches: tuple[Batch, ...] = ()
    bad: tuple[Batch, ...] = ()
    missing: tuple[str, ...] = ()  # names of batches that the last retraining merged, and the inbox has no longer


def take_in(
    intake: Intake,
    source: str,
    project: Path,
    *,
    say: Say = print,
    doing: Say = lambda _: None,
    processes: Processes | None = None,
    lasting: bool = True,
) -> Selection:
    """The data to train on: `source` itself, the last good batch, or a folder (below the current one) that merges all good ones.

    `inbox` and `source` are relative to `project`; params.yaml of the current folder says what prepare refuses. `lasting`: record the
    verdicts. Raises UserError if the inbox is unavailable, has lost every batch of the last merge, or has one of them that is being
    written or has lost a file's content, if `source` cannot be merged, or if `replace` would go back to older data.
    """
    spec = absolute(source, project)
    inbox = (
        None if intake.inbox is None else replace(_inbox(intake, source, project), say=say, doing=doing, processes=processes or Processes())
    )
    found, missing = (inbox.batches(), inbox.missing()) if inbox else ([], ())
    names, paths = {path.name for path in found}, [path for path in found if inbox and not inbox.is_being_written(path)]
    if inbox:
        inbox.refuse_unfinished(names - {path.name for path in paths})
        inbox.refuse_emptied()
    if not inbox or not paths:
        if inbox:
            inbox.refuse_return([])
        if lasting:
            write_json(INTAKE, inbox.lost(names) if inbox else [])
        return Selection(spec, missing=missing)
    if intake.mode == "append":
        inbox.refuse_unmergeable()
    while True:
        batches = inbox.judge(paths)
        good = [inbox.folder / batch.name for batch in batches if batch.state == "accepted"]
        if good and intake.mode == "append":
            doing(f"inbox: {len(paths)}/{len(paths)} batches, {counts(batches)}; now merging")
            try:
                merge_folders(inbox.folders([*inbox.sources, *good]), form=form_of(spec))
            except (UserError, OSError):
                if all(inbox.stamp(path) == batch.stamp for path, batch in _with_paths(inbox, batches)):
                    raise
        changed = {path.name for path, batch in _with_paths(inbox, batches) if inbox.stamp(path) != batch.stamp}
        if not changed:
            break
        inbox.refuse_unfinished(changed)
        paths = [path for path in paths if path.name not in changed]
        for name in sorted(changed):
            say(f"batch {name}: changed while it was read; left for the next run")
    inbox.refuse_return(batches)
    had = inbox.had()
    batches = [replace(batch, had=had.get(batch.name, "")) if batch.state == "quarantined" else batch for batch in batches]
    meanwhile = [batch for batch in batches if inbox.is_accepted_meanwhile(batch)]
    for batch in meanwhile:
        say(f"batch {batch.name}: accepted by hand after its check; left for the next run")
    to_save = [batch for batch in batches if batch not in meanwhile]
    bad = tuple(batch for batch in to_save if batch.state == "quarantined" and is_news(project, batch))
    if lasting:
        for batch in to_save:
            save(project, batch)
        write_json(INTAKE, [*(batch.record for batch in batches), *inbox.lost(names - {batch.name for batch in batches})])
    if good:
        spec = f"beir:{OUT.resolve()}" if intake.mode == "append" else inbox.spec_of(good[-1])
    return Selection(spec, tuple(batches), bad, missing)


def list_batches(intake: Intake, source: str, project: Path) -> list[Batch]:
    """Every batch of the inbox, with its last verdict. Only names, sizes, and times are read."""
    inbox = _inbox(intake, source, project)
    batches = []
    for path in inbox.batches():
        if path.name.startswith("."):
            batches.append(Batch(path.name, "left out", wrong=("its name begins with a dot",)))
        elif inbox.is_being_written(path):
            batches.append(Batch(path.name, "being written"))
        else:
            batches.append(inbox.verdict(path) or Batch(path.name, "not checked"))
    return batches


def batches_to_merge(intake: Intake, source: str, project: Path) -> list[Path]:
    """The batches that a retraining merges, in that order: all complete ones that this machine does not keep out.

    Raises UserError if the inbox is unavailable.
    """
    inbox = _inbox(intake, source, project)
    verdicts = {path: inbox.verdict(path) for path in inbox.complete_batches()}
    return [path for path, batch in verdicts.items() if not (batch and batch.state == "quarantined")]


def folders_to_merge(intake: Intake, source: str, project: Path, *, chosen: Sequence[Path]) -> list[Path]:
    """The folders of the data set and of `chosen` batches, as a retraining merges them. Raises UserError if batches cannot be merged."""
    inbox = _inbox(intake, source, project)
    inbox.refuse_unmergeable()
    return inbox.folders([*inbox.sources, *chosen])


def known_records(intake: Intake, source: str, project: Path) -> Known | None:
    """What a new batch is checked against: the data set and the accepted batches; None if the data set is not in a form of batches.

    Raises UserError if the data set is unavailable.
    """
    inbox = _inbox(intake, source, project)
    if not inbox.sources:
        return None
    inbox.refuse_unmergeable()
    return inbox.known(inbox.accepted())


def check_folder(intake: Intake, source: str, project: Path, *, folder: Path) -> Batch:
    """Check `folder`, or a file of pairs, against the data set and the accepted batches; return the verdict without recording it."""
    inbox = _inbox(intake, source, project)
    if intake.inbox is not None and not folder.exists() and (inbox.folder / folder).exists():
        folder = inbox.folder / folder  # a batch of the inbox, by its name
    if not folder.exists():
        raise UserError(f"{folder}: no such folder or file, expected a batch")
    if intake.mode == "append":
        inbox.refuse_unmergeable()
    others = [path for path in inbox.accepted() if path.resolve() != folder.resolve()]
    batch = inbox.check(folder, inbox.known(others), [])
    if intake.inbox is None or folder.parent.resolve() != inbox.folder.resolve():
        inbox.files.drop(folder)
    return batch


def accept(intake: Intake, source: str, project: Path, *, name: str) -> Batch:
    """Accept a quarantined batch by hand. Raises UserError if there is no such batch, or prepare would refuse it."""
    inbox = _inbox(intake, source, project)
    if intake.mode == "append":
        inbox.refuse_unmergeable()
    path = next((path for path in inbox.batches() if path.name == name), None)
    if path is None or inbox.is_being_written(path):
        names = ", ".join(path.name for path in inbox.complete_batches()) or "none yet"
        raise UserError(f"{inbox.folder / name}: no such batch, or one that is left out or being written; expected one of {names}")
    batch = inbox.verdict(path)
    if batch is None or batch.wrong:  # what it lacked may have come, and prepare's parameters may have changed
        batch = check_folder(intake, source, project, folder=path)
    if batch.wrong:
        hint = "accept the batch that has it first, " if may_arrive_later(batch.wrong[0]) else ""
        raise UserError(
            f"batch {name}: cannot be merged: {batch.wrong[0]}; {hint}fix the batch, or see prepare in params.yaml for what it may drop"
        )
    batch = replace(
        batch, state="accepted", by="hand" if batch.odd else batch.by, stamp=inbox.stamp(path), beside=inbox.source_stamp(), rules=""
    )
    save(project, batch)
    return batch


def _inbox(intake: Intake, source: str, project: Path) -> Inbox:
    sections = read_yaml(PARAMS) if PARAMS.exists() else {}
    rules = settings_of(sections, whole=intake.mode == "replace")
    marks = read_marks() | read_marks(project / FORGOTTEN)  # of records forgotten in the project, perhaps not yet in the worktree's commit
    say = partial(print, file=sys.stderr)  # standard output may be JSON
    return Inbox(project, intake, absolute(source, project), rules, marks, say, Processes())


def _with_paths(inbox: Inbox, batches: Sequence[Batch]) -> list[tuple[Path, Batch]]:
    return [(inbox.folder / batch.name, batch) for batch in batches]
