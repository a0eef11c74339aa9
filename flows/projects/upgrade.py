"""`retemper upgrade`: bring a newer Retemper's code and parameters into a project, as one commit or not at all.

Everything is tried in a clone of the project below .retemper: git merges, and the newer version's own code migrates the parameter files
and lists the stages that run again. Only then does the project's branch move forward to the resulting commit.
"""

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flows.process import locks
from flows.process.display import Display
from flows.process.processes import Processes, stopping_on_signals
from flows.projects import news, rerun, trees
from flows.projects.record import CHECKOUT, RECORD, Record, Version, installed_source, is_url, parse_record, recorded_name, version_of
from flows.repository.git import git
from flows.repository.lock import commit_of, read_blob
from flows.repository.worktree import remove_worktree, temp_tree, tree_place
from tasks.core.errors import UserError, redacted
from tasks.core.files import write_text

CHANGELOG, SCHEMA = "CHANGELOG.md", "docs/params.schema.json"
NEEDED = ("pyproject.toml", "constraints.txt")  # files that define the environment
UPGRADED = "refs/heads/retemper-upgraded"  # of the clone
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Wish:
    """What the user asked for. `source`: empty for the project's own; `since`: the code's version, if there is no record of it."""

    source: str = ""
    to: str = "HEAD"
    since: str = ""
    branch: str = ""
    dry: bool = False
    ours: Collection[str] = ()
    theirs: Collection[str] = ()


@dataclass(frozen=True)
class Upgraded:
    """The result of an upgrade in the clone: its commit (empty if nothing is new), and new texts of files that are not in git."""

    old: Version
    new: Version
    commit: str
    needs_setup: bool = False
    untracked: Mapping[str, str] = field(default_factory=dict)


def upgrade(wish: Wish, tell: Tell) -> int:
    """Upgrade the project in the current folder, or (`dry`) say what that would do. Raises UserError, with nothing changed, if it fails."""
    processes, display = Processes(), Display()
    with stopping_on_signals(processes, display.farewell), locks.hold_run_lock():
        _refuse_changes()
        place = temp_tree("upgrade")
        clone = tree_place(place)
        try:
            result = _try(wish, clone, place, processes=processes, tell=tell)
            if not result.commit and not result.untracked:
                tell("nothing to do: code and parameters are up to date")
            elif wish.dry:
                tell("nothing was changed (--dry-run)")
            else:
                _adopt(result, wish.branch, clone=clone, tell=tell)
        finally:
            remove_worktree(place)
    return 0


def _refuse_changes() -> None:
    changed = [line[3:] for line in git("status", "--porcelain", "--untracked-files=no").splitlines()]
    if changed:
        others_note = f" and {len(changed) - 3} more" if changed[3:] else ""
        raise UserError(
            f"{', '.join(changed[:3])}{others_note}: found uncommitted changes, expected none; git commit or git stash them first"
        )


def _try(wish: Wish, clone: Path, room: Path, *, processes: Processes, tell: Tell) -> Upgraded:
    """Make the upgrade in `clone`, in its `room`, and tell what is new."""
    project, head = Path.cwd(), commit_of("HEAD")
    top, prefix = git("rev-parse", "--show-toplevel"), git("rev-parse", "--show-prefix")
    record = parse_record(read_blob(head, str(RECORD)))
    source = _source(wish.source, record)
    git("clone", "--quiet", "--shared", "--no-checkout", "--", top, str(clone.absolute()))
    trees.fetch(source, clone)
    new = version_of(trees.resolve(wish.to, clone), clone)
    if read_blob(new.commit, str(RECORD), clone) is not None:
        raise UserError(f"{redacted(source)}: found a project ({RECORD}), expected Retemper itself; name the source in that file")
    old = version_of(_base(wish, record, head=head, new=new, clone=clone), clone)
    tell(f"from {old} to {new} of {redacted(source)}")
    sides = trees.Trees(trees.files_of(old.commit, clone), trees.files_of(f"{head}:{prefix}", clone), trees.files_of(new.commit, clone))
    trees.merge(trees.adapt(sides, ours=wish.ours, theirs=wish.theirs), head, prefix=prefix, clone=clone)
    tree = clone.absolute() / prefix
    migrated, untracked = rerun.migrate_files(tree, project, made=old.made, processes=processes)
    _print_news(old, new, clone=clone, tell=tell)
    for file, lines in migrated.items():
        for line in lines:
            tell(f"{file}: {line}")
    is_newer = old.commit != new.commit
    if is_newer or record is None:
        write_text(tree / RECORD, Record(recorded_name(source, new.commit), new.number, new.commit).text)
    tracked = [file for file in (*migrated, str(RECORD)) if file not in untracked and (tree / file).is_file()]
    if tracked:
        git("add", "--", *tracked, folder=tree)
    tree_id = git("write-tree", folder=clone)
    unchanged = tree_id == git("rev-parse", f"{head}^{{tree}}") or (not is_newer and not migrated)
    if unchanged and not untracked:
        return Upgraded(old, new, "")
    for line in rerun.describe_rerun(tree, room, project, processes=processes):
        tell(line)
    message = f"Upgrade Retemper to {new.number} ({new.commit[:7]})\n\nFrom {old.number} ({old.commit[:7]}), by retemper upgrade.\n"
    commit = "" if unchanged else git("commit-tree", tree_id, "-p", head, "-F", "-", folder=clone, text=message, env=_author())
    changed = git("diff", "--name-only", head, tree_id, "--", *(f"{prefix}{name}" for name in NEEDED), folder=clone) if commit else ""
    return Upgraded(old, new, commit, bool(changed), untracked)


