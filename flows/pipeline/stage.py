"""Runs one stage in a DVC process of its own, and reads its output as it comes."""

import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TextIO

from flows.measuring.timing import visible_gpus
from flows.process.display import Outcome
from flows.process.prepared import python
from flows.process.problems import Problems
from flows.process.processes import Processes, Stopped, environment
from flows.storage.remote import WARNING
from flows.team.sync import LOST, REMOTE
from tasks.core.errors import USER_ERROR, DiskError, Problem, parse_disk_fault, printable
from tasks.core.files import partial_path
from tasks.core.params.runtime import MIG, Runtime, read_runtime
from tasks.core.params.sections import FROZEN, read_yaml

LOGS = Path(".retemper/logs")
ANSWER_SECONDS = 30
ATTEMPTS = 3
BUSY = ("Unable to acquire lock", "is busy, it is being blocked by")
ENDED = ("Updating lock file 'dvc.lock'", "Generating lock file 'dvc.lock'", "Use `dvc push` to send your updates to remote storage.")
EXITED = re.compile(r"^ERROR: failed to reproduce '.*': failed to run: .*, exited with (-?\d+)$")


class Slots:
    """The devices that stages may take: each GPU by its number, or the one CPU. Each serves one stage at a time."""

    def __init__(self, devices: list[str]) -> None:
        self._free, self._count = list(devices), len(devices)
        self._changed, self._turn = threading.Condition(), threading.Lock()

    @contextmanager
    def take(self, count: int = 1) -> Iterator[dict[str, str]]:
        """Wait for `count` free devices, or all if there are fewer; yields the environment that hides all others from the stage.

        All are taken at once, and later requests wait, so that stages that need one device do not starve a stage that needs several.
        """
        count = min(count, self._count)
        with self._turn, self._changed:
            self._changed.wait_for(lambda: len(self._free) >= count)
            devices, self._free = self._free[:count], self._free[count:]
        try:
            yield {"CUDA_VISIBLE_DEVICES": ",".join(devices)} if any(devices) else {}
        finally:
            with self._changed:
                self._free += devices
                self._changed.notify_all()


@contextmanager
def ray_environment(gangs: Slots, workers_of: str | None) -> Iterator[dict[str, str]]:
    """The environment of a stage whose workers run on a Ray cluster: it sees no GPU of this machine.

    A training needs room on the cluster for all its workers at once. Two trainings could block each other, so they take turns (`gangs`).
    """
    with gangs.take() if workers_of == "together" else nullcontext():
        yield {"CUDA_VISIBLE_DEVICES": ""}


def devices_needed(devices: list[str], workers_of: str | None) -> int:
    """How many of `devices` a stage takes. `workers_of`: its `Stage.workers`.

    0 with engine ray, which schedules its own; but a training by one worker stays on this machine. On a CPU, all workers share one slot.
    A training takes one MIG slice, as NCCL connects no two of one GPU.
    """
    if workers_of is None:
        return 1
    runtime = read_runtime()
    if runtime.engine == "ray":
        return 0 if workers_of == "pieces" or runtime.workers != 1 else 1
    if not any(devices) or (workers_of == "together" and devices[0].startswith(MIG)):
        return 1
    return len(devices) if runtime.workers == "all" else min(runtime.workers, len(devices))


def find_devices() -> list[str]:
    """The GPUs that we may use, by number or UUID. A single GPU has an empty name; without any, there are `slots` empty names.

    `device` of runtime.yaml says where stages compute: `cpu` uses no GPU, `cuda:N` only that one.
    """
    runtime = read_runtime()
    gpus = _gpus(runtime)
    return gpus if len(gpus) > 1 else [""] * (1 if gpus else runtime.slots)


def spares_gpus(name: str) -> bool:
    """Whether stage `name` computes on the CPU though there are GPUs: an index built on the CPU would hold a GPU for hours."""
    if not name.startswith("index@") or not _gpus(read_runtime()):
        return False
    return bool((read_yaml(FROZEN).get("index") or {}).get("build", "cpu") != "gpu")


def _gpus(runtime: Runtime) -> list[str]:
    """The GPUs that we may use. One that `device` of runtime.yaml names is an empty string here: the stage finds it by itself."""
    if runtime.device == "cpu":
        return []
    if ":" in runtime.device:
        return [""]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return visible_gpus(visible)
    tool = shutil.which("nvidia-smi")
    return _numbers([tool, "--query-gpu=index", "--format=csv,noheader"]) if tool else []


