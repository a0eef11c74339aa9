"""`retemper serve`: run the search server in a separate process, and follow the champion meanwhile."""

import errno
import os
import platform
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from flows.process import locks
from flows.process.processes import environment, handling
from flows.serving.export import current, link
from flows.serving.follow import Follower
from tasks.core.errors import UserError
from tasks.core.models.export import read_record

FOLDER = Path(".retemper/serving")
LOG = Path(".retemper/queries.jsonl")
POLL_SECONDS = 1.0  # between two checks of the champion
GRACE_SECONDS = 15  # from a signal until the server is killed; it gives its requests 10
KEY = "RETEMPER_API_KEY"
NAME = re.compile(r"(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?|\[[0-9A-Fa-f:.]+\]")  # a host's name, or an address
LOOPBACK = ("127.0.0.1", "localhost", "::1", "[::1]")  # names of this machine, always allowed


class Stop(BaseException):
    """A signal has asked us to end."""


@dataclass(frozen=True)
class Settings:
    """What to serve, and where. `model` or `export`: what to serve in place of the champion. `hosts`: further names of the server."""

    host: str = "127.0.0.1"
    port: int = 8080
    model: str | None = None
    export: Path | None = None
    log_queries: str | None = None
    log: Path = LOG
    hosts: tuple[str, ...] = ()
    fetch_seconds: float = 0


def serve(settings: Settings) -> int:
    """Answer queries until a signal ends it; return the exit status. Raises UserError for missing or corrupt parts, or a taken port."""
    for name in settings.hosts:
        if not NAME.fullmatch(name):
            raise UserError(f"--allow-host {name}: expected a name without a port, such as search.example.org, or *.example.org")
    with bind_socket(settings.host, settings.port) as listener:
        host, port = listener.getsockname()[:2]
        is_local = host in ("127.0.0.1", "::1")
        if not is_local and not os.environ.get(KEY):
            _say(f"warning: {settings.host} may be reached from other machines, and {KEY} is not set: everyone there may search")
        # The port alone may be that of another server, at another address or on another machine that shares the project's folder.
        with nullcontext(FOLDER) if settings.export else own_folder(f"{host}-{port}") as folder:
            return _serve_folder(settings, listener, folder, is_local=is_local)


@contextmanager
def own_folder(name: str) -> Iterator[Path]:
    """A place for a folder that this process alone uses, and that is removed at its end.

    Folders that killed servers of this machine left are removed first.
    """
    machine = FOLDER / platform.node()
    for lock in sorted(machine.glob("*.lock")):
        with suppress(UserError, OSError), locks.wait_and_hold(lock, seconds=0):  # its server is alive, or it is another user's
            shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
            lock.unlink()
    folder, lock = machine / name, machine / f"{name}.lock"
    with locks.wait_and_hold(lock, seconds=10):
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            lock.unlink(missing_ok=True)


def _serve_folder(settings: Settings, listener: socket.socket, folder: Path, *, is_local: bool) -> int:
    """Answer queries, with `folder` as the place for what is served."""
    place, follower = _prepare_folder(settings, folder)
    command = [sys.executable, "-m", "tasks.search.server", "--served", str(place), "--socket", str(listener.fileno())]
    names = [*LOOPBACK, *settings.hosts] if is_local or settings.hosts else []  # none: any
    command += [word for name in names for word in ("--host", name)]
    if follower:
        command += ["--problem", str(follower.problem)]
    if settings.log_queries:
        command += ["--log-queries", settings.log_queries, "--log", str(settings.log)]
    return _run(command, listener, follower)


def _prepare_folder(settings: Settings, folder: Path) -> tuple[Path, Follower | None]:
    """The folder that the server reads, and the follower that changes it, if any."""
    if settings.export:
        read_record(settings.export)
        return settings.export, None
    if settings.model:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        link(settings.model, folder)
        return folder, None
    follower = Follower(Path.cwd(), folder, _say, fetch_seconds=settings.fetch_seconds)
    follower.begin(current(Path.cwd()))
    return follower.link, follower


def _run(command: list[str], listener: socket.socket, follower: Follower | None) -> int:
    # A group of its own: Ctrl-C reaches us alone, and the server is asked once.
    process = subprocess.Popen(command, env=environment(), pass_fds=[listener.fileno()], process_group=0)
    stopped, waiting = False, threading.Event()
    with _stopping(process):
        try:
            while process.poll() is None:
                if follower:
                    follower.look()
                waiting.wait(POLL_SECONDS)
        except Stop:
            stopped = True
        finally:
            with suppress(OSError):
                process.terminate()
            try:
                status = process.wait(GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                status = process.wait()
    if stopped:
        return 0
    if status < 0:
        raise UserError(f"the search server was killed ({signal.Signals(-status).name}); start it again")
    return status


@contextmanager
def _stopping(process: "subprocess.Popen[bytes]") -> Iterator[None]:
    """Pass the first signal that asks us to end on to the server, and raise Stop; ignore later ones."""
    is_stopping = False

    def stop(_number: int, _frame: object) -> None:
        nonlocal is_stopping
        if not is_stopping:
            is_stopping = True
            with suppress(OSError):
                process.terminate()
            raise Stop

    with handling(stop):
        yield


def bind_socket(host: str, port: int) -> socket.socket:
    """A socket bound to the port, before anything is loaded. Raises UserError if it is taken, or the host is not this machine."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except OSError as error:
        raise UserError(f"--host {host}: found no address ({error.strerror or error}), expected one of this machine") from None
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(1024)  # so that no other may listen here meanwhile
    except OSError as error:
        listener.close()
        if isinstance(error, PermissionError):
            raise UserError(f"--port {port}: no permission, expected 1024 or above") from None
        if error.errno == errno.EADDRINUSE:
            raise UserError(f"--port {port}: is taken, expected a free one; choose another, or 0") from None
        raise UserError(f"--host {host}: {error.strerror}; expected an address of this machine") from None
    return listener


def _say(line: str) -> None:
    with suppress(OSError):  # a full disk, or a reader that has left: queries are answered all the same
        print(f"retemper: {line}", file=sys.stderr, flush=True)
