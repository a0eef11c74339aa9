"""Estimates of the time, memory, and disk that a run's stages may take, from records of how they were made before (flows.storage.makings).

A stage's record counts whoever made it: the one of the current dvc.lock first, else the latest. If it says how large the data was, time and
disk are scaled to the data that is prepared now, except the time that a stage needs to start. A stage without a record is estimated from
another of its kind (train@star from train@warmup); without one, its costs are unknown.
"""

import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

from flows.measuring.sizes import Size, current_size, outs, work
from flows.process.display import FEW, clock
from flows.repository.lock import read_lock
from flows.storage import links, makings
from flows.storage.cache import cache_folder
from tasks.core.errors import DiskError, UserError
from tasks.core.files import from_record
from tasks.core.params.sections import FROZEN, read_parameters
from tasks.core.plurals import counted
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
        costs = ", ".join(filter(None, parts))
        return (
            f"{self.stage}: {costs}{f' ({self.since})' if self.since else ''}" if costs else f"{self.stage}: time, memory, and disk unknown"
        )

    @property
    def is_unknown(self) -> bool:
        return self.seconds is None and not self.peak_mib and self.bytes is None


def forecasts(stages: Sequence[str], cache: Path | None = None, *, by_kind: bool = True) -> list[Forecast]:
    """The estimated costs of each stage, from its record in the cache; with `by_kind`, else from a stage of the same kind."""
    cache = cache or cache_folder()
    lock = read_lock()
    records = makings.of_stages(cache, {stage: lock[stage] for stage in stages if stage in lock})
    records |= makings.latest(cache, set(stages) - records.keys())
    sections = read_parameters(FROZEN) if FROZEN.exists() else {}
    size = None if PREPARE in stages else current_size(sections)  # prepare may find other data
    kind_records = {}
    if by_kind:
        missing = {_kind(stage) for stage in set(stages) - records.keys()}
        others = makings.of_stages(cache, {stage: entry for stage, entry in lock.items() if _kind(stage) in missing})
        kind_records = _one_per_kind(others) | _one_per_kind(records)
    rounds = sections.get("rounds") or {}
    return [_forecast(stage, records.get(stage, kind_records.get(_kind(stage))), size=size, rounds=rounds) for stage in stages]


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
    origin = str(record.get("stage", stage))
    since = f"made {datetime.fromtimestamp(record['at'], UTC):%Y-%m-%d}" if "at" in record else "made before"
    if origin != stage:
        since = f"by {origin}, {since}"
        if size is None or work(stage, size, _steps(rounds)) is None:
            return Forecast(stage)
    seconds, disk = record.get("seconds"), record.get("bytes")
    recorded_size = _size(record.get("size"))
    if recorded_size and size:
        time_factor = _ratio(
            work(stage, size, _steps(rounds)), work(origin, recorded_size, _steps({origin.partition("@")[2]: record.get("round")}))
        )
        disk_factor = _ratio(outs(stage, size), outs(stage, recorded_size)) or 1.0
        if seconds is not None:
            scalable = min(seconds, max(0.0, (record.get("cost") or {}).get("seconds", seconds) - FIXED))
            seconds += scalable * ((time_factor or 1.0) - 1)
        disk = disk * disk_factor if disk is not None else None
        since += f" from {counted(recorded_size.documents, 'documents')}"
        if time_factor and abs(time_factor - 1) > 0.01:
            since += f", time x {time_factor:,.2f}"
        if abs(disk_factor - 1) > 0.01:
            since += f", disk x {disk_factor:,.2f}"
    else:
        since += ", not scaled: the size of the data is known once it is prepared" if recorded_size else ", on data of unknown size"
    peak = (record.get("cost") or {}).get("peak_mib")
    return Forecast(stage, seconds, peak, round(disk) if disk is not None else None, since)


def _size(record: Mapping[str, Any] | None) -> Size | None:
    try:
        return from_record(Size, record) if record else None
    except TypeError:  # written by another version
        return None


def _steps(rounds: Mapping[str, Any]) -> dict[str, Any]:
    entries = {name: entry for name, entry in rounds.items() if isinstance(entry, Mapping)}
    return {
        name: SimpleNamespace(steps=entry.get("steps"), epochs=entry.get("epochs"), batch_queries=entry.get("batch_queries") or BATCH)
        for name, entry in entries.items()
    }


def _ratio(now: float | None, then: float | None) -> float | None:
    return now / then if now and then else None


def lines(costs: Iterable[Forecast]) -> list[str]:
    """One line per stage. If more than FEW stages are unknown, they get no line of their own; `total_line` names them.

    What most estimates are based on is said once, below them, if more than FEW are based on it.
    """
    costs = list(costs)
    show_unknown = sum(cost.is_unknown for cost in costs) <= FEW
    common, count = next(iter(Counter(cost.since for cost in costs if not cost.is_unknown).most_common(1)), ("", 0))
    shown = [replace(cost, since="") if cost.since == common and count > FEW else cost for cost in costs]
    below = [f"(estimates without a note: {common})"] if count > FEW else []
    return [cost.line for cost in shown if show_unknown or not cost.is_unknown] + below


def total_line(costs: Iterable[Forecast]) -> str:
    """One line with the sums over all stages, and the names of unknown ones."""
    costs = list(costs)
    seconds = [cost.seconds for cost in costs if cost.seconds is not None]
    sizes = [cost.bytes for cost in costs if cost.bytes is not None]
    if not seconds:
        names = f": {', '.join(cost.stage for cost in costs)}" if len(costs) > FEW else ""
        return f"time and disk: unknown, as no run of these stages is recorded; this one will be{names}"
    unknown = [cost.stage for cost in costs if cost.seconds is None]
    unknown_part = f"; unknown: {', '.join(unknown)}" if unknown else ""
    disk = f", {sum(sizes) / 2**30:,.2f} GiB of new files in the cache" if sizes else ""
    return f"total: at most about {clock(sum(seconds))}, one stage at a time{disk}{unknown_part}"


def refuse_small_disk(stages: Sequence[str]) -> None:
    """Raise DiskError if the new files of `stages`, as far as they are estimated, do not fit on the disks of the project and its cache.

    New files go to the cache; if data/ holds copies instead of links, its growth counts too. Files without an estimate count as nothing.
    """
    project, cache = Path.cwd(), cache_folder()
    try:
        costs = [cost for cost in forecasts(stages, cache, by_kind=False) if cost.bytes is not None]
        lock = read_lock()
    except (UserError, OSError):
        return
    sizes = {stage: sum(int(out.get("size") or 0) for out in entry.get("outs") or []) for stage, entry in lock.items()}
    new_bytes = sum(cost.bytes or 0 for cost in costs)
    growth = 0 if links.kind(project) != links.COPY else sum(max(0, (cost.bytes or 0) - sizes.get(cost.stage, 0)) for cost in costs)
    needed: dict[int, tuple[Path, int]] = {}
    for place, amount in ((_existing(cache), new_bytes), (project, growth)):
        device = place.stat().st_dev
        first, amount_before = needed.get(device, (place, 0))
        needed[device] = first, amount_before + amount
    names = counted(len(costs), "stages")
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
