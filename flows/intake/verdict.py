"""The verdict on a batch, and the project's JSON file that keeps it: in .retemper/accepted, or in .retemper/quarantine."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from flows.intake.shift import Shift
from flows.intake.stamps import stats_of
from tasks.core.files import from_record, read_json, write_json
from tasks.core.plurals import counted

ACCEPTED, QUARANTINE = Path(".retemper/accepted"), Path(".retemper/quarantine")
State = Literal["accepted", "quarantined", "being written", "left out", "not checked"]


@dataclass(frozen=True)
class Batch:
    """What is known about a batch. `wrong`: reasons that nobody can overrule; `odd`: those that `retemper intake accept` overrules."""

    name: str
    state: State
    stamp: str = ""  # of its files and the source's name: a batch with another stamp is another batch
    beside: str = ""  # the stamp of the source's files that it was checked against
    rules: str = ""  # what prepare would have refused (`Inbox.rules`); empty if it was accepted by hand
    wrong: tuple[str, ...] = ()
    odd: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()  # each wrong line, the first gate.MOST
    by: str = "gate"  # or hand
    when: str = ""
    documents: int = 0
    new: int = 0  # documents whose ids the data set lacked
    duplicates: int = 0
    queries: int = 0
    judgments: Mapping[str, int] = field(default_factory=dict)
    negatives: int = 0
    shift: Mapping[str, Any] = field(default_factory=dict)  # of documents and of queries: flows.intake.shift.Shift
    had: str = ""  # of a quarantined batch: what an earlier retraining had of it, in words

    @property
    def reason(self) -> str:
        return "; ".join((*self.wrong, *self.odd))

    @property
    def line(self) -> str:
        """One line for a log."""
        if self.state == "quarantined":
            loss = f", so the data set, which had it ({self.had}), is now without it" if self.had else ""
            return f"batch {self.name}: quarantined{loss}: {self.reason}"
        return f"batch {self.name}: {self.state}{f', {self.figures}' if self.state == 'accepted' else ''}"

    @property
    def record(self) -> dict[str, Any]:
        """The record for retraining.json and the report, without what only this machine can use."""
        return {name: value for name, value in asdict(self).items() if name not in ("stamp", "beside", "rules", "lines", "when")}

    @property
    def figures(self) -> str:
        judged = ", ".join(counted(count, "judgments").replace(" ", f" {split} ") for split, count in self.judgments.items())
        parts = [f"{counted(self.documents, 'documents')} ({self.new:,} new)", counted(self.queries, "queries"), judged]
        parts += [counted(self.negatives, "negatives")] * bool(self.negatives)
        parts += [f"shift of {kind}: {Shift(**values).words}" for kind, values in self.shift.items()]
        return ", ".join(filter(None, parts))


def had(record: Mapping[str, Any]) -> str:
    """What a retraining had of a batch, by its `Batch.record`; of one that it kept out, what an earlier one had."""
    if record["state"] != "accepted":
        return str(record.get("had", ""))
    figures = {name: record.get(name, 0) for name in ("documents", "queries")} | {"judgments": sum(record.get("judgments", {}).values())}
    return ", ".join(counted(count, kind) for kind, count in figures.items() if count)


def is_news(project: Path, batch: Batch) -> bool:
    file = project / QUARANTINE / f"{batch.name}.json"
    return not file.exists() or (read(file).stamp, read(file).reason) != (batch.stamp, batch.reason)


def save(project: Path, batch: Batch) -> None:
    """Write the verdict to the folder for the batch's state, and remove it from the other."""
    places = {"accepted": ACCEPTED, "quarantined": QUARANTINE}
    for state, folder in places.items():
        file = project / folder / f"{batch.name}.json"
        if state != batch.state:
            file.unlink(missing_ok=True)
        elif not file.exists() or replace(read(file), when=batch.when) != batch:
            write_json(file, asdict(batch))


def read(file: Path) -> Batch:
    lists = ("wrong", "odd", "lines")
    record: dict[str, Any] = read_json(file)
    values: dict[str, Any] = {name: tuple(value) if name in lists else value for name, value in record.items()}
    return from_record(Batch, values)


@contextmanager
def kept_verdicts(folders: Sequence[Path]) -> Iterator[None]:
    """Keep the verdicts of this project on the batches `folders`, whose files change inside: forget removes records from them."""
    stats = {folder: stats_of(folder) for folder in folders}
    try:
        yield
    finally:  # what failed may have changed some files
        for folder, before in stats.items():
            for file in (place / f"{folder.name}.json" for place in (ACCEPTED, QUARANTINE)):
                if folder.exists() and file.exists() and (batch := read(file)).stamp.endswith(f" {before}"):
                    write_json(file, asdict(replace(batch, stamp=batch.stamp.removesuffix(before) + stats_of(folder))))


@contextmanager
def kept_beside(folders: Sequence[Path]) -> Iterator[None]:
    """Keep the verdicts of this project beside the source `folders`, whose files change inside: forget removes records from them."""
    before = source_stats(folders)
    try:
        yield
    finally:
        after = source_stats(folders)
        for file in (file for place in (ACCEPTED, QUARANTINE) for file in place.glob("*.json")):
            if before and (batch := read(file)).beside == before:
                write_json(file, asdict(replace(batch, beside=after)))


def source_stats(folders: Sequence[Path]) -> str:
    """The stamp of a source's files, beside which a batch is checked."""
    return " ".join(stats_of(folder) for folder in folders)


def counts(batches: Iterable[Batch]) -> str:
    """`3 accepted, 1 quarantined`."""
    accepted = [batch.state == "accepted" for batch in batches]
    return f"{sum(accepted)} accepted, {len(accepted) - sum(accepted)} quarantined"
