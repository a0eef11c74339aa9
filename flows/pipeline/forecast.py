"""Estimates of the time, memory, and disk that a run's stages may take, from records of how they were made before (flows.storage.makings).

A stage's record counts whoever made it: the one of the current dvc.lock first, else the latest. If it says how large the data was, time and
disk are scaled to the data that is prepared now, except the time that a stage needs to start. A stage without a record is estimated from
another of its kind (train@star from train@warmup); without one, its costs are unknown.
"""

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

from flows.process.display import FEW, clock
from flows.repository.lock import entry_digest, read_lock
from flows.results.sizes import Size, current_size, outs, work
from flows.storage import links, makings
from flows.storage.cache import cache_folder
from tasks.core.stage.errors import DiskError, UserError, counted
from tasks.core.stage.files import from_record
from tasks.core.stage.params import FROZEN, read_parameters
from tasks.params import Parameters

PREPARE = "prepare"
ALIKE = {"retrieve_adore": "retrieve", "evaluate_adore": "evaluate", "evaluate_fuse": "evaluate"}  # stages that do the same
FIXED = 0.3  # seconds of a stage's own time that do not grow with the data: imports, a model read
BATCH = get_args(Parameters.model_fields["rounds"].annotation)[1].model_fields["batch_queries"].default


@dataclass(frozen=True)
class Forecast:
    """The estimated costs of a stage; None if no record has them. `since`: what the estimate is based on."""

    stage: str
    seconds: float | None = None
    peak_mib: float | None = None
    bytes: int | None = None
    since: str = "unknown"

    @property
    def line(self) -> str:
        """`train@star: about 3m10s, 1,850 MiB of memory, 0.09 GiB of disk (made 2026-11-24)`."""
        parts = [
            f"about {clock(self.seconds)}" if self.seconds is not None else "",
            f"{self.peak_mib:,.0f} MiB of memory" if self.peak_mib else "",
            f"{self.bytes / 2**30:,.2f} GiB of disk" if self.bytes is not None else "",
        ]
        told = ", ".join(filter(None, parts))
        return f"{self.stage}: {told} ({self.since})" if told else f"{self.stage}: time, memory, and disk unknown"

    @property
    def is_unknown(self) -> bool:
        return self.seconds is None and not self.peak_mib and self.bytes is None


def forecasts(stages: Sequence[str], cache: Path | None = None, *, by_kind: bool = True) -> list[Forecast]:
    """The estimated costs of each stage, from its record in the cache; with `by_kind`, else from a stage of the same kind."""
    cache = cache or cache_folder()
    lock = read_lock()
    digests = {stage: entry_digest(lock[stage]) for stage in stages if stage in lock}
    made = makings.read(cache, digests.values())
    records = {stage: made[digest] for stage, digest in digests.items() if digest in made}
    records |= makings.latest(cache, set(stages) - records.keys())
    sections = read_parameters(FROZEN) if FROZEN.exists() else {}
    size = None if PREPARE in stages else current_size(sections)  # prepare may find other data
    likes = {}
    if by_kind:
        missing = {_kind(stage) for stage in set(stages) - records.keys()}
        others = {stage: entry_digest(entry) for stage, entry in lock.items() if _kind(stage) in missing}
        known = makings.read(cache, others.values())
        likes = _one_per_kind({stage: known[digest] for stage, digest in others.items() if digest in known}) | _one_per_kind(records)
    rounds = sections.get("rounds") or {}
    return [_forecast(stage, records.get(stage, likes.get(_kind(stage))), size=size, rounds=rounds) for stage in stages]


