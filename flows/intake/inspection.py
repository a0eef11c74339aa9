"""The batches of an inbox, and their checks: which are complete, which have a verdict that is still valid, and what is wrong with each."""

import os
import shlex
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flows.batches.foreseen import Settings
from flows.batches.known import Known
from flows.batches.pairs_files import PairsFiles, is_batch, name_pairs_file, refuse_changes
from flows.batches.records import files_of, form_of
from flows.champions import history, tree
from flows.intake.gate import VERSION, check, duplicates, may_arrive_later
from flows.intake.reference import KINDS, Reference, reference_of
from flows.intake.settings import FILE, Gate, Intake
from flows.intake.shift import WORDS, Shift
from flows.intake.stamps import OF_SYSTEMS, files_below, is_data, is_empty, stats_of
from flows.intake.verdict import ACCEPTED, QUARANTINE, Batch, counts, had, read, source_stats
from flows.pages.origins import INTAKE
from flows.process.processes import Processes
from tasks.core.errors import DiskError, UserError
from tasks.core.files import read_json
from tasks.core.plurals import counted
from tasks.core.sources.datasets import dataset_files, local_path, parse_dataset
from tasks.core.sources.forgotten import marks_digest

READABLE = ("beir", "csv", "pairs")
MOST_AHEAD = 86400  # seconds that a file server's clock may be ahead; a time beyond that was set by a wrong clock, and may be years away
Say = Callable[[str], None]


