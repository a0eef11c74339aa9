"""`retemper reproduce REV`: run a revision in a second tree, and compare every digest with the revision's own dvc.lock.

It runs with the revision's own versions (flows.reproducing.versions). If other hardware made the artifacts, other bits are expected;
then artifacts that can be measured are compared within a tolerance (flows.reproducing.closeness).
"""

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from flows.measuring import environments, timing
from flows.parameters.sources import KEEP_SOURCE
from flows.pipeline import server
from flows.process.display import Display, text_table
from flows.process.problems import print_problems
from flows.process.processes import Processes, stopping_on_signals
from flows.repository.graph import DEFAULT_TARGET
from flows.repository.lock import LOCK, Lock, commit_of, lock_of, read_lock
from flows.repository.project import edit_settings
from flows.repository.worktree import RUN, equip, link_sources, make_worktree, remove_worktree, run_in, temp_tree, tree_place
from flows.reproducing.closeness import distance
from flows.reproducing.versions import python_of
from flows.storage.cache import cache_folder, intact_path, listing
from flows.team.lineage import ancestors
from tasks.core.errors import USER_ERROR, Problem, UserError
from tasks.core.plurals import counted
from tasks.core.sources.forgotten import FILE as FORGOTTEN
from tasks.core.sources.forgotten import read_marks

LATENCY = "data/latency/"
TOLERANCE = 0.01
HARDWARE = ("processor", "device", "threads", "workers", "instructions", "bf16", "arithmetic")  # of a record; the rest are versions
Environment = Literal["revision", "present"]


@dataclass(frozen=True)
class How:
    """How to reproduce: with an empty cache or not, with which versions, and how far artifacts may differ if hardware differs."""

    recompute: bool = False
    environment: Environment = "revision"
    tolerance: float = TOLERANCE


def reproduce(revision: str, into: Path | None, how: How, *, run: Sequence[str] = RUN) -> int:
    """Print equal, close, or different for every out; return exit status 0 only if none is different.

    Outs come from the cache and the remote if these have them; with how.recompute, every stage runs. Sources are those of the revision.
    Raises UserError if a stage would have to read a source that has changed since, or that has a record forgotten since, and if the
    revision's versions cannot be installed.
    """
    recompute = how.recompute
    commit = commit_of(revision)
    wanted = lock_of(commit, revision)
    if wanted is None:
        raise UserError(f"revision {revision}: its commit has no {LOCK}, so there is nothing to compare with; commit it after a run")
    if into and into.exists() and any(into.iterdir() if into.is_dir() else [into]):
        raise UserError(f"{into}: already exists; name a new folder, or an empty one")
    if into:
        room, tree = None, into.absolute()
    else:
        room = temp_tree("reproduce")
        tree = tree_place(room)
    processes, display = Processes(), Display()
    try:
        with stopping_on_signals(processes):
            project = make_worktree(tree, commit)
            python = python_of(project, processes, display.line) if how.environment == "revision" else run[0]
            cache = None if recompute else cache_folder()
            listed = read_marks(project / FORGOTTEN).keys()
            equip(project, own_cache=recompute)
            forgotten = len(read_marks(project / FORGOTTEN).keys() - listed)
            link_sources(project, room)
            if recompute:
                _forget_remote(project)
                (project / LOCK).unlink()  # its later entries were made here
            command = (python, *run[1:]) if run is RUN else run
            env = {KEEP_SOURCE: "1", "PREFECT_HOME": str(server.HOME.absolute())}
            status, problems = run_in(project, command, processes, show=display.line, env=env)
            reason = "; ".join(problem.message for problem in problems) or "its output is above"
            if status == USER_ERROR:
                cause = f"{counted(forgotten, 'records')} forgotten since then ({FORGOTTEN}) cannot be made again: " if forgotten else ""
                raise UserError(f"revision {revision}: {cause}{reason}")
            new_lock = read_lock(project / LOCK)
            if status:  # entries of the commit's own dvc.lock may not have been made here
                new_lock = {
                    name: entry
                    for name, entry in new_lock.items()
                    if all((project / out["path"]).exists() for out in entry.get("outs") or [])
                }
            caches = (cache_folder() / "files" / "md5", (cache or project / ".dvc/cache") / "files" / "md5")
            rows = list(compare(wanted, new_lock, caches[0], other=caches[1]))
            notes = list(explain(wanted, new_lock, rows, project=project))
            rows = [*mark_close(rows, wanted, stages_on_other_hardware(wanted, new_lock, project), caches=caches, tolerance=how.tolerance)]
    finally:
        if room:
            remove_worktree(room)
    display.line(f"\n{text_table(['out', 'digest', 'result'], rows)}")
    equal, unequal = (sum(row[2].startswith(word) for row in rows) for word in ("equal", "different"))
    close = len(rows) - equal - unequal
    summary = f"{counted(equal, 'outs equal')}, {f'{close} close, ' if close else ''}{unequal} different"
    display.line(f"{revision} ({commit[:10]}): {summary}{f', in {tree}' if into else ''}")
    for note in notes:
        display.line(note)
    if status:
        print_problems([Problem("pipeline", f"revision {revision}: its run ended with status {status}: {reason}", status)])
    return 1 if status or unequal else 0


