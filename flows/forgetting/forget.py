"""`retemper forget`: remove records from the source, the caches, and the remotes, and keep them from coming back.

The list of hashes is written first, so that `retemper forget` without arguments finishes a run that was killed. Everything found is
written down before any of it is removed (FOUND): a corpus that is half removed no longer says what its records were, or what holds them.
"""

import os
import re
import shlex
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flows.forgetting import text_search
from flows.forgetting.final_check import check
from flows.forgetting.holdings import (
    CORPORA,
    FOUND,
    Entry,
    Holdings,
    Remote,
    Store,
    find,
    known_marks,
    may_hold,
    other_shards,
    remote_places,
    same_texts,
)
from flows.forgetting.own_tables import own_sources, records_in_inbox, source_notes, unavailable_places, withdraw_records
from flows.forgetting.strays import Strays, find_strays, remove_strays
from flows.process import locks
from flows.process.display import text_table
from flows.repository.git import git
from flows.repository.lock import Lock, dvc_files, locks_of_references, parse_dvc_file, read_lock, worktrees
from flows.repository.project import repository
from flows.storage import forgettings
from flows.storage.cache import file_md5, object_id, object_path, outs, recorded_runs, refuse_read_only
from flows.storage.dvc import PUSHED, UNPUSHED
from flows.storage.remote import refuse_unmarked
from flows.storage.small_files import Place
from flows.team import exposure, gc
from flows.team.sync import reason
from tasks.core.errors import USER_ERROR, DiskError, UserError
from tasks.core.files import delete, write_text
from tasks.core.plurals import counted
from tasks.core.sources.forgotten import FILE, HEAD, KINDS, Kind, mark, read_marks

# In .retemper, unfinished or derived, and made again when needed:
REBUILT = (
    "scratch",
    "dataset",
    "dataset.json",
    "pairs",
    "champion",
    "reference",
    "serving",
    "evaluate",
    "preview",
    "report.html",  # a text shorter than text_search.LEAST is not looked for in pages
    "why/data",
    "bisect/data",
)
OF_EXTRA = ("extra/*/shards", "extra/*/scratch")  # of further data sets, whose dvc.lock stays
SHOWN = 5  # other records with the same text that a note names
CORPUS = re.compile(r"path: (data/(?:corpus|pseudo))\n(?:\s+hash: md5\n)?\s+md5: ([0-9a-f]{32}\.dir)")

Tell = Callable[[str], None]
KeptVerdicts = Callable[[Sequence[Path]], AbstractContextManager[None]]  # of flows.intake, a layer above


@dataclass
class Plan:
    """What is to be removed, and where."""

    marks: frozenset[str]
    new: tuple[tuple[Kind, str], ...]  # records that the list does not have yet
    holdings: Holdings
    sources: tuple[tuple[str, tuple[Path, ...]], ...]  # kind and folders
    lines: Mapping[str, int]  # records by file of a source
    files: tuple[Path, ...]  # of working trees
    folders: tuple[Path, ...]
    runs: tuple[Path, ...]  # entries of the run cache
    strays: Strays
    unavailable: tuple[str, ...] = ()  # a line for each place of the user's own tables that may have records, and cannot be read
    notes: list[str] = field(default_factory=list)


def forget(
    records: Sequence[str], *, dry: bool, sure: Callable[[], bool], tell: Tell, kept_verdicts: KeptVerdicts, kept_beside: KeptVerdicts
) -> int:
    """Forget documents and queries by their ids, or without ids all those of the list again. Return 0 if none of their text is left.

    `dry`: only report. `sure` is asked before anything is removed. `kept_verdicts(batches)` is held while the files of these change;
    `kept_beside(folders)`, while those of the source do.
    Raises UserError while a run is in progress in a project that uses this cache, for an unknown id, and if a remote is unavailable.
    """
    with repository() as repo, ExitStack() as stack:
        root = Path(repo.cache.local_cache_dir)
        projects, trees = gc.users_of(root)
        stack.enter_context(locks.hold_run_locks(trees))
        locks.repair()
        stack.enter_context(repo.lock)
        store = Store(root / "files" / "md5", tuple(open_remotes(repo, root)))
        entries = list(known_entries(root, projects, trees, remotes=store.remotes))
        plan = make_plan(records, entries, store, root=root, trees=trees)
        print_plan(plan, store, tell, models=exposed_models(plan, tell))
        if dry or not sure():
            tell("nothing was removed")
            return 0
        refuse_unwritable(plan, store, root)
        remember(plan)
        (holdings := plan.holdings).save(FOUND)
        for kind, folders in changes(plan):
            with (kept_verdicts if kind == "batch" else kept_beside)(folders):
                withdraw_records(kind, folders, plan.marks, dry=False)
            for folder in folders:
                if not folder.exists():
                    where = f"under a name that begins with .{folder.name}"
                    tell(f"{folder}: no record was left, so retrainings go on without this batch; its other files, if any, are {where}")
        remove(plan, store, root)
        source_folders = [folder for _, folders in plan.sources for folder in folders]
        remove_strays(plan.strays, store, tell)
        for line in plan.unavailable:
            tell(line)
        remaining: list[object] = [*plan.unavailable, *plan.strays.remaining(tell)]
        remaining += check(holdings.texts, store, root, trees=trees, folders=source_folders, tell=tell)
        if remaining:
            holdings.after_removal().save(FOUND)
            tell(f"when that is done, run retemper forget again; until then {FOUND} holds the texts that it looks for")
        else:
            FOUND.unlink()
            print_next_steps(tell)
    return 1 if remaining else 0


