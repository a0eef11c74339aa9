"""Files with faults in them: what a run's processes meet at a planned file call, and what a power cut takes back.

A C library in front of glibc's (faulty_files.c, by LD_PRELOAD) counts the calls of one place: the operation, the class of the path
(`outs`, `objects`, `lock`, ...), and the role of the process (`flow`, `dvc:train@a`, `stage:train@a`). A fault is drawn as "the N-th
such call", so it strikes at the same place whatever the machine's speed. Where threads or workers of one role take turns, the N-th
call may be another file's.

kill      the process dies before or after the call
torn      a write stops after a part of its bytes, then the process dies
EIO       the call fails, once
ENOSPC    from this call on, nothing more fits on the disk until the run has ended (sometimes the first write is short)
cut       everything dies at once, and what no fsync has made safe may be lost: `power_cut`

The model of a power cut. Content that was written after a file's last fsync is lost by a coin for each file: the file is empty or
ends at some page, or has its former content where it was truncated to be written. Names (new, renamed, removed files and folders)
are lost in one of two ways: `ordered`, as by a journal: some number of the last ones, back to the last fsync of anything; `strict`,
any of them by a coin unless its folder was synced (POSIX promises no more), with one leniency: the fsync of a file makes its name
safe, as on ext4, XFS, and Btrfs. ext4 with auto_da_alloc would be kinder: it writes the content of a renamed file first. Not
modelled: pages changed in place within a file, bytes written through mmap, files of the right size with wrong bytes, and SQLite's own
files, for which SQLite's authors do this. The fsync itself does nothing here but count. What is outside the project (DVC's memory of
digests) is not lost, which is the harder case: it remembers files that are gone.
"""

import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).with_suffix(".c")
PAGE = 4096
SHARED_BYTES = 4096
UNFSYNCED = ("-wal", "-shm", ".db", "-journal")  # SQLite's own
KINDS = {  # of each operation; "reopen": a file that exists is opened to be written
    "write": ("kill", "torn", "ENOSPC", "EIO", "cut"),
    "open": ("kill", "ENOSPC", "EIO", "cut"),
    "reopen": ("kill", "EIO", "cut"),
    "rename": ("kill", "EIO", "cut"),
    "fsync": ("kill", "EIO", "cut"),
    "mkdir": ("kill", "ENOSPC", "EIO", "cut"),
    "unlink": ("kill", "cut"),
}
ALL = ("kill", "torn", "ENOSPC", "EIO", "cut")


class Place(NamedTuple):
    """Where calls are counted."""

    role: str
    operation: str
    kind: str  # the path's class


@dataclass(frozen=True)
class Fault:
    """What happens at call `at` (from 1) of a place. `part`: of a torn write's bytes; for kill and cut, below .5 is before the call."""

    kind: str
    place: Place
    at: int
    part: float

    def __str__(self) -> str:
        return f"{self.kind} at {self.place.operation} {self.at} of {self.place.role} to {self.place.kind} ({self.part:.2f})"


def compiler() -> str | None:
    """A C compiler; None where there is none, or where its library could not be loaded."""
    return next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None) if sys.platform == "linux" else None


