"""What a run is doing, as a file for `retemper watch`: its stages, the state of each, and its last line of output.

The file is replaced within SECONDS of a change. No stage reads it. On a full or read-only disk the file is lost, but the run goes on.
"""

import json
import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from flows.process.display import Outcome
from flows.process.processes import typed_command
from tasks.core.files import partial_path

RECORD = Path(".retemper/run.json")
BEFORE = Path(".retemper/before_run.json")  # the work of a command before its first run, such as checking batches
SECONDS = 1.0
LONGEST = 500  # characters kept of a line
Seconds = Annotated[float, Field(ge=0, le=1e11)]  # finite; since the epoch, up to 3,000 years from now
State = Literal["waiting", "running", "ran", "cached", "failed", "stopped", "skipped"]


@dataclass(frozen=True)
class StageNow:
    """The state of a stage. `estimate`: the seconds that it may take, if there is a record; times are seconds since the epoch."""

    name: str
    state: State = "waiting"
    estimate: Seconds | None = None
    began: Seconds | None = None
    ended: Seconds | None = None
    said: str = ""  # its last line
    problem: str = ""  # why it failed


@dataclass(frozen=True)
class RunNow:
    """A run: the command as typed, its process, and its stages in topological order.

    `born`: when the process began, because its number may be reused. `ended`: None while it runs, and if it was killed.
    `part`: the command has other stages to run after these.
    """

    command: str
    process: Annotated[int, Field(gt=0)]
    born: Seconds
    host: str
    began: Seconds
    stages: tuple[StageNow, ...]
    ended: Seconds | None = None
    problem: str = ""
    part: bool = False

    @property
    def is_done(self) -> bool:
        """Whether it has ended, and all of its stages are up to date."""
        return self.ended is not None and not self.problem and all(stage.state in ("ran", "cached") for stage in self.stages)


class Recorder:
    """Keeps the file, from many threads. It listens to a run's display."""

    def __init__(self, run: RunNow, path: Path = RECORD) -> None:
        self._run, self._path = replace(run, stages=()), path.absolute()  # absolute, since a retraining changes its folder later
        self._stages = {stage.name: stage for stage in run.stages}
        self._guard, self._late = threading.Lock(), False
        self._write()

    def began(self, stage: str) -> None:
        """Record that a stage has its device, and begins."""
        self._change(stage, state="running", began=time.time())

    def said(self, stage: str, text: str) -> None:
        """Record a line of a stage's output or progress."""
        self._change(stage, said=text[:LONGEST])

    def ended(self, stage: str, outcome: Outcome) -> None:
        """Record that a stage has ended."""
        problem = outcome.problem.message if outcome.problem else ""
        self._change(stage, state=outcome.state.lower(), ended=time.time(), problem=problem)

    def finish(self, problem: str = "") -> None:
        """Record that the run has ended: running stages were stopped, waiting ones never began."""
        now = time.time()
        with self._guard:
            for name, stage in self._stages.items():
                if stage.state == "running":
                    self._stages[name] = replace(stage, state="stopped", ended=now)
                elif stage.state == "waiting":
                    self._stages[name] = replace(stage, state="skipped")
            self._run = replace(self._run, ended=now, problem=problem)
            self._write()

    def _change(self, stage: str, **fields: Any) -> None:
        """Apply a change; the file is written a little later, once for all changes until then."""
        with self._guard:
            if self._run.ended is not None:  # another run may record here now
                return
            self._stages[stage] = replace(self._stages[stage], **fields)
            if not self._late:
                self._late = True
                timer = threading.Timer(SECONDS, self._catch_up)
                timer.daemon = True
                timer.start()

    def _catch_up(self) -> None:
        with self._guard:
            if self._late:
                self._write()

    def _write(self) -> None:
        self._late = False
        text = json.dumps(asdict(replace(self._run, stages=tuple(self._stages.values()))), ensure_ascii=False)
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # not flushed to disk: a power cut ends the run, too
            partial_path(self._path).write_text(text, encoding="utf-8", errors="replace")
            partial_path(self._path).replace(self._path)


@contextmanager
def recording(stages: Sequence[StageNow], path: Path = RECORD, *, part: bool = False) -> Iterator[Recorder]:
    """Record a run of this process until it has ended, with or without an error. `part`: see RunNow."""
    import psutil  # type: ignore[import-untyped]

    born = psutil.Process().create_time()
    recorder = Recorder(RunNow(typed_command(), os.getpid(), born, socket.gethostname(), time.time(), tuple(stages), part=part), path)
    try:
        yield recorder
    except BaseException as error:
        recorder.finish("stopped" if isinstance(error, KeyboardInterrupt) else str(error) or type(error).__name__)
        raise
    recorder.finish()


def read(path: Path = RECORD) -> RunNow | None:
    """The last record; None without a file, or if it is corrupt or from another version."""
    try:
        return TypeAdapter(RunNow).validate_json(path.read_bytes())
    except (OSError, ValueError):
        return None
