"""Times of stages on this machine, measured by the flow and kept in .retemper, where no stage reads them and no digest covers them.

They are in a log, to which lines are appended as stages begin and end. A time belongs to the stage's result: the digest of its entry in
dvc.lock, logged when the stage ends. So a time is found again when parameters are set back; a stage that ran elsewhere has none here.
"""

import hashlib
import json
import os
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal

from flows.measuring.sizes import current_size
from flows.repository.lock import Lock, entry_digest, parameters, read_lock
from flows.storage import makings
from tasks.core.errors import UserError
from tasks.core.files import append_line
from tasks.core.params.sections import FROZEN, read_parameters

LOG = Path(".retemper/times.jsonl")
PARAMS = Path("params.yaml")
State = Literal["Ran", "Cached", "Failed", "Stopped"]


@dataclass(frozen=True)
class Span:
    """A stage's work in this run. Times are seconds since the epoch; `ready`: when all its inputs were available."""

    stage: str
    ready: float
    start: float
    end: float
    device: str
    state: State


@dataclass(frozen=True)
class Measured:
    """Wall-clock seconds that a stage took, from when DVC started its command until its outs were in the cache.

    Attempts that were stopped and resumed count. `at_least`: an attempt was killed together with the flow, so its time is unknown.
    """

    seconds: float
    at_least: bool = False


class Clock:
    """Writes the log, from many threads. On a full or read-only disk times are lost, but the run goes on.

    How entries of dvc.lock were made is also recorded in the `cache`, for the team. `here`: by whom and at which commit, as of the run's
    beginning, since both may change before a stage ends.
    """

    def __init__(self, log: Path = LOG, cache: Path | None = None) -> None:
        self._log, self._cache = log, cache
        self.provenance: Mapping[str, str] = {}
        self._guard = threading.Lock()
        self._params = hashlib.sha256(PARAMS.read_bytes()).hexdigest()[:16] if PARAMS.exists() else ""
        self.spans: list[Span] = []

    def began(self, stage: str) -> None:
        self.write({"began": stage, "at": time.time(), "params": self._params})

    def ended(self, span: Span, environment: Mapping[str, Any] | None = None, cost: Mapping[str, float] | None = None) -> None:
        """Log the end of a stage. `environment` and `cost`: as in flows.measuring.environments."""
        with self._guard:
            self.spans.append(span)
        line: dict[str, Any] = {"ended": span.stage, "state": span.state, "seconds": span.end - span.start, "at": span.end}
        entry = _entry(span.stage) if span.state == "Ran" else None
        details = ({"environment": environment} if environment else {}) | ({"cost": cost} if cost else {})
        self.write(line | ({"digest": entry_digest(entry)} if entry else {}) | details)
        if entry and self._cache:
            self._record(self._cache, span, entry, details=details)

    def _record(self, cache: Path, span: Span, entry: Mapping[str, Any], *, details: Mapping[str, Any]) -> None:
        digest = entry_digest(entry)
        took = fold(read(self._log)).get(digest, Measured(span.end - span.start))
        size = current_size(read_parameters(FROZEN)) if FROZEN.exists() else None
        measure = {"stage": span.stage, "seconds": took.seconds, "at_least": took.at_least, "at": span.end}
        sizes = ({"size": asdict(size)} if size else {}) | _amounts(span.stage, entry)
        makings.save(cache, digest, {**measure, **self.provenance, **sizes, **details})

    def write(self, line: Mapping[str, Any]) -> None:
        try:
            with self._guard:
                append_line(self._log, json.dumps(line), lasting=False)
        except OSError:
            return


def _entry(stage: str) -> Mapping[str, Any] | None:
    """A stage's entry in dvc.lock; None if that cannot be read, or lacks it."""
    try:
        return read_lock().get(stage)
    except (OSError, UserError):
        return None


def _amounts(stage: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    """The bytes of a stage's outs, and the length of a round's training, on which estimates of later runs are based."""
    amounts: dict[str, Any] = {"bytes": sum(int(out.get("size") or 0) for out in entry.get("outs") or [])}
    if stage.startswith("train@"):
        round_params = parameters(entry).get(f"rounds.{stage.partition('@')[2]}") or {}
        amounts["round"] = {name: round_params.get(name) for name in ("steps", "epochs", "batch_queries")}
    return amounts


def read(log: Path = LOG) -> list[dict[str, Any]]:
    """The log's lines; one that a kill truncated is skipped."""
    try:
        lines = log.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    records = []
    for line in lines:
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            records.append(value)
    return records


def fold(lines: Iterable[Mapping[str, Any]]) -> dict[str, Measured]:
    """Times by digest of a lock entry. Times that were not attached to an entry are left out."""
    made: dict[str, Measured] = {}
    waiting: dict[str, Measured] = {}  # from earlier versions, which logged the digest in a separate line at the run's end
    unfinished: dict[str, Measured] = {}  # failed or stopped attempts with the same parameters
    running: dict[str, str] = {}  # parameters of the attempts in progress
    last_params: dict[str, str] = {}
    for line in lines:
        if stage := line.get("began"):
            params = str(line.get("params"))
            if stage in running and running[stage] == params:
                unfinished[stage] = Measured(unfinished.get(stage, Measured(0)).seconds, at_least=True)
            if last_params.get(stage) != params:
                unfinished.pop(stage, None)
            running[stage] = last_params[stage] = params
        elif stage := line.get("ended"):
            earlier, seconds = unfinished.pop(stage, Measured(0)), float(line.get("seconds", 0))
            total = Measured(earlier.seconds + seconds, earlier.at_least)
            running.pop(stage, None)
            if line.get("state") == "Ran" and (digest := line.get("digest")):
                made[str(digest)] = total
            elif line.get("state") == "Ran":
                waiting[stage] = total
            elif line.get("state") != "Cached":
                unfinished[stage] = total
        elif (stage := line.get("made")) and stage in waiting:
            made[str(line.get("digest"))] = waiting.pop(stage)
    return made


def measured(lock: Lock) -> dict[str, Measured]:
    """The times of dvc.lock's current entries, by stage; stages that did not run here are absent."""
    made = fold(read())
    times = {stage: made.get(entry_digest(entry)) for stage, entry in lock.items()}
    return {stage: duration for stage, duration in times.items() if duration}


def device_name(environment: Mapping[str, str], slot: str | None) -> str:
    """Where a span ran: the GPU's number, 0 for the only device, or empty if the stage uses none of this machine's."""
    if slot is None:
        return ""
    if "CUDA_VISIBLE_DEVICES" in environment:  # empty: its workers are on a Ray cluster
        return environment["CUDA_VISIBLE_DEVICES"]
    return ",".join(visible_gpus(os.environ.get("CUDA_VISIBLE_DEVICES", ""))) or "0"


def visible_gpus(names: str) -> list[str]:
    """The GPUs that CUDA takes from the value of CUDA_VISIBLE_DEVICES; it ignores the first name that is invalid, and all after it."""
    return list(takewhile(_is_gpu, filter(None, map(str.strip, names.split(",")))))


def _is_gpu(name: str) -> bool:
    return not name.startswith("-") and name != "NoDevFiles"