def _numbers(command: list[str]) -> list[str]:
    """The GPU numbers that nvidia-smi lists; one empty name if it does not answer, none if it fails."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        print(f"retemper: warning: {command[0]} has not answered in {ANSWER_SECONDS} s; stages run one at a time", file=sys.stderr)
        return [""]
    return result.stdout.split() if result.returncode == 0 else []


class Transcript:
    """DVC's output, read line by line: which lines are the stage's own, and how the stage ended."""

    def __init__(self) -> None:
        self.ran = self.busy = False
        self.exited: int | None = None
        self.errors: list[str] = []
        self.began = self.ended = 0.0  # the stage's command, seconds since the epoch
        self._inside = False

    def read(self, line: str) -> str | None:
        """Take in a line; returns it if it is the stage's own, or our own warning."""
        if line.startswith(WARNING) and not self._inside:
            return line
        if line.startswith("Running stage '") and not self.ran:
            self.ran = True
            self.errors.clear()  # a cached run could not be restored, so the stage runs
        elif self.ran and not self._inside and line.startswith("> "):
            self._inside, self.began = True, time.time()
        elif self._inside and line in ENDED:
            self._inside, self.ended = False, time.time()
        elif line.startswith("ERROR: "):
            self._inside = False
            match = EXITED.match(line)
            self.exited = int(match[1]) if match else self.exited
            self.errors.append(line.removeprefix("ERROR: "))
            self.busy = any(word in line for word in BUSY)
        elif self._inside:
            return line
        return None


def run_stage(
    name: str,
    processes: Processes,
    tell: Callable[[str], None],
    *,
    pull: bool = False,
    env: dict[str, str] | None = None,
    logs: Path = LOGS,
) -> Outcome:
    """Bring one stage up to date: run it, or let DVC find that it need not run. Its output goes to `tell` and to a log."""
    command = [python(env or {}), *REMOTE[1:], "repro-pull" if pull else "repro", name]
    started = time.monotonic()
    log = logs / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    new_log, reported = partial_path(log), Problems(logs / f"{name}.problem.json")
    for attempt in range(1, ATTEMPTS + 1):
        transcript = Transcript()
        with new_log.open("w", encoding="utf-8") as handle:
            status = processes.run(command, _reader(transcript, handle, tell), environment(**(env or {}), **reported.environment))
        if transcript.ran or status:  # the log of a run is not overwritten by one that found nothing to do
            new_log.replace(log)
        else:
            new_log.unlink()
        if not (status and transcript.busy and not transcript.ran and attempt < ATTEMPTS):
            break
    seconds = time.monotonic() - started
    problems = reported.take()
    if status == 0 and not any(line.startswith(LOST) for line in transcript.errors):
        return Outcome("Ran" if transcript.ran else "Cached", seconds, began=transcript.began, ended=transcript.ended)
    if transcript.exited is not None:  # DVC removed the former outs, if any, before the stage ran
        with suppress(Stopped):
            processes.run([*command[:-2], "checkout", "--quiet", "--force", name], lambda _: None, environment(**(env or {})))
    problem = problems[-1] if problems and transcript.exited == USER_ERROR else _problem(name, transcript, status, log=log)
    return Outcome("Failed", seconds, problem.status, problem)


def _reader(transcript: Transcript, log: TextIO, tell: Callable[[str], None]) -> Callable[[str], None]:
    def read(raw: str) -> None:
        if raw.startswith("\r"):
            tell(f"\r{printable(raw[1:])}")
            return
        line = printable(raw)
        with suppress(OSError):  # a full disk: the stage itself will report it
            log.write(f"{line}\n")
            log.flush()
        stage_line = transcript.read(line)
        if stage_line is not None:
            tell(stage_line)

    return read


def _problem(name: str, transcript: Transcript, status: int, *, log: Path) -> Problem:
    """Why a stage failed, if it has not reported the reason itself."""
    if transcript.exited is not None:
        killed = " (killed; out of memory?)" if transcript.exited in (-9, 137) else ""
        return Problem("stage", f"{name}: failed with status {transcript.exited}{killed}; its log: {log}", 1, where=name)
    if fault_line := next((line for line in transcript.errors if parse_disk_fault(line)[0]), ""):
        return DiskError(
            f"{name}: {fault_line}; no partial output was kept, {parse_disk_fault(fault_line)[1]} and run again", where=name
        ).problem
    reason = transcript.errors[-1] if transcript.errors else f"DVC ended with status {status}"
    return Problem("stage", f"{name}: {reason}; its log: {log}", 1, where=name)
