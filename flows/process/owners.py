"""Temporary folders whose names say which process made them, so that those of killed processes can be removed.

A project's folder may be shared by several machines or containers, where a process id says nothing of the others' processes.
"""

import hashlib
import os
import platform
from contextlib import suppress
from functools import cache
from pathlib import Path


def owned_prefix(name: str) -> str:
    """How the names of this process's folders begin: NAME-MACHINE-PID-."""
    return f"{name}-{machine()}-{os.getpid()}-"


def abandoned(parent: Path, name: str) -> list[Path]:
    """The folders of this `name` in `parent` that ended processes of this machine made. Those of other machines are left to them."""
    return [folder for folder in sorted(parent.glob(f"{name}-{machine()}-*-*")) if not _is_alive(folder.name.split("-")[-2])]


def is_of_this_machine(folder: Path) -> bool:
    """Whether a process of this machine made `folder`. If not, or if an older version made it, nobody here knows whether it is in use."""
    return f"-{machine()}-" in folder.name


@cache
def machine() -> str:
    """A short digest of this machine's name, and of the PID namespace that this process is in."""
    namespace = ""
    with suppress(OSError):  # off Linux
        namespace = str(Path("/proc/self/ns/pid").readlink())
    return hashlib.sha256(f"{platform.node()} {namespace}".encode()).hexdigest()[:8]


def _is_alive(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except PermissionError:  # another user's
        return True
    except (ProcessLookupError, ValueError):
        return False
    return True
