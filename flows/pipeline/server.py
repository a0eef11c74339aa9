"""Prefect without setup: a small server of our own for as long as we live, quiet and offline. A configured one is used instead."""

import atexit
import os
import signal
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flows.process.processes import Processes, environment
from tasks.core.errors import Unavailable, UserError
from tasks.core.files import write_text

HOME = Path(".retemper/prefect")
LASTING = Path(".retemper/prefect-server")  # home of the server that `schedule` starts: schedule and history stay there
LOG = Path(".retemper/logs/prefect-server.log")
START_SECONDS = 300  # 6 s of work, 13 s with a new database, and the machine may be busy
SERVER = [
    sys.executable,
    "-m",
    "uvicorn",
    "--factory",
    "prefect.server.api.server:create_app",
    "--host",
    "127.0.0.1",
    "--log-level",
    "error",
]


class ServerUnavailable(Unavailable):
    """The configured Prefect server does not answer."""

    def __init__(self, cause: Exception | None) -> None:
        super().__init__(f"PREFECT_API_URL: no Prefect server answers there ({type(cause).__name__}); start it, or unset it")


class Ended(UserError):
    """The Prefect server that we started for ourselves is gone, or never answered."""

    def __init__(self, how: str) -> None:
        super().__init__(f"Prefect's server, started by this run, {how}; run again (finished stages are kept), its log: {LOG}")


def is_configured() -> bool:
    """Whether a Prefect server is configured (PREFECT_API_URL)."""
    return bool(os.environ.get("PREFECT_API_URL"))


def answers() -> bool:
    """Whether the configured Prefect server answers."""
    try:
        with urllib.request.urlopen(f"{os.environ['PREFECT_API_URL'].rstrip('/')}/health", timeout=5):
            return True
    except urllib.error.HTTPError:  # from a server that requires authentication
        return True
    except (OSError, ValueError):
        return False


def set_environment() -> None:
    """Set what Prefect reads when it is imported: our home, no telemetry, and our lines in place of its log."""
    if "prefect" in sys.modules:
        return
    settings = {
        "PREFECT_HOME": str(HOME.absolute()),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
        "PREFECT_CLIENT_SERVER_VERSION_CHECK_ENABLED": "false",
    }
    for name, value in settings.items():
        os.environ.setdefault(name, value)
    Path(os.environ["PREFECT_HOME"]).mkdir(parents=True, exist_ok=True)


class Server:
    """A server that starts while we do other things. `lasting`: with its own home, a fixed address, and the web page."""

    def __init__(self, schedules: bool = False, lasting: bool = False) -> None:
        set_environment()
        port = _port(LASTING / "port" if lasting else None)
        self.url = f"http://127.0.0.1:{port}/api"
        self._command = [*SERVER, "--port", str(port)]
        self._env = environment(PREFECT_UI_ENABLED="false", PREFECT__SERVER_FINAL="1")
        if not schedules:
            self._env["PREFECT__SERVER_EPHEMERAL"] = "1"  # no scheduler and the like
        if lasting:
            home = LASTING.absolute()
            self._env |= {"PREFECT_HOME": str(home), "PREFECT_UI_ENABLED": "true", "PREFECT_UI_STATIC_DIRECTORY": str(home / "page")}
            self._env |= {"PREFECT_SERVER_UI_API_URL": self.url}
            # On disk: if a restarted server forgets a run's lease, the run is cancelled, and its slot of a limit stays taken.
            self._env |= {"PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem"}
        LOG.parent.mkdir(parents=True, exist_ok=True)
        self._processes = Processes()  # its own: the server outlives the stages that a signal stops, to record that
        self._lock = LASTING / "concurrency_leases/expirations.lock" if lasting else None
        self.start()

    def start(self) -> None:
        """Start it, for the first time or again."""
        if self._lock:  # left by a killed server; Prefect waits forever if another process has its id now
            self._lock.unlink(missing_ok=True)
        self._process = self._processes.start(self._command, self._env, LOG)

    def is_alive(self) -> bool:
        """Whether its process is alive."""
        return self._process.poll() is None

    def wait(self) -> None:
        """Wait until it answers. Raises Ended if its process has ended, or after START_SECONDS."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            self.refuse_ended()
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=5):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.1)
        raise Ended(f"has not answered in {START_SECONDS} s")

    def refuse_ended(self) -> None:
        """Raise Ended, which says how, if its process has ended."""
        status = self._process.poll()
        if status is not None:
            number = -status if status < 0 else status - 128
            names = {int(member): member.name for member in signal.Signals}
            raise Ended(f"was killed ({names[number]})" if number in names else f"ended with status {status}")

    def close(self) -> None:
        """End it at once."""
        self._processes.end(self._process)


def _port(memory: Path | None) -> int:
    """A free port of 127.0.0.1: the one in `memory` if it is free, so that a page keeps its address."""
    last_port = int(text) if memory and memory.exists() and (text := memory.read_text(encoding="utf-8").strip()).isdigit() else 0
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", last_port))
        except (OSError, OverflowError):
            probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    if memory and port != last_port:
        write_text(memory, f"{port}\n")
    return port


def use_server() -> Server | None:
    """Get Prefect's API ready: the configured server's (returns None), or one of ours, which is returned and runs until we exit.

    Prefect sends its last events and logs when the interpreter exits, and waits a minute for a server that is gone. So
    ours is closed by an exit function that is registered before Prefect's own, and therefore runs after them.
    """
    set_environment()
    if is_configured():
        return None
    server = Server()
    atexit.register(server.close)
    os.environ["PREFECT_API_URL"] = server.url
    import prefect.main  # noqa: F401 - two seconds, while the server starts

    server.wait()
    return server


@contextmanager
def without_heartbeats() -> Iterator[None]:
    """Switch off the heartbeats of flow runs. Nobody asks our own server whether its run is alive, and they delay a run's end by .5 s.

    In Prefect 3.8 the thread that sends them sleeps for whole seconds; an environment variable cannot set None.
    """
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

    with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
        yield