@dataclass
class Inbox:
    """The batches of one inbox, and the rules that they are checked by."""

    project: Path
    intake: Intake
    spec: str
    settings: Settings
    marks: Collection[str]  # of forgotten records
    say: Say
    processes: Processes
    doing: Say = lambda _: None  # called with a line on the current work

    @property
    def folder(self) -> Path:
        """The folder of the batches; without `..`, which nobody wants to read in a message."""
        folder = self.project / local_path(self.intake.inbox or "")
        return folder.resolve() if ".." in folder.parts else folder

    @property
    def files(self) -> PairsFiles:
        """How files of pairs are read."""
        return PairsFiles(self.project, parse_dataset(self.spec), self.marks, self.intake.mode == "replace", self.processes)

    @property
    def sources(self) -> list[Path]:
        """The data set's folder, or file of pairs; none under `replace`, where a batch is a whole data set."""
        spec = parse_dataset(self.spec)
        return [spec.folder] if self.intake.mode == "append" and spec.kind in READABLE else []

    def folders(self, paths: Sequence[Path]) -> list[Path]:
        """The folders that are read for data set and batches: the paths themselves, or for a file of pairs the folder made from it."""
        return [self.files.folder(path) for path in paths]

    def spec_of(self, path: Path) -> str:
        """The SPEC of a batch that is a whole data set."""
        if path.is_file():
            return self.files.spec(path)
        return f"{'csv' if files_of(path).csv else 'beir'}:{path.resolve()}"

    def refuse_unmergeable(self) -> None:
        """Raise UserError if batches cannot be added to the source, or the source is unavailable."""
        if not self.sources:
            raise UserError(
                f"{FILE}: intake.mode: append needs a data set in BEIR or CSV form, or of pairs, found dataset.source {self.spec}; use "
                f"replace, or make one: retemper convert FOLDER --data {shlex.quote(self.spec)}, then dataset.source=beir:FOLDER"
            )
        dataset_files(parse_dataset(self.spec), needs_qrels=False)  # if it is unavailable, the batches alone are not the data set

    def complete_batches(self) -> list[Path]:
        """The batches that are complete, by name."""
        return [path for path in self.batches() if not self.is_being_written(path)]

    def batches(self) -> list[Path]:
        """Every batch, by name; one whose name is not UTF-8 is only named in a line. Raises UserError if there is no inbox."""
        if self.intake.inbox is None:
            raise UserError(f"{FILE}: intake.inbox: missing, so there are no batches; name a folder")
        if not self.folder.is_dir():
            raise UserError(f"{FILE}: intake.inbox: {self.folder}: no such folder; create it, or give access")
        paths = sorted(path for path in self.folder.iterdir() if is_batch(path))
        names = {path: os.fsencode(path.name).decode(errors="backslashreplace") for path in paths}
        for path in (path for path in paths if names[path] != path.name):
            self.say(f"{self.folder}/{names[path]}: found a name that is not UTF-8, so this batch is left out; rename it")
        return [path for path in paths if names[path] == path.name]

    def missing(self) -> tuple[str, ...]:
        """Batches of the last merge that are gone; those set aside by a leading dot do not count. UserError if all are: a lost mount?"""
        merged = self._last_merged() if self.intake.mode == "append" else []
        gone = tuple(name for name in merged if not any((self.folder / f"{dot}{name}").exists() for dot in ("", ".")))
        if gone and len(gone) == len(merged):
            raise UserError(
                f"{self.folder}: found no batch of the last retraining, expected {', '.join(gone)}; mount the folder, put them back, or "
                f"continue without them: {_empty_intake()}"
            )
        return gone

    def refuse_unfinished(self, unfinished: Collection[str]) -> None:
        """Raise UserError if a batch of the last retraining is being written or empty: without it, the data would silently go back."""
        if again := [name for name in self._read_last() if name in unfinished]:
            remove, set_aside = f"remove {again[0]} to continue without it", f"set it aside: rename it to .{again[0]}"
            if self.intake.mode == "replace":  # as `refuse_return` allows it
                others = [path.name for path in self.accepted() if path.name not in unfinished]
                remove = _way_back(others[-1] if others else "")
                set_aside = set_aside if others else remove
            if is_empty(self.folder / again[0]):
                raise UserError(
                    f"{self.folder / again[0]}: found an empty batch, expected the content that the last retraining read; put it back, or "
                    f"{remove}"
                )
            raise UserError(
                f"{self.folder / again[0]}: found a batch of the last retraining that is being written, expected it to be complete; wait "
                f"until no file has changed for intake.settle_seconds ({self.intake.settle_seconds:g}), or {set_aside}"
            )

    def refuse_emptied(self) -> None:
        """Raise UserError if a file of a batch of the last retraining has no byte, and had records: `cp` truncates before it writes."""
        for name in self._read_last():
            path, record = self.folder / name, self.project / ACCEPTED / f"{name}.json"
            if emptied := _emptied(path, read(record)) if path.is_dir() and record.exists() else None:
                file, what = emptied
                raise UserError(
                    f"{file}: found an empty file, expected {what}, as when batch {name} was accepted; put its content back, or "
                    "remove the file to continue without it"
                )

    def _read_last(self) -> list[str]:
        """Names of the batches that the last retraining's data are made of."""
        return self._last_merged() if self.intake.mode == "append" else self._last_merged()[-1:]

    def _last_merged(self) -> list[str]:
        """Names of the batches of the last merge."""
        return [record["name"] for record in self._last_records() if record["state"] == "accepted"]

    def had(self) -> dict[str, str]:
        """By batch, what the data set would lose without it: see `flows.intake.verdict.had`."""
        return {record["name"]: had(record) for record in self._last_records()} if self.intake.mode == "append" else {}

    def lost(self, names: Collection[str]) -> list[Mapping[str, Any]]:
        """Records of the batches `names` that the last merge lacked and an earlier one had. A run that does not read them keeps these."""
        records = [record for record in self._last_records() if record["name"] in names]
        return [record for record in records if record["state"] == "quarantined" and record.get("had")]

    def _last_records(self) -> Sequence[Mapping[str, Any]]:
        """Those of the batches of the last merge here; if this machine has had none, of the last retraining that the branch records."""
        if INTAKE.exists():
            records: list[dict[str, Any]] = read_json(INTAKE)
            return records
        INTAKE.parent.mkdir(exist_ok=True)  # where a message says what to write
        tip = tree.resolve(self.project, tree.BRANCH)
        last = history.read_outcome(self.project, tip) if tip else None
        return (last and last.intake) or []

    def refuse_return(self, batches: Sequence[Batch]) -> None:
        """Under `replace`, raise UserError if the data set would silently go back to an earlier batch, or to dataset.source.

        `batches`: the verdicts. An earlier batch takes the place of one set aside by a leading dot; a new one, that of one that is gone.
        """
        merged = self._last_merged() if self.intake.mode == "replace" else []
        if not merged:
            return
        last, chosen = merged[-1], next((batch.name for batch in reversed(batches) if batch.state == "accepted"), "")
        is_gone, is_set_aside = not (self.folder / last).exists(), (self.folder / f".{last}").exists()
        if chosen and (chosen >= last or (is_gone and (is_set_aside or chosen not in merged))):
            return
        back = _way_back(chosen)
        if is_gone:
            raise UserError(
                f"{self.folder}: found no batch of the last retraining, expected {last}; mount the folder, put it back, or {back}"
            )
        batch = next(batch for batch in batches if batch.name == last)
        remedy = "fix it" if batch.wrong else f"accept it (retemper intake accept {shlex.quote(last)})"
        raise UserError(
            f"{self.folder / last}: found a batch that is kept out ({batch.reason}), expected the data set of the last retraining, or a "
            f"later one; {remedy}, or {back}"
        )

    def is_being_written(self, path: Path) -> bool:
        """Whether the name begins with a dot, there is no file or no byte yet, or a file changed in the last `settle_seconds`, hidden ones
        too: rsync writes under such a name.

        Also if a file vanished meanwhile: rsync renames each one when it is complete. Each time is that of the last change on the file's
        disk (ctime): `scp -p`, `cp -a`, and tar set the other, by the clock of wherever the file was made.
        """
        try:
            if path.name.startswith("."):
                return True
            stats = {file: file.stat() for file in files_below(path) if file.name not in OF_SYSTEMS}
        except FileNotFoundError:
            return True
        if not any(status.st_size for file, status in stats.items() if is_data(file, path)):
            return True
        quiet_seconds = time.time() - max(status.st_ctime for status in stats.values())  # negative: a file server's clock is ahead of ours
        return self.intake.settle_seconds > 0 and -MOST_AHEAD < quiet_seconds < self.intake.settle_seconds

    def stamp(self, path: Path) -> str:
        """The source, and names, sizes, and times of a batch's files, without hidden ones. A new stamp means a new batch; empty if a file
        vanished.
        """
        try:
            return " ".join([self.spec, self.intake.mode, stats_of(path)])
        except FileNotFoundError:
            return ""

    def source_stamp(self) -> str:
        """Names, sizes, and times of the source's files: a batch may need a document that the source no longer has.

        Empty if a file vanished, so the next run checks the batches again.
        """
        try:
            return source_stats(self.sources)
        except FileNotFoundError:
            return ""

    def rules(self) -> str:
        """The rules for what prepare would refuse, as text: the gate's version, parameters of prepare, and what is forgotten."""
        return " ".join([f"{VERSION}", *map(str, self.settings), marks_digest(self.marks)]).strip()

    def verdict(self, path: Path) -> Batch | None:
        """The recorded verdict on the batch as it is now, or None."""
        for folder in (ACCEPTED, QUARANTINE):
            if (file := self.project / folder / f"{path.name}.json").exists():
                batch = read(file)
                if batch.stamp == self.stamp(path):
                    return batch
        return None

    def is_accepted_meanwhile(self, batch: Batch) -> bool:
        """Whether a person has accepted a batch that this run quarantined. `check` keeps an acceptance, so this one came after it."""
        earlier = self.verdict(self.folder / batch.name) if batch.state == "quarantined" and not batch.wrong else None
        return earlier is not None and (earlier.state, earlier.by) == ("accepted", "hand")

    def accepted(self) -> list[Path]:
        """The batches that were accepted and have not changed; none without an inbox."""
        complete = [] if self.intake.inbox is None else self.complete_batches()
        return [path for path in complete if (batch := self.verdict(path)) and batch.state == "accepted"]

    def known(self, accepted: Sequence[Path]) -> Known:
        """The data set and the `accepted` batches."""
        known = Known(2 * self.intake.gate.sample, self.marks)
        for folder in self.folders(self.sources):
            known.add(folder, batch=False, form=form_of(self.spec))
        for folder in self.folders(accepted) if self.intake.mode == "append" else ():
            known.add(folder)
        return known

    def judge(self, paths: Sequence[Path]) -> list[Batch]:
        """Accept or quarantine every batch of `paths`. One may need a later one, so bad ones are checked again after each success."""
        verdicts = self.still_accepted(paths)
        waiting = [path for path in paths if path not in verdicts]
        if waiting:
            known = self.known([path for path in paths if path in verdicts])
            reference: list[Reference] = []
            while waiting:
                before = len(waiting)
                for path in list(waiting):
                    self.doing(f"inbox: {len(verdicts)}/{len(paths)} batches, {counts(verdicts.values())}; now {path.name}")
                    verdicts[path] = self.check(path, known, reference)
                    if verdicts[path].state == "accepted":
                        waiting.remove(path)
                        if self.intake.mode == "append":
                            known.add(self.files.folder(path))
                waiting = [path for path in waiting if may_arrive_later(verdicts[path].reason)] if len(waiting) < before else []
        return [verdicts[path] for path in paths]

    def still_accepted(self, paths: Sequence[Path]) -> dict[Path, Batch]:
        """The batches whose acceptance is still valid: batch and source are unchanged, and they were accepted by the current rules.

        None, if a batch of the last merge is not among them: others may need it. Batches accepted by other rules are named in a line.
        """
        beside, rules = self.source_stamp(), self.rules()
        accepted = {path: batch for path in paths if (batch := self.verdict(path)) and (batch.state, batch.beside) == ("accepted", beside)}
        if outdated := [path.name for path, batch in accepted.items() if batch.rules != rules]:
            why = "manually, by another version, or under other rules of prepare"
            self.say(f"accepted {why}; checking again under the current rules: {', '.join(outdated)}")
            accepted = {path: batch for path, batch in accepted.items() if batch.rules == rules}
        return accepted if {*self._last_merged()} <= {path.name for path in accepted} else {}

    def check(self, path: Path, known: Known, reference: list[Reference]) -> Batch:
        """Check one batch against what is `known`. `reference`: the one to compare texts with; empty, and filled when first needed."""
        rules, stamp = self.intake.gate, self.stamp(path)
        batch = Batch(
            path.name, "quarantined", stamp, self.source_stamp(), self.rules(), when=datetime.now(UTC).isoformat(timespec="seconds")
        )
        try:
            folder = self.files.folder(path)
            if not files_of(folder).all():
                raise UserError(
                    f"{path}: found no corpus, queries or qrels, expected corpus.jsonl, queries.jsonl, qrels/SPLIT.tsv, or .csv"
                )
            refuse_changes(path, folder, known.batches)
            checked = check(folder, known, self.settings, size=rules.sample)
        except DiskError:
            raise
        except (UserError, OSError) as error:
            return replace(batch, wrong=(" ".join(str(error).split()),), lines=(" ".join(str(error).split()),))
        batch = replace(
            batch,
            wrong=tuple(name_pairs_file(line, folder, path) for line in checked.findings.reasons()),
            lines=tuple(name_pairs_file(line, folder, path) for line in checked.findings.lines),
            documents=checked.documents,
            new=checked.new,
            duplicates=checked.duplicates,
            queries=checked.queries,
            judgments=checked.judgments,
            negatives=checked.negatives,
        )
        if batch.wrong:
            return batch
        odd, earlier = duplicates(checked, rules), self.verdict(path)
        if earlier and (earlier.state, earlier.beside) == ("accepted", batch.beside) and earlier.rules != batch.rules:
            return replace(batch, state="accepted", odd=earlier.odd, by=earlier.by, shift=earlier.shift)  # its texts were judged then
        earlier_shifts = _quarantining_shifts(earlier, rules) if earlier else {}
        samples = ((checked.documents, checked.texts), (checked.queries, checked.questions))
        for kind, (count, texts) in zip(KINDS, samples, strict=True):
            if rules.shift is None or count < rules.least:
                continue
            if not (shift := earlier_shifts.get(kind)):
                if not reference:
                    reference.append(reference_of(self.project, known, 2 * rules.sample, warn=self.say, processes=self.processes))
                shift = reference[0].shift(kind, texts)
            if shift:
                batch = replace(batch, shift={**batch.shift, kind: asdict(shift)})
                if _is_odd(shift, rules):
                    odd.append(f"shift of {kind}: {shift.words}, expected an AUC of at most {rules.shift:g}")
        if odd and earlier and (earlier.state, earlier.by) == ("accepted", "hand"):
            return replace(batch, state="accepted", odd=tuple(odd), by="hand")
        return replace(batch, state="quarantined" if odd else "accepted", odd=tuple(odd))


