"""The command line as a fork of the prepared Python of the tests, in place of a new process."""

import json
import socket
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryFile

from flows.process import fork_client
from flows.process.prepared import FORKS

CLIENT = "import sys; from flows.process import fork_client as client; client.PREFIXES = ('tests.',); client.main(sys.argv[1:])"
FORK = (sys.executable, "-c", CLIENT, "-m")  # and a module of `tests`: a program in place of `python -m` and one of ours


def retemper(arguments: list[str], folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """`retemper` as a fork of the prepared Python: 3 s of CPU less than as a new process, which it is where there is no fork server."""
    words = ["-m", "tests.forked", *arguments]
    with TemporaryFile("w+") as out, TemporaryFile("w+") as err, socket.socket(socket.AF_UNIX) as server:
        request = json.dumps({"arguments": words, "folder": str(folder), "environment": environment}).encode()
        if name := environment.get(FORKS):
            server.settimeout(600)
            connect(server, name)
            socket.send_fds(server, [fork_client.HEADER.pack(len(request))], [out.fileno(), err.fileno()])
            server.sendall(request)
            assert server.recv(7, socket.MSG_WAITALL) == b"forked\n"
            status = fork_client.wait(server)
        else:
            status = subprocess.run(
                [sys.executable, *words], cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=err, check=False
            ).returncode
        for stream in (out, err):
            stream.seek(0)
        return subprocess.CompletedProcess(arguments, status, out.read(), err.read())


def connect(server: socket.socket, name: str, seconds: float = 300) -> None:
    """To the prepared Python, which may have been started just now."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return server.connect(f"\0{name}")
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.05)
