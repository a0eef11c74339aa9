"""How a stage starts: it dies with its parent, stays offline if it can, and logs little."""

import ctypes
import gc
import json
import os
import signal
import sys
import time
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tasks.core.errors import InputChanged, UserError, one_line_errors
from tasks.core.files import read_json, read_mapping, write_json
from tasks.core.params.sections import FROZEN, STAGE
from tasks.core.stage.code import ASKED_BY, MEMORY, PACKAGE, SNAPSHOT, Reader, freeze_code, frozen_environment, own_stage
from tasks.core.stage.frozen import CODE
from tasks.core.stage.progress import leave_bars
from tasks.core.stage.references import freeze_references, frozen_references

PR_SET_PDEATHSIG = 1
SOURCES = "RETEMPER_SOURCES"  # names the flow's record of what this stage reads from outside the project (flows.parameters.sources)
RECORD = "RETEMPER_RECORD"  # names a file for the stage's threads, device, and arithmetic (tasks.core.machine.devices)
SECONDS = "RETEMPER_SECONDS"  # names a file for the stage's cost: `seconds` of its own work, without startup and caching, and others
TETHER = "RETEMPER_TETHER"  # set by the flow's tether (flows/process/tether.py), which leads our session


@contextmanager
def stage() -> Iterator[None]:
    """Run a stage's entry point: no telemetry, no orphans (Linux: the stage dies with its parent), user errors and Ctrl-C as one line."""
    gc.freeze()  # imported objects stay, so no later collection has to scan them
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.environ.get(TETHER) and os.getsid(os.getppid()) != os.getsid(0):
            raise SystemExit(143)  # our parent was killed during our imports: another run may already be writing our outs
        if os.environ.pop(ASKED_BY, "") not in ("", str(os.getppid())):
            raise SystemExit(143)  # the same for a command: nobody waits for its answer
    try:
        with one_line_errors():
            execute_frozen()
            refuse_other_sources()
            inputs = input_stamps(sys.argv[1:]) if STAGE in os.environ else {}
            began = time.monotonic()
            try:
                yield
            finally:
                leave_bars()
            record_cost(seconds=time.monotonic() - began, peak_mib=_peak_mib())
            if changed := [str(path) for path, stamp in inputs.items() if _stamp(path) != stamp]:
                raise InputChanged(f"{', '.join(changed)}: changed while {os.environ.get(STAGE)} ran; its output was discarded, run again")
    except KeyboardInterrupt:
        print("retemper: interrupted", file=sys.stderr)
        raise SystemExit(130) from None


def record_cost(**figures: float) -> None:
    """Add figures to the record of this stage's cost, in the file that SECONDS names: no digest covers it, and no stage reads it."""
    if not (place := os.environ.get(SECONDS)):
        return
    path = Path(place)
    with suppress(OSError, ValueError):  # a full disk costs these figures, not the stage
        record = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        write_json(path, record | {name: round(value, 3) for name, value in figures.items()})


def record_arithmetic(name: str) -> None:
    """Add what this stage computes in to the record of its hardware, where `precision` does not tell: int8 needs a CPU that has it.

    Nothing is added to a record that is missing or truncated: a worker of a cluster that finds one would not add its hardware.
    """
    if (path := os.environ.get(RECORD)) and (facts := read_mapping(Path(path))):
        with suppress(OSError):
            write_json(Path(path), facts | {"arithmetic": name})


def _peak_mib() -> float:
    """Peak memory of this process in MiB, its imports included; 0 where the system does not report it."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return 0.0


def refuse_other_sources() -> None:
    """Raise UserError if a source is no longer the one whose digest the stage depends on, by the flow's record that SOURCES names."""
    if (path := os.environ.get(SOURCES)) and (problem := read_json(Path(path))["problem"]):
        raise UserError(problem)


def input_stamps(words: Sequence[str]) -> dict[Path, object]:
    """A stamp of each existing path below data/ that a command line names; outs do not exist, because DVC has removed them."""
    return {path: _stamp(path) for path in map(Path, words) if path.parts[:1] == (FROZEN.parts[0],) and path.exists()}


def _stamp(path: Path) -> object:
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    statuses = [(str(file), file.stat()) for file in files if file.is_file()]
    return [(name, status.st_ino, status.st_size, status.st_mtime_ns) for name, status in statuses]


def execute_frozen() -> None:
    """If plain `dvc repro` runs this stage from the working tree, restart it, by one exec, from a frozen copy of the code.

    UserError if data/code.json has the digest of other code (frozen by a run, or current), or if a process started from a frozen copy has
    imported other code.
    """
    stage = own_stage()
    if frozen := os.environ.get(SNAPSHOT):
        imported = Path(str(sys.modules[PACKAGE].__file__))
        if not imported.resolve().is_relative_to(Path(frozen).resolve()):
            raise UserError(f"{frozen}: expected this stage's frozen code, but {imported} was imported; run again")
        if (
            STAGE in os.environ
            and stage
            and CODE.exists()
            and read_json(CODE).get(stage) != Reader(Path(frozen), MEMORY).stage_digest(stage)
        ):
            raise UserError(
                f"{CODE}: no longer matches the code of {stage} that this run has frozen; run again, with no dvc repro beside it"
            )
        return
    if STAGE not in os.environ or not stage or not Path(PACKAGE).is_dir():
        return
    code = freeze_code(Path())
    reader = Reader(code)
    if read_json(CODE).get(stage) != reader.stage_digest(stage):
        raise UserError(f"{CODE}: does not match the current code of {stage}; run dvc repro again (its stage freeze writes the file)")
    for name, digest in _references(os.environ[STAGE]).items():
        if freeze_references(name, reader) != f"{name}@{digest}":
            raise UserError(f"{FROZEN}: does not match the current code of {name}; run dvc repro again (its stage freeze writes the file)")
    os.environ.update(frozen_environment(code, os.environ))
    os.execv(sys.executable, [sys.executable, "-m", f"{PACKAGE}.{stage}", *sys.argv[1:]])


def _references(stage: str) -> dict[str, str]:
    """Digests of the code that the frozen parameters of `stage` (`train@star`) name."""
    sections = read_json(FROZEN).values() if FROZEN.exists() else ()
    name = stage.partition("@")[2]
    return frozen_references([section[name] for section in sections if isinstance(section, dict) and name in section])


def parser(description: str, **paths: str) -> ArgumentParser:
    """A stage's command line: one required `--name PATH` for each keyword; its value is the help text."""
    arguments = ArgumentParser(description=description)
    for name, text in paths.items():
        arguments.add_argument(f"--{name.replace('_', '-')}", type=Path, required=True, help=text)
    return arguments
