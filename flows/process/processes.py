"""Run commands in their own process groups, which never outlive us."""

import getpass
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from flows.process import tether
from tasks.core.errors import USER_ERROR
from tasks.core.stage.code import ASKED_BY, MALLOC

TETHER = [sys.executable, "-I", "-S", str(Path(tether.__file__))]
GRACE_SECONDS = 0.5
LAST_RESORT_SECONDS = 2.0
TYPED = "RETEMPER_TYPED"  # environment: the command that the user typed, for a run that another command started


class Stopped(Exception):
    """The run is being stopped, so no command is started."""


def environment(**extra: str) -> dict[str, str]:
    """The environment of commands: `python` is ours, output is unbuffered, and telemetry is off. `extra` is added."""
    settings = {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
        "PYTHONUNBUFFERED": "1",
        "DVC_NO_ANALYTICS": "1",
        "DVC_STUDIO_OFFLINE": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        **MALLOC,
    }
    return {**os.environ, **settings, **extra}


def name_user() -> None:
    """Name the user by number in the environment if the system has no name for it, as in a container with a user of its own.

    DVC asks for the name when it opens a project, and would fail.
    """
    try:
        getpass.getuser()
    except (KeyError, OSError):
        os.environ["LOGNAME"] = str(os.getuid())


def typed_command() -> str:
    """The command that the user typed. For a run that another command started, that command; for a scheduled run, `retemper schedule`."""
    arguments = ["schedule"] if Path(sys.argv[0]).parent.name in ("prefect", "scheduling") else sys.argv[1:]
    return os.environ.get(TYPED) or shlex.join(["retemper", *arguments])


def ask(module: str, question: Mapping[str, Any], *, code: Path | None = None) -> Any:
    """Run `python -m module` of the project's own code, or of that in the folder `code`, on one JSON object. Return its answer, the last
    line that it prints.

    SystemExit if it ends with a user's mistake, which it has printed.
    """
    env = environment(PYTHONPATH=os.pathsep.join(filter(None, [str(code or Path.cwd()), os.environ.get("PYTHONPATH", "")])))
    env[ASKED_BY] = str(os.getpid())
    command = [sys.executable, *(["-P"] if code else []), "-m", module]  # -P: without the current folder
    result = subprocess.run(command, input=json.dumps(question), stdout=subprocess.PIPE, env=env, text=True, check=False)
    if result.returncode == USER_ERROR:
        raise SystemExit(USER_ERROR)
    if result.returncode:
        raise RuntimeError(f"{module} ended with status {result.returncode}; its output is above")
    return json.loads(result.stdout.splitlines()[-1])


class Processes:
    """The running commands. Safe to use from many threads."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._groups: set[int] = set()
        self._stopped = False

    def run(
        self, command: Sequence[str], tell: Callable[[str], None], env: Mapping[str, str] | None = None, *, folder: Path | None = None
    ) -> int:
        """Run `command` to its end; return its exit status (128 + signal, if killed).

        `tell` is called with each line of its output. A line that begins with \\r is progress, to be shown but not kept.
        """
        process = self.start(command, env, folder=folder)
        assert process.stdout is not None
        reader = threading.Thread(target=_pass_lines, args=(process.stdout, tell), daemon=True)
        reader.start()
        try:
            code = process.wait()
        finally:
            self.end(process)
        reader.join()
        return code if code >= 0 else 128 - code

    def start(
        self, command: Sequence[str], env: Mapping[str, str] | None = None, log: Path | None = None, *, folder: Path | None = None
    ) -> subprocess.Popen[bytes]:
        """Start `command` in its own group, which ends when we do. Output goes to `log`, or to a pipe. Raises Stopped after `stop`."""
        with ExitStack() as stack, self._guard:
            out = stack.enter_context(log.open("wb")) if log else subprocess.PIPE
            if self._stopped:
                raise Stopped
            process = subprocess.Popen(
                [*TETHER, *command],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=dict(env) if env is not None else environment(),
                cwd=folder,
                start_new_session=True,
            )
            self._groups.add(process.pid)
        return process

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """Kill everything that is left of the process's group."""
        _signal_group(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdin:
            process.stdin.close()
        with self._guard:
            self._groups.discard(process.pid)

    def stop(self) -> None:
        """Start nothing more, ask every group to end, and kill it after GRACE_SECONDS. Returns at once."""
        # No lock: this runs in a signal handler, perhaps in the very thread that holds it.
        self._stopped = True
        groups = list(self._groups)
        for group in groups:
            _signal_group(group, signal.SIGTERM)

        def finish() -> None:
            time.sleep(GRACE_SECONDS)
            for group in set(groups) | set(self._groups):
                _signal_group(group, signal.SIGKILL)

        threading.Thread(target=finish, daemon=True).start()

    @property
    def stopped(self) -> bool:
        return self._stopped


@contextmanager
def stopping_on_signals(processes: Processes, farewell: Callable[[], str] = lambda: "\nretemper: stopped\n") -> Iterator[None]:
    """On a signal that asks us to end, stop `processes` and raise KeyboardInterrupt with its number. Stop them on any exception, too.

    Main thread only. The text of `farewell` goes to stderr at once. If unwinding takes longer than LAST_RESORT_SECONDS, the
    process exits. Further signals are ignored.
    """
    signalled = 0  # the number of the signal that came, if any

    def stop(number: int, _frame: FrameType | None) -> None:
        nonlocal signalled
        if signalled:
            return
        signalled = number
        sys.unraisablehook = _quiet
        stopped_before = processes.stopped
        with suppress(OSError):  # the terminal may be closed
            os.write(2, farewell().encode())  # not print(): the signal may have interrupted one
        processes.stop()
        timer = threading.Timer(LAST_RESORT_SECONDS, os._exit, (128 + number,))
        timer.daemon = True
        timer.start()
        if not stopped_before:
            raise KeyboardInterrupt(number)

    old_handlers = {number: signal.signal(number, stop) for number in ending_signals()}
    try:
        yield
    except BaseException as error:
        processes.stop()
        if signalled and not isinstance(error, KeyboardInterrupt):  # a library replaced our exception
            raise KeyboardInterrupt(signalled) from None
        raise
    finally:
        if not signalled:  # otherwise a second Ctrl-C while we end would reach Python's own handler
            for number, handler in old_handlers.items():
                signal.signal(number, handler)


@contextmanager
def handling(stop: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Within this context, the signals that ask us to end call `stop`; afterwards their former handlers are back. Main thread only."""
    handlers = {number: signal.signal(number, stop) for number in ending_signals()}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def ending_signals() -> list[signal.Signals]:
    """The signals that ask us to end. SIGHUP (the terminal was closed) is one of them, unless it is ignored, as under nohup."""
    hangup = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
    return [signal.SIGINT, signal.SIGTERM, *hangup]


def _quiet(_raised: "sys.UnraisableHookArgs") -> None:
    """Report nothing. While we end, a KeyboardInterrupt in a destructor, or a constructor whose object is then lost, is not worth it."""


def _pass_lines(stream: Iterator[bytes], tell: Callable[[str], None]) -> None:
    for raw in stream:
        text = raw.decode("utf-8", "replace").rstrip("\n")
        is_progress = text.rfind("\r") == 0
        for line in [text] if is_progress else filter(None, text.split("\r")):
            with suppress(OSError):  # of `tell`; keep reading, or the command would block forever
                tell(line)


def _signal_group(group: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