def explain(wanted: Lock, made: Lock, rows: Sequence[tuple[str, str, str]], *, project: Path) -> Iterator[str]:
    """Lines, for stages with different digests, on which threads, hardware, and versions differed, as far as this machine recorded them.

    `project`: its folder in the second tree, whose log says what the stages have just run with.
    """
    unequal = {path for path, _, result in rows if result.startswith("different: ") and result != "different: not made"}
    stages = [stage for stage, entry in wanted.items() if unequal.intersection(out["path"] for out in entry.get("outs", []))]
    new_records = environments.of_artifacts(made, project / timing.LOG)
    yield from environments.differences(
        [stage for stage in stages if stage in new_records], environments.of_artifacts(wanted, cache=cache_folder()), new_records
    )


def stages_on_other_hardware(wanted: Lock, made: Lock, project: Path) -> set[str]:
    """The stages that are known to have run on other hardware, with other threads, or in other arithmetic than in the second tree."""
    new_records = environments.of_artifacts(made, project / timing.LOG)
    old_records = environments.of_artifacts(wanted, cache=cache_folder())
    return {
        stage
        for stage in new_records.keys() & old_records.keys()
        if any(
            new_records[stage].get(key) != old_records[stage].get(key)
            for key in HARDWARE
            if key in new_records[stage] and key in old_records[stage]
        )
    }


def mark_close(
    rows: Sequence[tuple[str, str, str]], wanted: Lock, elsewhere: Set[str], *, caches: tuple[Path, Path], tolerance: float
) -> Iterator[tuple[str, str, str]]:
    """`rows` with `close: ...` in place of `different: ...` for outs within `tolerance` that depend on a stage run on other hardware."""
    makers = {str(out["path"]): stage for stage, entry in wanted.items() for out in entry.get("outs") or []}
    for path, digest, result in rows:
        new_digest = result.removeprefix("different: ").partition(" ")[0]
        if result.startswith("different: ") and new_digest != "not" and elsewhere & set(ancestors(wanted, makers[path])):
            largest = _largest_distance(path, (digest, new_digest), caches)
            if largest is None:
                result = "close: different bits, as in its inputs; it has no values that can be compared"
            else:
                word = "close" if largest <= tolerance else "different"
                result = f"{word}: measured {largest:.2g} apart, tolerance {tolerance:g}{'' if word == 'close' else f'; {new_digest}'}"
        yield path, digest, result


def _largest_distance(path: str, digests: tuple[str, str], caches: tuple[Path, Path]) -> float | None:
    """The largest distance between files of two versions of an out; None if none can be measured, infinite if one is missing or corrupt."""
    pairs = zip(caches, digests, strict=True)
    old, new = (listing(*pair) if pair[1].endswith(".dir") else {Path(path).name: pair[1]} for pair in pairs)
    if old.keys() != new.keys() or not old:
        return float("inf")
    largest = None
    for name in (name for name in old if old[name] != new[name]):
        one, other = intact_path(caches[0], old[name]), intact_path(caches[1], new[name])
        file_distance = distance(name, one, other) if one and other else float("inf")
        if file_distance is not None:
            largest = max(file_distance, largest or 0.0)
    return largest


def compare(wanted: Lock, made: Lock, cache: Path, *, other: Path) -> Iterator[tuple[str, str, str]]:
    """Path, expected digest, and result of every out that the report needs (of all, if there is no report).

    Times differ between any two runs: outs below LATENCY are excluded.
    """
    for stage in ancestors(wanted, DEFAULT_TARGET) if DEFAULT_TARGET in wanted else wanted:
        new_digests = {out["path"]: str(out.get("md5", "")) for out in made.get(stage, {}).get("outs", [])}
        for out in wanted[stage].get("outs", []):
            path, digest = str(out["path"]), str(out.get("md5", ""))
            if path.startswith(LATENCY):
                continue
            if new_digests.get(path) == digest:
                yield path, digest, "equal"
            elif path not in new_digests:
                yield path, digest, "different: not made"
            else:
                old, new = listing(cache, digest), listing(other, new_digests[path])
                names = sorted(name for name in {*old, *new} if old.get(name) != new.get(name)) if old and new else []
                yield path, digest, f"different: {new_digests[path]}{' in ' + ', '.join(names[:5]) if names else ''}"


def _forget_remote(project: Path) -> None:
    from dvc.config import Config

    with edit_settings(Config(str(project / ".dvc")), "local") as edited:
        edited.setdefault("core", {})["remote"] = ""  # not removed: the committed settings, or this user's, may name one
