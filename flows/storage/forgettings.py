"""Notes in a shared cache or remote about objects that a project's `retemper forget` removed, for the other projects that use it.

Erasure comes first: every object that holds the record is removed, whichever project it belongs to. A note is left, so that the next run
of a project that lacks such objects can say why. It is a forgotten.txt with the digests of the objects as comments: no id and no text.
"""

import os
import re
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from flows.repository.lock import Lock, read_lock
from flows.storage.cache import listing, object_path, outs
from flows.storage.small_files import Place, copy
from tasks.core.errors import UserError
from tasks.core.plurals import counted
from tasks.core.sources.forgotten import FILE, read_marks, record_lines

FOLDER = "forgotten"  # in a cache or a remote
NAME = re.compile(r"[0-9a-f]{32}\.txt")
HEAD = re.compile(r"# Forgotten by project (.*)\. Objects removed: ([^\n]*)\n")


def leave_note(place: Place, oids: Collection[str]) -> None:
    """Leave a note in a cache or a remote: the lines of forgotten.txt, and the digests `oids` of the objects removed there."""
    head = f"# Forgotten by project {' '.join(Path.cwd().name.split())}. Objects removed: {' '.join(sorted(oids))}\n"
    name = f"{uuid.uuid4().hex}.txt"
    place.write(name, (head + "".join(f"{line}\n" for _, line in record_lines(FILE))).encode())
    if place.is_local:  # with the permissions of the cache or the remote
        with suppress(OSError):
            mode = Path(place.folder).parent.stat().st_mode & 0o7777
            Path(place.folder).chmod(mode)
            Path(place.folder, name).chmod(mode & 0o666)


def fetch(cache: Path, fs: Any, place: str) -> None:
    """Copy the notes that are missing here from the remote at `place` of DVC's filesystem `fs`."""
    local, remote = Place.on_disk(cache / FOLDER), Place(fs, fs.join(place, FOLDER))
    copy(remote, local, sorted(name for name in remote.names() - local.names() if NAME.fullmatch(name)))


def explain_missing(cache: Path, lock: Lock) -> Iterator[str]:
    """A line for each note that explains outs of these entries of dvc.lock that the cache lacks. Records that this project has forgotten
    itself need none."""
    objects, explained = cache / "files" / "md5", set[str]()
    for project, path, gone in _notes(cache):
        missing = {oid for entry in lock.values() for oid, _ in outs(entry) if oid in gone and not object_path(objects, oid).exists()}
        lost = [stage for stage, entry in lock.items() if not missing.isdisjoint(oid for oid, _ in outs(entry))]
        if not explained.issuperset(lost):
            explained |= set(lost)
            yield (
                f"{_first_few(lost)}: results of {counted(len(lost), 'stages')} that dvc.lock names were removed, since they held a record "
                f"that project {project} has forgotten; they are made again from this project's own data. To forget it here, too: "
                f"grep -v '#' {path} >> {FILE}, then retemper forget (or retemper forget ID, where it has another id)"
            )


def are_all(cache: Path, lock: Lock) -> bool:
    """Whether the notes of other projects explain all objects of these entries that the cache lacks. False if it lacks none."""
    objects = cache / "files" / "md5"
    named = {oid for entry in lock.values() for oid, _ in outs(entry)}
    named |= {oid for folder in named for oid in listing(objects, folder).values()}
    missing = {oid for oid in named if not object_path(objects, oid).exists()}
    return bool(missing) and missing <= {oid for _, _, gone in _notes(cache) for oid in gone}


def _notes(cache: Path) -> Iterator[tuple[str, Path, set[str]]]:
    """The notes of other projects: project, file, and removed objects.

    A project may leave several for the same records (one per cache or remote, and per start after a kill); they are merged.
    """
    try:
        own_marks = read_marks().keys()
    except UserError:  # stage prepare reports it
        return
    notes: dict[tuple[str, frozenset[str]], tuple[Path, set[str]]] = {}
    for path in sorted(cache.glob(f"{FOLDER}/*.txt"), key=os.path.getmtime):
        with suppress(OSError, UserError):
            match, marks = HEAD.match(path.read_text(encoding="utf-8")), frozenset(read_marks(path))
            if match and not marks <= own_marks:
                notes.setdefault((match[1], marks), (path, set()))[1].update(match[2].split())
    yield from ((project, path, gone) for (project, _), (path, gone) in notes.items())


def losses(trees: Iterable[Path], affected: Collection[tuple[str, str]], oids: Collection[str]) -> dict[Path, str]:
    """A warning for each of the working `trees` of other projects that loses results.

    It loses a stage whose dvc.lock entry has an out (path, digest) in `affected` and in `oids`, the objects to remove.
    """
    lines = {}
    for tree in trees:
        lock = read_lock(tree / "dvc.lock")
        lost = [stage for stage, entry in lock.items() if any((path, oid) in affected and oid in oids for oid, path in outs(entry))]
        if lost:
            lines[tree] = (
                f"project {tree} has the same text under the same id: this removes results of {counted(len(lost), 'stages')} in its "
                f"dvc.lock ({_first_few(lost)}); its next run recomputes them with the record, so run retemper forget there, too"
            )
    return lines


def _first_few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if names[3:] else "")


def owners(trees: Iterable[Path], objects: Path, oids: Collection[str]) -> Mapping[str, str]:
    """For each of the objects `oids`, as text: an out, and the working tree whose dvc.lock names it. Unknown objects are left out."""
    names: dict[str, str] = {}
    for tree in trees if oids else ():
        for entry in read_lock(tree / "dvc.lock").values():
            for oid, path in outs(entry):
                for member in {oid, *listing(objects, oid).values()} & set(oids):
                    names.setdefault(member, f"{path} of {tree}")
    return names
