"""Stand in for `python -m MODULE ARGUMENTS...`: ask the server to fork a process that runs it, and end with that process's status.

`python -I -S fork_client.py -m MODULE ARGUMENTS...`; RETEMPER_FORKS names the server. Signals that ask us to end are passed on.
fork_server.py says what happens when one of the processes dies. If no server answers, or for anything but `-m MODULE` of ours, we become
Python itself. It uses only a few modules of the standard library, so it starts in 60 ms.
"""

import json
import os
import signal
import socket
import struct
import sys

HEADER = struct.Struct("!Q")
PREFIXES = ("flows.", "tasks.")  # our own programs


def python(arguments: list[str]) -> None:
    """Replace this process by `python ARGUMENTS`."""
    os.execv(sys.executable, [sys.executable, *arguments])


def ask(name: str, arguments: list[str]) -> socket.socket | None:
    """Ask the server `name` to fork for us. Return the connection, or None if there is no such server."""
    server = socket.socket(socket.AF_UNIX)
    folder = os.getcwd()  # noqa: PTH109 - importing pathlib takes as long as everything else
    request = json.dumps({"arguments": arguments, "folder": folder, "environment": dict(os.environ)}).encode()
    try:
        server.connect(f"\0{name}")
        _, user, _ = struct.unpack("3i", server.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
        if user != os.getuid():
            raise PermissionError
        socket.send_fds(server, [HEADER.pack(len(request))], [1, 2])
        server.sendall(request)
        if server.recv(len(b"forked\n"), socket.MSG_WAITALL) == b"forked\n":
            return server
    except OSError:
        pass
    server.close()
    return None


def wait(server: socket.socket) -> int:
    """Wait for the process. Return its exit status, or minus the signal that killed it. If the server died, this is SIGKILL."""
    answer = b""
    while part := server.recv(16):
        answer += part
    return int(answer) if answer.endswith(b"\n") else -signal.SIGKILL


def main(arguments: list[str]) -> None:
    name = os.environ.get("RETEMPER_FORKS")
    if not name or arguments[:1] != ["-m"] or not arguments[1].startswith(PREFIXES):
        return python(arguments)
    forwarded = (signal.SIGTERM, signal.SIGHUP)
    signal.pthread_sigmask(signal.SIG_BLOCK, forwarded)  # until there is a process to pass them to
    server = ask(name, arguments)
    if server is None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, forwarded)
        return python(arguments)
    for number in forwarded:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda number, _: server.send(bytes([number])) and None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, forwarded)
    code = wait(server)
    if code < 0:  # end by the same signal, so that our parent sees it
        signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1:])
