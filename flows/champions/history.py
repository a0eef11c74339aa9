"""How retrainings ended, and models crowned by hand: from the branch's records, `.retemper/retrainings.jsonl` and champion tags."""

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from flows.champions import champion, tree
from flows.champions.champion import Champion
from flows.process.display import Display
from flows.repository.git import git
from flows.repository.lock import read_blob
from flows.repository.tags import prefix_of
from tasks.core.files import append_line, from_record

AT_WORK = Path(".retemper/at_work.json")  # the retraining in progress; if the next one finds it, that one was killed
HISTORY = Path(".retemper/retrainings.jsonl")

Result = Literal["promoted", "refused", "unchanged", "failed", "killed", "stopped", "superseded", "set", "rollback"]  # the last two by hand


@dataclass(frozen=True)
class Ended:
    """How a retraining ended. `champion` is the number of the champion afterwards, `candidate` the best new model."""

    id: str
    result: Result
    reason: str
    when: str
    champion: int | None = None
    candidate: str | None = None
    commit: str | None = None
    metrics: Mapping[str, Any] | None = None  # model, split, measure; includes the champion's own on the new data
    comparison: Mapping[str, Any] | None = None  # the verdict, also of a refusal
    how: Mapping[str, Any] | None = None  # mode and why, and what a later retraining needs to know (flows.retraining.plan)
    intake: Sequence[Mapping[str, Any]] | None = None  # each batch of the inbox: flows.intake.verdict.Batch

    @property
    def line(self) -> str:
        return f"retraining {self.result}: {self.reason}"


def read_history(project: Path) -> list[Ended]:
    """Every retraining known here, in the order in which they ended: in the branch's order, with those only in this folder in between."""
    local_records: list[dict[str, Any]] = []
    if (project / HISTORY).exists():
        for line in (project / HISTORY).read_bytes().split(b"\n"):
            with contextlib.suppress(ValueError):  # a line that a full disk truncated, perhaps within a character
                local_records.append(json.loads(line))
    branch: dict[str, Ended] = {}
    if tip := tree.known_tip(project):
        branch = {entry.id: entry for entry in read_outcomes(project, tree.records(project, tip))}
    local_entries = [_as_on_branch(from_record(Ended, entry), branch.get(entry["id"])) for entry in local_records]
    merged, known = list[Ended](), {entry.id for entry in local_entries}
    for entry in branch.values():
        if entry.id not in known:
            merged.append(entry)
        elif place := next((place for place, one in enumerate(local_entries, 1) if one.id == entry.id), 0):
            merged, local_entries = merged + local_entries[:place], local_entries[place:]
    return merged + local_entries


def _as_on_branch(entry: Ended, shared: Ended | None) -> Ended:
    """The entry as the branch, shared by all machines, has it: this machine's champion may have been superseded since."""
    if shared is None or (shared.result, shared.champion) == (entry.result, entry.champion):
        return entry
    return replace(entry, result=shared.result, reason=shared.reason, champion=shared.champion, commit=shared.commit)


def read_outcome(project: Path, commit: str) -> Ended | None:
    """How the retraining that made `commit` of the branch ended; None if the commit holds no record."""
    entry = json.loads(read_blob(commit, tree.RECORD, project) or "{}")
    return from_record(Ended, entry | {"commit": commit}) if entry else None


def read_outcomes(project: Path, commits: Sequence[str]) -> list[Ended]:
    """`read_outcome` of `commits` that hold records, by one process of git: an hourly schedule makes thousands in a year."""
    path, at = prefix_of(project) + tree.RECORD, 0
    names = "".join(f"{commit}:{path}\n" for commit in commits)
    data = git("cat-file", "--batch", folder=project, text=names).encode("utf-8", "surrogateescape") if commits else b""
    outcomes = []
    for commit in commits:
        start = data.index(b"\n", at) + 1
        size = int(data[at:start].split()[-1])  # after its id and type
        outcomes.append(from_record(Ended, json.loads(data[start : start + size]) | {"commit": commit}))
        at = start + size + 1
    return outcomes


def read_events(project: Path) -> list[Ended]:
    """What has happened to the champion: every retraining known here, every rollback and champion set by hand; oldest first.

    Clocks may be set back, so champions are in the order of their numbers; times only place failures before or after them.
    """
    champions, events = champion.read_champions(project), read_history(project)
    for crowned in champions:
        if crowned.cause in ("set", "rollback"):
            numbers = [event.champion for event in events]
            place = 1 + max((at for at, number in enumerate(numbers) if number and number < crowned.number), default=-1)
            while place < len(events) and not numbers[place] and events[place].when <= crowned.when:
                place += 1
            events.insert(place, _by_hand(champions, crowned))
    return events


def _by_hand(champions: Sequence[Champion], crowned: Champion) -> Ended:
    """A champion crowned by hand, as an entry of the history."""
    first = champion.earliest_same(champions, crowned)
    again = f"champion/{first.number} again" if first.number != crowned.number else f"{crowned.model} of commit {crowned.commit[:10]}"
    reason = f"{again}, by hand" + (f", in place of champion/{crowned.replaced}" if crowned.replaced else "")
    result: Result = "rollback" if crowned.cause == "rollback" else "set"
    return Ended(
        f"champion/{crowned.number}", result, reason, crowned.when, champion=crowned.number, candidate=crowned.model, commit=crowned.commit
    )


def remember_killed(project: Path) -> Ended | None:
    """Add a killed run, which is one that left its note, to the history, unless it still wrote its record, its last act.

    Returns the run's entry in the history, None if no run was killed.
    """
    try:
        killed = from_record(Ended, json.loads((project / AT_WORK).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError):
        (project / AT_WORK).unlink()
        return None
    remember(project, killed, Display().warn)
    return next((one for one in read_history(project) if one.id == killed.id), killed)


def remember_stopped(project: Path, stopped: Ended, warn: Callable[[str], None]) -> None:
    """Add a stopped run to the history. If it has still written its record, its note stays, so that the next run reports what it did."""
    if stopped.id not in {entry.id for entry in read_history(project)}:
        remember(project, stopped, warn)


def remember(project: Path, ended: Ended, warn: Callable[[str], None]) -> None:
    """Append to the history, safely on disk before the run's note is removed. A full disk only gives a warning.

    Of consecutive runs that are unchanged for the same reason, only the first is kept.
    """
    try:
        known = read_history(project)
        is_repeat = bool(known) and ended.result == "unchanged" and (known[-1].result, known[-1].reason) == ("unchanged", ended.reason)
        if not is_repeat and (ended.id not in {entry.id for entry in known} or ended.commit):
            record = {**asdict(ended), "metrics": None, "comparison": None, "intake": None}
            append_line(project / HISTORY, json.dumps(record, ensure_ascii=False), lasting=True)
        (project / AT_WORK).unlink(missing_ok=True)
    except OSError as error:
        with contextlib.suppress(OSError):
            (project / AT_WORK).unlink()  # else the next run takes this one for killed
        warn(f"{HISTORY}: {error.strerror}; this retraining is missing there: {ended.line}")