def _way_back(chosen: str) -> str:
    """How the data set goes back to batch `chosen`, or to dataset.source if it is empty, in words."""
    return f"go back to {chosen or 'dataset.source'}: {_empty_intake()}"


def _empty_intake() -> str:
    """The command that makes the last retraining one without batches."""
    return f"echo '[]' > {shlex.quote(str(INTAKE.resolve()))}"


def _emptied(folder: Path, earlier: Batch) -> tuple[Path, str] | None:
    """A file of a batch that has no byte, though the `earlier` verdict counts records of it, and these in words; else None."""
    try:
        files = files_of(folder)
        counted_files = [
            (files.documents, earlier.documents, "documents"),
            (files.queries, earlier.queries, "queries"),
            (files.negatives, earlier.negatives, "negatives"),
            *((file, earlier.judgments.get(split, 0), "judgments") for split, file in files.qrels.items()),
        ]
        return next(
            ((file, counted(count, kind)) for file, count, kind in counted_files if file and count and not file.stat().st_size), None
        )
    except (UserError, OSError):  # it is checked in any case
        return None


def _quarantining_shifts(batch: Batch, rules: Gate) -> dict[str, Shift]:
    """The shifts that keep a batch out, by kind. They stay found: with each champion's vectors, one near the limit would come and go."""
    if batch.state != "quarantined":
        return {}
    shifts = {kind: Shift(**values) for kind, values in batch.shift.items()}
    return {kind: shift for kind, shift in shifts.items() if _is_odd(shift, rules) and shift.by != WORDS}


def _is_odd(shift: Shift, rules: Gate) -> bool:
    return rules.shift is not None and shift.auc > rules.shift and shift.p <= rules.p
