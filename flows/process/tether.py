"""Tie a command's life to its owner's: `python -I -S tether.py COMMAND...`, where the owner holds the write end of the tether's stdin.

The tether leads a process group with the command and everything that it starts. When the owner dies, for whatever
reason, the kernel closes the pipe, and the tether ends the group. When the command ends or is killed, the processes
that it left behind are ended too. The command need not cooperate: shells, workers, and grandchildren are all in the
group. All of them ignore SIGINT from their first instruction, even while they import, because Ctrl-C is meant for the
owner, which ends the group. It uses only a few modules of the standard library, so it starts in about 20 ms.
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
    """Ask the group to end, then kill it, including ourselves."""
    os.killpg(0, signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    os.killpg(0, signal.SIGKILL)


def watch_owner() -> None:
    """Block until our owner has ended (stdin closes), then end the group."""
    while os.read(0, 4096):
        pass
    end_group()


def start(command: list[str]) -> int:
    """Start `command` in our group with an empty stdin; return its process id."""
    tether = os.getpid()
    child = os.fork()
    if child:
        return child
    if sys.platform == "linux":  # in case the tether itself is killed
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != tether:
            os._exit(137)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited by its children, so none prints a KeyboardInterrupt
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
    os.killpg(0, signal.SIGTERM)  # for processes that the command left behind; we ignore it
    os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