def make_plan(records: Sequence[str], entries: Sequence[Entry], store: Store, *, root: Path, trees: Sequence[Path]) -> Plan:
    """Find what holds `records` and those of the list."""
    listed = read_marks()
    unlisted = {mark(kind, record) for record in records for kind in KINDS} - listed.keys()
    own_marks = listed.keys() | (known_marks([entry for entry in entries if entry.own], store, unlisted) if unlisted else set())
    pairs = [parse_record(record, own_marks, listed=listed) for record in dict.fromkeys(records)]
    new = tuple(pair for pair in pairs if mark(*pair) not in listed)
    known = listed | {mark(kind, record): kind for kind, record in new}
    marks = frozenset(known)
    if not marks:
        raise UserError(f"{FILE}: no record is listed; name one: retemper forget ID, or document:ID, query:ID")
    kinds = frozenset(known.values())
    holdings = find(entries, store, marks, kinds=kinds, earlier=Holdings.load(FOUND))
    sources = tuple(own_sources())
    answers = [withdraw_records(kind, folders, marks, dry=True) for kind, folders in sources]
    lines: dict[str, int] = {path: count for answer in answers for path, count in answer["files"].items()}
    inbox = records_in_inbox(marks)
    holdings.texts |= {text for answer in (*answers, inbox) for text in answer["texts"]}
    unread = [path for answer in (*answers, inbox) for path in answer["unread"]]
    oids = set(holdings.oids)
    runs = tuple(path for path, entry in recorded_runs(root) if any(oid in oids for oid, _ in outs(entry)))
    files = tuple(path for tree in trees for path in matching_files(tree, oids, kinds))
    own_trees = worktrees()
    losses = forgettings.losses([tree for tree in trees if tree not in own_trees], holdings.outs, oids)
    folders = tuple(path for tree in trees for name in (*REBUILT, *OF_EXTRA) for path in sorted((tree / ".retemper").glob(name)))
    if "document" in kinds:
        files += tuple(path for tree in trees for path in other_shards(tree / ".retemper/shards", holdings.clean))
    strays = find_strays(holdings.texts, entries, store, oids=oids, trees=trees)
    plan = Plan(marks, new, holdings, sources, lines, files, folders, runs, strays, tuple(unavailable_places()))
    plan.notes += plan.unavailable
    plan.notes += [f"{corpus}: neither in the cache nor on a remote, so what was made from it is unknown" for corpus in holdings.unread]
    if others := same_texts(entries, store, marks, texts=holdings.texts, outs=holdings.outs | set(strays.own.values())):
        shown = shlex.join(others[:SHOWN]) + (f" (and {len(others) - SHOWN:,} more)" if len(others) > SHOWN else "")
        plan.notes.append(f"the same text stays under another id; to forget that, too: retemper forget {shown}")
    plan.notes += [*source_notes(lines, inbox["files"], unread), *losses.values(), *strays.notes()]
    return plan


def parse_record(record: str, known: Collection[str], *, listed: Collection[str]) -> tuple[Kind, str]:
    """The kind and id of a `record` given as ID, document:ID, or query:ID. Raises UserError if the id is unknown or ambiguous.

    `known`: marks of this project's corpora and of the list, `listed`, which decides first.
    """
    kinds = [kind for kind in KINDS if mark(kind, record) in listed] or [kind for kind in KINDS if mark(kind, record) in known]
    if len(kinds) == 1:
        return kinds[0], record
    if kinds:
        raise UserError(f"{record}: a document and a query have this id; name one: document:{record} or query:{record}")
    prefix, _, rest = record.partition(":")
    for kind in KINDS:
        if prefix == kind and rest:
            return kind, rest
    raise UserError(
        f"{record}: no corpus in the cache or on a remote has this id; if the source has it: document:{record} or query:{record}"
    )


