"""The record of a run for export: parameters, figures with marks of significance, training curves, and what identifies the run."""

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flows.pages.measured import SIGNIFICANCE
from flows.repository.git import git
from flows.repository.lock import Lock, current_lock
from flows.results import generations, metrics
from flows.results.metrics import METRICS
from flows.storage import makings
from flows.storage.cache import file_md5, folder_digest
from tasks.core.charts.curves import read_tsv
from tasks.core.errors import UserError, redacted
from tasks.core.files import file_digest, read_json
from tasks.core.params.sections import FROZEN, read_parameters
from tasks.core.stage.frozen import ORDER

LOCK, SOURCE, TABLE = Path("dvc.lock"), Path("data/source.json"), Path("data/report/table.txt")
CURVES = (Path("data/curves"), Path("data/pretrain_curves"))
PREFIX = "retemper."  # of our tags' names


@dataclass(frozen=True)
class Record:
    """A run, in the terms that all targets share.

    `key`: digest of commit and dvc.lock, so that the same run has the same key wherever it is exported from. `metrics`: by
    SPLIT/SYSTEM/MEASURE. `curves`: (step, value) by curves/MODEL/METRIC. `at`: when dvc.lock was written, in seconds since the epoch.
    """

    key: str
    name: str
    at: float
    params: Mapping[str, str]
    metrics: Mapping[str, float]
    tags: Mapping[str, str]
    curves: Mapping[str, list[tuple[int, float]]] = field(default_factory=dict)
    table: str = ""

    @property
    def digest(self) -> str:
        """A digest of all but `at`, which changes whenever git rewrites dvc.lock."""
        return hashlib.sha256(json.dumps(vars(self) | {"at": 0}, sort_keys=True, default=dict).encode()).hexdigest()


def gather(commit: str = "", outcome: Mapping[str, Any] | None = None) -> Record | None:
    """The record of the current folder's last run; None if nothing has been computed or committed.

    `commit`: the run's, by default HEAD. `outcome`: what a retraining adds (result, reason, champion, candidate).
    """
    commit = commit or git("rev-parse", "--verify", "--quiet", "HEAD", check=False)
    if not (commit and LOCK.exists()):
        return None
    digest, lock = file_digest(LOCK), current_lock()
    figures, _ = generations.current_metrics(metrics.read_metrics(), lock)
    stale = generations.stale_outs(lock)
    is_reported = report_is_current(lock, stale)
    source = read_json(SOURCE).get("dataset", {}) if SOURCE.exists() else {}
    tag_texts = {
        "commit": commit,
        "branch": git("symbolic-ref", "--quiet", "--short", "HEAD", check=False),
        "changed": makings.current_provenance().get("changed", ""),
        "dvc_lock": digest,
        "data": redacted(str(source.get("source", ""))),
        "data_digest": str(source.get("digest", "")),
        **{name: str(value) for name, value in (outcome or {}).items() if value is not None},
        **{f"marks.{place.replace('/', '.')}": text for place, text in (significance_marks() if is_reported else {}).items()},
    }
    return Record(
        key=hashlib.sha256(f"{commit} {digest}".encode()).hexdigest()[:16],
        name=f"{'retraining' if outcome else 'run'} {commit[:10]}",
        at=LOCK.stat().st_mtime,
        params={name: value for name, value in flatten(read_parameters(FROZEN) if FROZEN.exists() else {}) if name != ORDER},
        metrics={
            f"{split}/{system}/{measure}": float(value)
            for system, splits in figures.items()
            for split, measures in splits.items()
            for measure, value in measures.items()
            if isinstance(value, int | float)
        },
        tags={f"{PREFIX}{name}": text for name, text in tag_texts.items() if text},
        curves=curves(stale),
        table=TABLE.read_text(encoding="utf-8") if is_reported and TABLE.exists() else "",
    )


def report_is_current(lock: Lock, stale: Collection[str]) -> bool:
    """Whether data/report was made from the metrics in data/metrics. `stale`: the outs of stale stages.

    The report reads the folder above these outs, and DVC stores no listing of it, so its digest is compared with that of the files.
    """
    read = {dep["path"]: dep.get("md5") for dep in lock.get("report", {}).get("deps") or []}
    files = {path.relative_to(METRICS).as_posix(): file_md5(path) for path in METRICS.rglob("*") if path.is_file()}
    return str(TABLE.parent) not in stale and read.get(str(METRICS)) == folder_digest(files)


def flatten(value: object, above: str = "") -> Iterator[tuple[str, str]]:
    """Parameters by dotted key, as text; an empty mapping counts as a value."""
    if isinstance(value, Mapping) and value:
        for key, below in value.items():
            yield from flatten(below, f"{above}.{key}" if above else str(key))
    elif above:
        yield above, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def curves(stale: Collection[str] = ()) -> dict[str, list[tuple[int, float]]]:
    """All of DVCLive's step metrics of every training whose curves are not among the `stale` outs."""
    found = {}
    for folder in CURVES:
        for path in sorted(folder.glob("*/plots/metrics/**/*.tsv")):
            model, *rest = path.relative_to(folder).with_suffix("").parts
            if str(folder / model) not in stale and (points := read_tsv(path)):
                inner = rest[2:] if rest[2] != "train" else rest[3:]  # plots/metrics/[train/]
                found["/".join(("curves", model, *inner))] = [(int(step), value) for step, value in points]
    return found


def significance_marks() -> dict[str, str]:
    """By SPLIT/SYSTEM, the baselines from which the system differs significantly (Holm), as in the report."""
    marks: dict[str, list[str]] = {}
    with suppress(UserError, KeyError, TypeError, AttributeError):
        for split, pairs in (read_json(SIGNIFICANCE) if SIGNIFICANCE.exists() else {}).get("splits", {}).items():
            for pair in pairs:
                if pair["significant"]:
                    marks.setdefault(f"{split}/{pair['system']}", []).append(f"{pair['baseline']} {pair['difference']:+.4f}")
    return {place: "differs from " + ", ".join(others) for place, others in marks.items()}
