"""Ties a command's life to ours: `python -I -S tether.py COMMAND...` with the write end of its stdin held by us.

The tether leads a process group that holds the command and all that it starts. When we die, however that happens, the
kernel closes the pipe, and the tether ends the group; when the command ends or is killed, whatever it left behind is
ended too. The command need not cooperate: shells, workers and grandchildren are all in the group. All of them ignore
SIGINT from their first instruction, even while they import: Ctrl-C is for our owner, who ends the group.
Standard library only, and few modules of it: it starts in about 20 ms.
"""

import ctypes
import os
import signal
import sys
import threading
import time

GRACE_SECONDS = 0.5
PR_SET_PDEATHSIG = 1


def end_group() -> None:
    """Ask the group to end, then end it, ourselves included."""
    os.killpg(0, signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    os.killpg(0, signal.SIGKILL)


def watch_owner() -> None:
    """Block until our owner is gone (stdin ends), then end the group."""
    while os.read(0, 4096):
        pass
    end_group()


def start(command: list[str]) -> int:
    """Start `command` in our group with an empty stdin; returns its process id."""
    tether = os.getpid()
    child = os.fork()
    if child:
        return child
    if sys.platform == "linux":  # should the tether itself be killed
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != tether:
            os._exit(137)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited by all that it starts: what our owner stops shows no KeyboardInterrupt
    os.environ["RETEMPER_TETHER"] = "1"  # tasks/core/stage/entry.py checks it
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr, flush=True)
    os._exit(127)


def main() -> None:
    child = start(sys.argv[1:])
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # after the fork: the command must receive it
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=watch_owner, daemon=True).start()
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    os.killpg(0, signal.SIGTERM)  # what the command left behind; we ignore it
    os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