def known_entries(root: Path, projects: Sequence[Path], trees: Sequence[Path], *, remotes: Sequence[Remote]) -> Iterator[Entry]:
    """The entries of every dvc.lock of the projects and of the run caches, here and on `remotes`.

    Those that made a corpus of this project, in any commit, are its own.
    """
    own_outs = set(own_corpora())
    all_locks: list[Lock] = [lock for project in projects for _, versions in locks_of_references(project) for lock in versions]
    for tree in trees:
        all_locks += [read_lock(tree / name) for name in (locks.DVC_LOCK, locks.BEFORE, locks.AFTER)]
        all_locks += [read_lock(path) for path in sorted((tree / UNPUSHED).glob("*.lock"))]
    for tree in worktrees():
        own_outs |= {out for entry in read_lock(tree / locks.DVC_LOCK).values() for out in Entry(entry, True).outs()}
    all_locks += [{"run": entry} for _, entry in recorded_runs(root)]
    all_locks += [{"run": entry} for remote in remotes for entry in remote.runs.values()]
    added = [file for tree in trees for file in dvc_files(tree) if file.name.endswith(".dvc")]
    all_locks += [parse_dvc_file(file.read_text(encoding="utf-8"), str(file)) for file in added]
    for lock in all_locks:
        for name, entry in lock.items():
            yield Entry(entry, any(out in own_outs for out in Entry(entry, True).outs()), name.endswith(".dvc"))


def own_corpora() -> Iterator[tuple[str, str]]:
    """Path and digest of the corpora in every version of this project's dvc.lock that git has, in old commits too."""
    for line in git("rev-list", "--all", "--objects", "--", locks.DVC_LOCK.name, check=False).splitlines():
        oid, _, name = line.partition(" ")
        if name.endswith(locks.DVC_LOCK.name):
            yield from CORPUS.findall(git("cat-file", "blob", oid))


def open_remotes(repo: Any, root: Path) -> Iterator[Remote]:
    """Open every remote of the project, and read its records of runs; the cache `root` gets none of them.

    Raises UserError if one is unavailable.
    """
    for name in repo.config["remote"]:
        try:
            remote = repo.cloud.get_remote(name)
            refuse_unmarked(remote)
            runs = gc.remote_runs(remote, root, gc.Needs())
            yield Remote(name, remote.fs, remote.odb, remote.path, remote_places(remote.fs, remote.odb.path), runs)
        except Exception as error:  # from DVC, or any library that talks to remotes
            raise UserError(f"remote {name}: cannot be read, so nothing was removed: {reason(name, error)}") from None


def matching_files(tree: Path, oids: Collection[str], kinds: Collection[Kind]) -> Iterator[Path]:
    """Files of a working tree whose content is one of `oids`."""
    for path in text_search.files_below(tree / "data"):
        if may_hold(path.relative_to(tree).as_posix(), kinds) and file_md5(path) in oids:
            yield path
    for path in (tree / "data").rglob("*"):  # links into the cache
        if path.is_symlink() and may_hold(path.relative_to(tree).as_posix(), kinds) and object_id(path.resolve()) in oids:
            yield path


def changes(plan: Plan) -> Iterator[tuple[str, Sequence[Path]]]:
    """The sources that are changed in one step, by kind: of batches, each one that has a record, so a kill costs one verdict at most."""
    for kind, folders in plan.sources:
        affected = [folder for folder in folders if any(Path(path).is_relative_to(folder) for path in plan.lines)]
        yield from ((kind, [folder]) for folder in affected) if kind == "batch" else [(kind, folders)]


def remember(plan: Plan) -> None:
    """Add the new records to the list."""
    today = datetime.now(UTC).date().isoformat()
    text = FILE.read_text(encoding="utf-8") if FILE.exists() else HEAD
    if plan.new:
        end = "" if text.endswith("\n") else "\n"  # an editor may have left it out
        write_text(FILE, text + end + "".join(f"{kind} {mark(kind, record)} {today}\n" for kind, record in plan.new))


def refuse_unwritable(plan: Plan, store: Store, root: Path) -> None:
    """Raise DiskError, with nothing changed, if the cache or a folder remote holds something to remove but is not writable."""
    oids = plan.holdings.oids
    if plan.runs or plan.strays.removed.get(root) or any(object_path(store.objects, oid).exists() for oid in oids):
        refuse_read_only(root, removing=True)
    for remote in store.remotes:
        is_affected = plan.strays.removed.get(Path(remote.root)) or stale_runs(remote, oids) or not remote.places.keys().isdisjoint(oids)
        if remote.fs.protocol == "local" and is_affected and not os.access(remote.root, os.W_OK):
            raise DiskError(
                f"remote {remote.name}: no permission to write to {remote.root}, from which this command removes; nothing was changed; "
                "give access, or where it is mounted read-only, mount it for writing"
            )