def _one_per_kind(records: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """One record per kind: that of the last stage by name. A stage named in ALIKE counts only if the kind has no other."""
    ordered = sorted(records, key=lambda stage: (stage.partition("@")[0] not in ALIKE, stage))
    return {_kind(stage): records[stage] for stage in ordered}


def _kind(stage: str) -> str:
    kind = stage.partition("@")[0]
    return ALIKE.get(kind, kind)


def _forecast(stage: str, record: Mapping[str, Any] | None, *, size: Size | None, rounds: Mapping[str, Any]) -> Forecast:
    if record is None:
        return Forecast(stage)
    of = str(record.get("stage", stage))
    since = f"made {datetime.fromtimestamp(record['at'], UTC):%Y-%m-%d}" if "at" in record else "made before"
    if of != stage:
        since = f"by {of}, {since}"
        if size is None or work(stage, size, _steps(rounds)) is None:
            return Forecast(stage)
    seconds, kept = record.get("seconds"), record.get("bytes")
    then = _size(record.get("size"))
    if then and size:
        longer = _ratio(work(stage, size, _steps(rounds)), work(of, then, _steps({of.partition("@")[2]: record.get("round")})))
        larger = _ratio(outs(stage, size), outs(stage, then)) or 1.0
        if seconds is not None:
            grows = min(seconds, max(0.0, (record.get("cost") or {}).get("seconds", seconds) - FIXED))
            seconds += grows * ((longer or 1.0) - 1)
        kept = kept * larger if kept is not None else None
        since += f" from {counted(then.documents, 'documents')}"
        if longer and abs(longer - 1) > 0.01:
            since += f", time x {longer:,.2f}"
        if abs(larger - 1) > 0.01:
            since += f", disk x {larger:,.2f}"
    else:
        since += ", not scaled: the size of the data is known once it is prepared" if then else ", on data of unknown size"
    peak = (record.get("cost") or {}).get("peak_mib")
    return Forecast(stage, seconds, peak, round(kept) if kept is not None else None, since)


def _size(found: Mapping[str, Any] | None) -> Size | None:
    try:
        return from_record(Size, found) if found else None
    except TypeError:  # written by another version
        return None


def _steps(rounds: Mapping[str, Any]) -> dict[str, Any]:
    given = {name: own for name, own in rounds.items() if isinstance(own, Mapping)}
    return {
        name: SimpleNamespace(steps=own.get("steps"), epochs=own.get("epochs"), batch_queries=own.get("batch_queries") or BATCH)
        for name, own in given.items()
    }


def _ratio(now: float | None, then: float | None) -> float | None:
    return now / then if now and then else None


def lines(found: Iterable[Forecast]) -> list[str]:
    """One line per stage. If more than FEW stages are unknown, they get no line of their own; `total_line` names them."""
    found = list(found)
    few = sum(one.is_unknown for one in found) <= FEW
    return [one.line for one in found if few or not one.is_unknown]


def total_line(found: Iterable[Forecast]) -> str:
    """One line with the sums over all stages, and the names of unknown ones."""
    found = list(found)
    seconds = [one.seconds for one in found if one.seconds is not None]
    kept = [one.bytes for one in found if one.bytes is not None]
    if not seconds:
        names = f": {', '.join(one.stage for one in found)}" if len(found) > FEW else ""
        return f"time and disk: unknown, as no run of these stages is recorded; this one will be{names}"
    unknown = [one.stage for one in found if one.seconds is None]
    rest = f"; unknown: {', '.join(unknown)}" if unknown else ""
    disk = f", {sum(kept) / 2**30:,.2f} GiB of new files in the cache" if kept else ""
    return f"in all at most about {clock(sum(seconds))}, one stage after another{disk}{rest}"


def refuse_small_disk(stages: Sequence[str], project: Path | None = None) -> None:
    """Raise DiskError if the new files of `stages`, as far as they are estimated, do not fit on the disks of the project and its cache.

    New files go to the cache; if data/ holds copies instead of links, its growth counts too. Files without an estimate count as nothing.
    """
    project, cache = project or Path.cwd(), cache_folder()
    try:
        found = [one for one in forecasts(stages, cache, by_kind=False) if one.bytes is not None]
        lock = read_lock()
    except (UserError, OSError):
        return
    sizes = {stage: sum(int(out.get("size") or 0) for out in entry.get("outs") or []) for stage, entry in lock.items()}
    new = sum(one.bytes or 0 for one in found)
    grown = 0 if links.kind(project) != links.COPY else sum(max(0, (one.bytes or 0) - sizes.get(one.stage, 0)) for one in found)
    needed: dict[int, tuple[Path, int]] = {}
    for place, amount in ((_existing(cache), new), (project, grown)):
        device = place.stat().st_dev
        first, before = needed.get(device, (place, 0))
        needed[device] = first, before + amount
    names = counted(len(found), "stages")
    for place, amount in needed.values():
        free = shutil.disk_usage(place).free
        if amount > free:
            raise DiskError(
                where=str(place),
                found=f"{free / 2**30:,.1f} GiB free",
                expected=f"about {amount / 2**30:,.1f} GiB for the new files of {names} (retemper run --dry-run lists them)",
                remedy="make room (retemper gc), share one cache with links (retemper cache share), or run with --ignore-disk",
            )


def _existing(path: Path) -> Path:
    return path if path.exists() else _existing(path.parent)
