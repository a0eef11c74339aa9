"""A Python process with heavy modules imported, which forks a process for each program: `python fork_server.py NAME MODULES...`

Torch, transformers, and DVC take 6 to 12 s of CPU to import, and every stage needs them. The server imports them once; a fork takes
10 ms. A client (fork_client.py) sends its arguments, folder, environment, stdout, and stderr, and the fork becomes
`python -m MODULE` with these. NAME is the name of an abstract socket, which leaves no file behind. Only processes of the same user
are answered. The client stays connected while its program runs:

- If the client dies, the kernel closes the connection, and the server kills the fork's process group.
- If the client sends a signal's number, the server passes it to the group.
- If the server dies, the kernel kills its forks (PR_SET_PDEATHSIG), and the clients see the end of their connections.

Only third-party modules are imported here. A fork imports `flows` and `tasks` as its own environment says, so it executes the
same code as a new process. No module may start a thread or CUDA when it is imported. Linux only.
"""

import atexit
import ctypes
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import struct
import sys
from contextlib import suppress
from typing import Any, NamedTuple

from setproctitle import setproctitle

PR_SET_PDEATHSIG = 1
HEADER = struct.Struct("!Q")  # the length of a request in bytes, sent together with the file descriptors
CLIENT_SECONDS = 10.0


class Request(NamedTuple):
    """A program to run: `python` with `arguments` (`-m MODULE ...`) in `folder`."""

    arguments: list[str]
    folder: str
    environment: dict[str, str]


class Fork(NamedTuple):
    """A running program, and the client that waits for it."""

    process: int
    client: socket.socket


class Server:
    """Answers requests one after another. While there are none, it imports the remaining `modules`."""

    def __init__(self, listener: socket.socket, modules: list[str]) -> None:
        self._listener, self._modules = listener, modules
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._forks: dict[int, Fork] = {}  # by the file descriptor of the process
        self._search_path = [folder for folder in sys.path if folder not in os.environ.get("PYTHONPATH", "").split(os.pathsep)]

    def serve(self) -> Request:
        """Serve requests. Returns only in a fork, with the request to run there."""
        while True:
            events = self._selector.select(0 if self._modules else None)
            for key, _ in events:
                if key.fileobj is self._listener:
                    if request := self._accept():
                        return request
                elif key.fd in self._forks:
                    self._ended(key.fd)
                elif key.data in self._forks:
                    self._heard(self._forks[key.data])
            if not events and self._modules:
                with suppress(Exception):  # a program that needs the module will report the error
                    importlib.import_module(self._modules.pop(0))
                gc.freeze()  # garbage collection then does not write to these pages, so they stay shared

    def _accept(self) -> Request | None:
        client, _ = self._listener.accept()
        client.settimeout(CLIENT_SECONDS)
        descriptors: list[int] = []
        try:
            refuse_others(client)
            request, descriptors = receive(client)
            process = os.fork()
        except (OSError, ValueError, EOFError):  # the client has ended, or a fork failed; it starts Python itself
            for descriptor in descriptors:
                os.close(descriptor)
            client.close()
            return None
        if not process:
            self._become(request, descriptors)
            return request
        for descriptor in descriptors:
            os.close(descriptor)
        with suppress(OSError):  # the fork does so too, and may have ended
            os.setpgid(process, process)
        pidfd = os.pidfd_open(process)
        self._forks[pidfd] = Fork(process, client)
        self._selector.register(pidfd, selectors.EVENT_READ)
        self._selector.register(client, selectors.EVENT_READ, data=pidfd)
        with suppress(OSError):
            client.sendall(b"forked\n")
        return None

    def _become(self, request: Request, descriptors: list[int]) -> None:
        """In the fork: drop the server's state and take over the client's."""
        server = os.getppid()
        os.setpgid(0, 0)
        libc = ctypes.CDLL(None)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != server:
            os._exit(137)
        setproctitle(" ".join(["python", *request.arguments]))  # for ps, top and nvidia-smi
        self._selector.close()
        self._listener.close()
        for descriptor, fork in self._forks.items():
            os.close(descriptor)
            fork.client.close()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for number, descriptor in enumerate(descriptors, 1):
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.chdir(request.folder)
        os.environ.clear()
        os.environ.update(request.environment)
        path_folders = [folder for folder in request.environment.get("PYTHONPATH", "").split(os.pathsep) if folder]
        script_folder = [] if request.environment.get("PYTHONSAFEPATH") else [request.folder]
        sys.path[:] = [*script_folder, *path_folders, *self._search_path]
        sys.path_importer_cache.clear()

    def _ended(self, descriptor: int) -> None:
        """Handle the end of a program: kill the processes it left behind, and send its status to the client."""
        fork = self._forks.pop(descriptor)
        self._selector.unregister(descriptor)
        with suppress(KeyError):  # the client left first
            self._selector.unregister(fork.client)
        os.close(descriptor)
        signal_group(fork.process, signal.SIGKILL)  # before waitpid frees its number
        _, status = os.waitpid(fork.process, 0)
        with suppress(OSError):
            fork.client.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
        fork.client.close()

    def _heard(self, fork: Fork) -> None:
        try:
            byte = fork.client.recv(1)
        except OSError:
            byte = b""
        if not byte:
            self._selector.unregister(fork.client)
        signal_group(fork.process, byte[0] if byte else signal.SIGKILL)

    def stop(self, *_: Any) -> None:
        """Send SIGTERM to all programs and end; the kernel then kills them."""
        for fork in self._forks.values():
            signal_group(fork.process, signal.SIGTERM)
        os._exit(143)


def refuse_others(client: socket.socket) -> None:
    """PermissionError if the process at the other end belongs to another user."""
    _, user, _ = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    if user != os.getuid():
        raise PermissionError(f"user {user}")


def receive(client: socket.socket) -> tuple[Request, list[int]]:
    """Receive a request, and the file descriptors of stdout and stderr. EOFError if the client leaves before the request is complete."""
    header, descriptors, _, _ = socket.recv_fds(client, HEADER.size, 2)
    try:
        length = HEADER.unpack(header)[0]
        text = bytearray()
        while len(text) < length:
            part = client.recv(min(1 << 16, length - len(text)))
            if not part:
                raise EOFError
            text += part
        return Request(**json.loads(text)), descriptors
    except struct.error:
        raise EOFError from None


def signal_group(group: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def run(words: list[str]) -> int:
    """Run `python -m WORDS...` in this process; return its exit status."""
    sys.argv = words
    try:
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def exit_at_once(status: list[int]) -> None:
    """End at once. Python's normal exit, which tears down all imported modules, takes half a second."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(status[0] & 0xFF if status else 1)


def main(name: str, modules: list[str]) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"\0{name}")
    listener.listen(128)
    server = Server(listener, modules)
    signal.signal(signal.SIGTERM, server.stop)
    status: list[int] = []
    atexit.register(exit_at_once, status)  # registered first, so it runs last
    request = server.serve()
    status.append(run(request.arguments[1:]))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