def _source(place: str, record: Record | None) -> str:
    """The source as a URL or an absolute folder. Raises UserError if it is unknown, or for a missing folder."""
    source = place or (record.source if record else "")
    if not source:
        source = installed_source() if Path.cwd().resolve() != CHECKOUT else git("config", "--get", "remote.origin.url", check=False)
        if not source:
            raise UserError(
                f"upgrade: {RECORD} not found, which names the Retemper that this project is from; name it: retemper upgrade SOURCE"
            )
    if is_url(source):
        return source
    folder = Path(source).expanduser()
    if not folder.is_dir():
        raise UserError(
            f"{source}: no such folder, expected a git repository of Retemper; fix the path, or name a source: retemper upgrade SOURCE"
        )
    return str(folder.resolve())


def _base(wish: Wish, record: Record | None, *, head: str, new: Version, clone: Path) -> str:
    """The commit of Retemper that the project's code is from."""
    if wish.since:
        return trees.resolve(wish.since, clone)
    if record:
        if not git("rev-parse", "--verify", "--quiet", f"{record.commit}^{{commit}}", folder=clone, check=False):
            raise UserError(
                f"{RECORD}: commit {record.commit[:12]} is not in the source, expected a source with this commit, which the project's "
                "code is from; name such a source"
            )
        return record.commit
    if base := trees.common_base(head, new.commit, clone):
        return base
    raise UserError(
        f"{Path.cwd()}: its history shares no commit with the source, and it has no {RECORD}; name the version of its code: --from REV"
    )


def _print_news(old: Version, new: Version, *, clone: Path, tell: Tell) -> None:
    if old.commit == new.commit:
        return
    for entry in news.changelog_news(*(read_blob(version.commit, CHANGELOG, clone) or "" for version in (old, new))):
        tell(f"- {entry}")
    schemas = [read_blob(version.commit, SCHEMA, clone) for version in (old, new)]
    if not all(schemas):
        tell("cannot tell which parameters are new: one of the versions has no schema of them")
        return
    changes = news.parameter_news(*(_schema(text) for text in schemas))
    for parameter in changes.new:
        tell(f"new parameter {parameter}")
    for key in changes.gone:
        tell(f"no longer a parameter: {key}")
    for former, present in changes.changed:
        tell(f"changed default: {present.key}: {_shown(former.default)}, now {_shown(present.default)}")


def _schema(text: str | None) -> dict[str, Any]:
    schema = json.loads(text or "{}")
    return schema if isinstance(schema, dict) else {}


def _shown(default: Any) -> str:
    return "none" if default is news.MISSING else json.dumps(default, ensure_ascii=False)


def _author() -> dict[str, str]:
    """The author and committer by this project's git settings, which the clone does not have."""
    settings = {key: git("config", "--get", f"user.{key}", check=False) for key in ("name", "email")}
    return {f"GIT_{role}_{key.upper()}": value for role in ("AUTHOR", "COMMITTER") for key, value in settings.items() if value}


def _change(result: Upgraded, *, clone: Path, tell: Tell) -> None:
    """Write the files that are not in git, then move the current branch. After a kill between them, the same command does the rest."""
    former = {Path(name): Path(name).read_text(encoding="utf-8") for name in result.untracked}
    try:
        for name, text in result.untracked.items():
            write_text(Path(name), text)
        if result.commit:
            git("fetch", "--quiet", "--no-tags", str(clone.absolute()), UPGRADED)
            git("merge", "--quiet", "--ff-only", "FETCH_HEAD")
    except BaseException:
        for path, text in former.items():
            write_text(path, text)
        raise
    if result.commit:
        tell(f"committed as {result.commit[:7]}; git revert {result.commit[:7]} undoes it")
    for name in result.untracked:
        tell(f"{name}: written (not in git)")


def _adopt(result: Upgraded, branch: str, *, clone: Path, tell: Tell) -> None:
    """Bring the commit into the project: on the current branch, or on a new one."""
    if result.commit:
        git("update-ref", UPGRADED, result.commit, folder=clone)
        if branch:
            if git("rev-parse", "--verify", "--quiet", f"refs/heads/{branch}", check=False):
                raise UserError(f"branch {branch}: exists, expected a new name; name another with --branch")
            git("fetch", "--quiet", "--no-tags", str(clone.absolute()), f"{UPGRADED}:refs/heads/{branch}")
            tell(f"committed as {result.commit[:7]} on branch {branch}; git merge {branch} brings it over")
    if branch:
        if result.untracked:
            then = f"git merge {branch}, then retemper upgrade" if result.commit else "retemper upgrade"
            tell(f"{', '.join(result.untracked)}: not in git, so left unchanged; to change: {then} --from {result.old.commit[:12]}")
    else:
        _change(result, clone=clone, tell=tell)
    if result.needs_setup:
        tell(f"{' or '.join(NEEDED)} has changed: make setup updates the environment (or pip install -c constraints.txt -e '.[cpu,demo]')")