def build(folder: Path) -> Path:
    """The library, compiled into `folder`."""
    library = folder / "faulty_files.so"
    command = [str(compiler()), "-O2", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl", "-lpthread"]
    subprocess.run(command, check=True)
    return library


class Faults:
    """A plan for the processes that have `environment`, and what came of it. `folder` is on the file system of `root`, not below it."""

    def __init__(self, folder: Path, root: Path, *faults: Fault, census: bool = False) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "saved").mkdir(parents=True)
        self.folder, self.root, self.faults = folder.resolve(), root.resolve(), faults
        lines = [f"root {self.root}", *(["census"] if census else []), *(["journal"] if self.cuts else [])]
        lines += [
            f"fault {fault.kind} {fault.place.operation} {fault.place.kind} {fault.place.role} {fault.at} {fault.part:.6f}"
            for fault in faults
        ]
        (folder / "plan").write_text("\n".join([*lines, ""]))
        (folder / "shared").write_bytes(bytes(SHARED_BYTES))
        self.environment = {"RETEMPER_FAULTS": str(self.folder)}

    @property
    def cuts(self) -> bool:
        return any(fault.kind == "cut" for fault in self.faults)

    def hits(self) -> list[str]:
        """`KIND OPERATION CLASS ROLE AT\\tPATH` of each fault that struck."""
        return self._lines("hits")

    def census(self) -> Counter[Place]:
        """How often each place was met."""
        return Counter(Place(role, operation, kind) for role, operation, kind in map(str.split, self._lines("census")))

    def journal(self) -> "list[Entry]":
        entries = []
        for line in self._lines("journal"):
            operation, inode, size, saved, path, to = line.split("\t")
            entries.append(Entry(operation, int(inode), int(size), int(saved), Path(path), Path(to)))
        return entries

    def _lines(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []


class Entry(NamedTuple):
    """A call in the journal. `saved`: where the content is that it replaced or removed, -1 for nowhere; `to`: of a rename."""

    what: str
    inode: int
    size: int
    saved: int
    path: Path
    to: Path


def draw(census: Counter[Place], chance: random.Random, kinds: tuple[str, ...] = ALL) -> Fault:
    """A fault at a place that the census has met: every kind is as likely as the others, and so is every place of a kind."""
    kind = chance.choice(kinds)
    places = sorted(place for place in census if kind in KINDS.get(place.operation, ()))
    place = chance.choice(places)
    return Fault(kind, place, chance.randint(1, census[place]), chance.random())


def power_cut(faults: Faults, seed: str) -> list[str]:
    """Take back what was not safe when the power was cut; what was done, for people. A function of the seed and the journal."""
    journal, order = faults.journal(), random.Random(seed).choice(("ordered", "strict"))
    undone = []
    for entry in reversed(_lost_names(journal, order, seed, faults.root)):
        if _undo(entry, faults.folder / "saved"):
            undone.append(f"{entry.what} {(entry.to if entry.what == 'rename' else entry.path).relative_to(faults.root)} undone")
    undone += _lose_content(faults, journal, seed)
    return [f"{order}: {line}" for line in undone]


def _coin(seed: str, *parts: object) -> float:
    return random.Random(" ".join(map(str, (seed, *parts)))).random()


def _lost_names(journal: list[Entry], order: str, seed: str, root: Path) -> list[Entry]:
    names = [(number, entry) for number, entry in enumerate(journal) if entry.what not in ("fsync", "reopen")]
    synced = [(number, entry) for number, entry in enumerate(journal) if entry.what == "fsync"]
    if order == "ordered":
        last = synced[-1][0] if synced else -1
        unsynced = [entry for number, entry in names if number > last]
        return unsynced[int(_coin(seed, "names") * (len(unsynced) + 1)) :]
    lost = []
    share = _coin(seed, "share")
    for number, entry in names:
        place = entry.to if entry.what == "rename" else entry.path
        safe = any(sync_number > number and (sync.inode == entry.inode or sync.path == place.parent) for sync_number, sync in synced)
        if not safe and _coin(seed, entry.what, place.relative_to(root)) < share:
            lost.append(entry)
    return lost


def _undo(entry: Entry, saved: Path) -> bool:
    """Whether the call could be undone: later ones that were not lost may stand in its way."""
    path, to, content = entry.path, entry.to, saved / str(entry.saved)
    try:
        if entry.what in ("create", "link") and path.lstat().st_ino == entry.inode:
            path.unlink()
        elif entry.what == "mkdir" and path.lstat().st_ino == entry.inode:
            path.rmdir()
        elif entry.what == "unlink" and entry.saved >= 0 and not path.exists():
            os.link(content, path)
        elif entry.what == "rmdir":
            path.mkdir()
        elif entry.what == "rename" and to.lstat().st_ino == entry.inode and not path.exists() and path.parent.exists():
            to.rename(path)
            if entry.saved >= 0:
                os.link(content, to)
        else:
            return False
    except OSError:
        return False
    return True


def _lose_content(faults: Faults, journal: list[Entry], seed: str) -> list[str]:
    safe: dict[int, int] = {}  # bytes by inode
    former: dict[int, int] = {}  # saved content of a file that was truncated
    for entry in journal:
        if entry.what == "create":
            safe.setdefault(entry.inode, 0)
        elif entry.what == "reopen":
            safe[entry.inode] = min(safe.get(entry.inode, entry.size), entry.size)
            if entry.saved >= 0:
                former.setdefault(entry.inode, entry.saved)
        elif entry.what == "fsync":
            safe[entry.inode] = entry.size
            former.pop(entry.inode, None)
    changes = []
    for path in sorted(faults.root.rglob("*")):
        status = path.lstat()
        if not path.is_file() or path.is_symlink() or path.name.endswith(UNFSYNCED) or ".git/" in str(path):
            continue
        size = safe.get(status.st_ino, status.st_size)
        coin = _coin(seed, "content", path.relative_to(faults.root))
        if (size >= status.st_size and status.st_ino not in former) or coin < 0.5:
            continue
        path.chmod(0o600)
        if status.st_ino in former and coin < 0.75:
            path.write_bytes((faults.folder / "saved" / str(former[status.st_ino])).read_bytes())
        else:
            unsafe = status.st_size - min(size, status.st_size)
            os.truncate(path, min(size, status.st_size) + int(unsafe * max(0.0, 4 * coin - 3)) // PAGE * PAGE)
        path.chmod(status.st_mode & 0o7777)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        changes.append(f"{path.relative_to(faults.root)}: {status.st_size} bytes became {path.stat().st_size}")
    return changes