def remove(plan: Plan, store: Store, root: Path) -> None:
    """Remove what the plan names, corpora last."""
    for path in plan.folders:
        delete(path)
    for path in plan.files:
        path.unlink(missing_ok=True)
    for place, oids in places_of(plan, store, root):
        if oids:
            forgettings.leave_note(place, oids)
    for last in (False, True):
        oids = [oid for oid, path in plan.holdings.oids.items() if path.startswith(CORPORA) == last]
        for remote in store.remotes:
            remote.delete(oids)
        for oid in sorted(oids, key=lambda oid: not oid.endswith(".dir")):
            object_path(store.objects, oid).unlink(missing_ok=True)
    for remote in store.remotes:
        if runs := stale_runs(remote, plan.holdings.oids):
            remote.fs.remove(runs)
    for run in plan.runs:
        run.unlink(missing_ok=True)
        with suppress(OSError):  # DVC fails on an empty folder of runs; one that is not empty stays
            run.parent.rmdir()
    PUSHED.unlink(missing_ok=True)


def stale_runs(remote: Remote, oids: Collection[str]) -> list[str]:
    """The recorded runs of a remote that made one of the objects `oids`."""
    return [place for place, entry in remote.runs.items() if any(oid in oids for oid, _ in outs(entry))]


def places_of(plan: Plan, store: Store, root: Path) -> Iterator[tuple[Place, list[str]]]:
    """The places of the notes for other projects, in the cache and on each remote, with the digests that the plan removes there."""
    here = [oid for oid in plan.holdings.oids if object_path(store.objects, oid).exists()]
    yield Place.on_disk(root / forgettings.FOLDER), here
    for remote in store.remotes:
        yield Place(remote.fs, remote.fs.join(remote.root, forgettings.FOLDER)), list(plan.holdings.oids.keys() & remote.places.keys())


def exposed_models(plan: Plan, tell: Tell) -> list[exposure.Model]:
    """The models that saw the records, as far as trainings can be replayed."""
    if not plan.holdings.ids:
        return []
    try:
        found = exposure.expose(sorted(plan.holdings.ids), exposure.known_locks())
    except (UserError, RuntimeError) as error:
        tell(f"which models saw them is unknown: {error}")
        return []
    except SystemExit as end:  # of a question that ended with a user's mistake, which is printed: the records must go all the same
        if end.code != USER_ERROR:
            raise
        tell("which models saw them is unknown: the reason is above")
        return []
    plan.notes += found.notes
    return list(found.models)


def print_plan(plan: Plan, store: Store, tell: Tell, *, models: Sequence[exposure.Model]) -> None:
    """Print what would be removed, by place, and the models that saw the records."""
    outs = {path for path, _ in plan.holdings.outs}
    rows = []
    for name, present in (
        ("cache", {oid for oid in plan.holdings.oids if object_path(store.objects, oid).is_file()}),
        *((f"remote {remote.name}", plan.holdings.oids.keys() & remote.places.keys()) for remote in store.remotes),
    ):
        groups: dict[str, int] = defaultdict(int)
        for oid in present:
            path = Path(plan.holdings.oids[oid])
            groups[next(str(parent) for parent in (path, *path.parents) if str(parent) in outs)] += 1
        rows += [[name, path, str(count)] for path, count in sorted(groups.items())]
    strays = ((remote.name, len(plan.strays.digests() & remote.places.keys())) for remote in store.remotes if remote.fs.protocol != "local")
    rows += [[f"remote {name}", "objects with a text", str(count)] for name, count in strays if count]
    rows += [["source", path, str(count)] for path, count in plan.lines.items()]
    rows += [["working trees", "files of artifacts and vectors", str(len(plan.files))]] if plan.files else []
    rows += [["scratch", str(path), "1"] for path in plan.folders]
    rows += [["run cache", "recorded runs", str(len(plan.runs))]] if plan.runs else []
    stale = ((remote.name, len(stale_runs(remote, plan.holdings.oids))) for remote in store.remotes)
    rows += [[f"remote {name}", "recorded runs", str(count)] for name, count in stale if count]
    tell(f"{FILE}: {counted(len(plan.marks), 'records')}, {len(plan.new)} of them new")
    if rows:
        tell(text_table(["where", "what", "number"], rows))
    if models:
        tell(
            "\n"
            + text_table(["model that saw them", "in"], [[exposure.model_label(model), ", ".join(model.trainings)] for model in models])
        )
    for note in plan.notes:
        tell(f"note: {note}")


def print_next_steps(tell: Tell) -> None:
    """Print what the user must do next."""
    tell(f"removed. Next: git add {FILE} && git commit; retemper run (or retemper retrain) trains without the records;")
    tell("then crown a new champion and run retemper gc, with --remote: weights that saw them stay until then.")
    tell("Everyone with a clone or a cache of their own: git pull, then retemper forget (without ids).")
