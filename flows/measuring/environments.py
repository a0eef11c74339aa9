"""The environment of stages on this machine: threads, device, arithmetic, versions. If they differ, the same parameters give other bits.

It is kept in the log of times (flows.measuring.timing), which no stage reads and no digest covers. A stage records what only it knows (how
many threads PyTorch used) in its own file; the flow adds versions and the processor.
"""

import json
import platform
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, get_args

from flows.measuring.timing import LOG, read
from flows.repository.lock import Lock, entry_digest
from flows.storage import makings
from tasks.core.files import read_mapping
from tasks.core.params.sections import FROZEN
from tasks.core.stage.entry import RECORD, SECONDS
from tasks.params import Parameters

FOLDER = Path(".retemper/environments")
# Artifacts depend on the arithmetic or text processing of these.
LIBRARIES = ("torch", "transformers", "tokenizers", "numpy", "faiss-cpu", "faiss-gpu", "openvino", "peft")
SECTIONS = {"train": "rounds", "reranker": "rerankers", "retrieve_adore": "retrieve"}  # of params.yaml, by stage, if their names differ


def begin(stage: str) -> dict[str, str]:
    """Environment variables that tell a starting stage where to record its environment and cost. Earlier records are removed."""
    notes = {RECORD: FOLDER / f"{stage}.json", SECONDS: FOLDER / f"{stage}.seconds"}
    for note in notes.values():
        note.unlink(missing_ok=True)
    FOLDER.mkdir(parents=True, exist_ok=True)
    return {name: str(note.absolute()) for name, note in notes.items()}


def cost(stage: str) -> dict[str, float]:
    """The cost of a finished stage, as it recorded it: seconds of its own work, peak_mib, and more; empty without a record."""
    try:
        recorded = json.loads((FOLDER / f"{stage}.seconds").read_text(encoding="utf-8"))
        return {str(name): float(value) for name, value in recorded.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


def read_environment(stage: str) -> dict[str, Any]:
    """The environment that a finished stage ran with."""
    recorded = read_mapping(FOLDER / f"{stage}.json")  # a stage without tensors has none
    if configured := precision(stage):
        recorded.setdefault("arithmetic", "bf16" if configured != "fp32" and recorded.get("bf16") == "native" else "fp32")
    return {**recorded, "processor": _processor(), "python": platform.python_version(), **_versions()}


def precision(stage: str) -> str:
    """The precision that the frozen parameters, or their defaults, set for a stage; empty for a stage that has none."""
    kind, _, name = stage.partition("@")
    section = SECTIONS.get(kind, kind)
    try:
        annotation = Parameters.model_fields[section].annotation
        entries: Any = json.loads(FROZEN.read_text(encoding="utf-8"))[section]
        arguments = get_args(annotation)  # of a dict of entries
        record: Any = arguments[-1] if arguments else annotation
        return str(((entries[name] if arguments else entries) or {}).get("precision", record.model_fields["precision"].default))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return ""


def of_artifacts(lock: Lock, log: Path = LOG, *, field: str = "environment", cache: Path | None = None) -> dict[str, dict[str, Any]]:
    """By stage whose entry in `lock` was made on this machine: its environment (or cost), from the log. Others are absent.

    With a `cache`, it also has stages that others made and recorded there.
    """
    by_digest: dict[str, dict[str, Any]] = {}
    waiting: dict[str, dict[str, Any]] = {}  # as earlier versions wrote them: the digest in a later line
    for line in read(log):
        if line.get("state") == "Ran" and isinstance(line.get(field), dict):
            if digest := line.get("digest"):
                by_digest[str(digest)] = line[field]
            else:
                waiting[str(line.get("ended"))] = line[field]
        elif (stage := line.get("made")) and stage in waiting:
            by_digest[str(line.get("digest"))] = waiting.pop(stage)
    digests = {stage: entry_digest(entry) for stage, entry in lock.items()}
    shared = makings.read(cache, [digest for digest in digests.values() if digest not in by_digest]) if cache else {}
    by_digest |= {digest: record[field] for digest, record in shared.items() if isinstance(record.get(field), dict)}
    return {stage: by_digest[digest] for stage, digest in digests.items() if digest in by_digest}


def differences(stages: Iterable[str], before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """One line per group of `stages` whose environments differ from now in the same way, or are unknown."""
    lines: dict[str, list[str]] = {}
    for stage in stages:
        old, new = before.get(stage), now.get(stage, {})
        if old is None:
            text = "there is no record of what it was computed with; other threads, hardware or versions give other bits"
        else:
            changes = [
                f"{key} {old.get(key, 'none')}, here {new.get(key, 'none')}"
                for key in dict.fromkeys([*old, *new])
                if old.get(key) != new.get(key)
            ]
            text = f"was computed with {'; '.join(changes)}" if changes else "was computed with the same threads, hardware and versions"
        lines.setdefault(text, []).append(stage)
    for text, names in lines.items():
        yield f"{', '.join(names)}: {text}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor() or platform.machine()
    )


def _versions() -> dict[str, str]:
    versions = {}
    for name in LIBRARIES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions
