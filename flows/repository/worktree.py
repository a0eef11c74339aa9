"""A second working tree of the project, for a run that leaves the user's own alone: a git worktree at a commit, over the shared cache.

Sweeps, evaluations, retrainings, and reproductions all use it in the same way: `make_worktree`, `equip`, then an ordinary run (`run_in`).
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from flows.parameters.sources import source_keys
from flows.process import locks
from flows.process.owners import abandoned, is_of_this_machine, owned_prefix
from flows.process.problems import Problems
from flows.process.processes import TYPED, Processes, environment, typed_command
from flows.repository.git import GitFailed, git
from flows.repository.lock import LOCK
from flows.repository.project import edit_settings, repository
from tasks.core.errors import Problem, UserError
from tasks.core.files import write_text
from tasks.core.params.sections import read_yaml
from tasks.core.sources import forgotten
from tasks.core.sources.pairs import file_and_columns
from tasks.core.stage.code import PACKAGE

RUN = (sys.executable, "-m", "flows.cli", "run")
SCRATCH = Path(".retemper")
SECOND = "RETEMPER_SECOND_TREE"  # environment: set for a run in such a tree
PASSING = ("evaluate", "reproduce", "upgrade")  # commands whose trees are removed when they end
COMPARED = "champion"  # folder of the tree in which a retraining measures the champion; removed when the retraining ends
SOURCE = "data/source.json"
CARRIED = ("runtime.yaml", ".retemper/digests.json")  # specific to this machine, never in git


def make_worktree(tree: Path, commit: str, project: Path = Path(), *, clean: bool = True) -> Path:
    """Make a git worktree of `project` at `commit`, or reuse the one at `tree`. Return the project's folder in it.

    A worktree that a kill left half-made is made again. Only one caller at a time may do this; it must hold a lock. `clean` removes
    untracked files and the memory of the last run, which belong to a different dvc.lock.
    """
    top = tree.resolve()
    if not is_worktree(top, Path(git("rev-parse", "--path-format=absolute", "--git-common-dir", folder=project))):
        shutil.rmtree(top, ignore_errors=True)
        again = ("--force", "--force")  # also if it is registered, or locked by a killed `git worktree add`
        git("worktree", "add", *again, "--detach", "--no-checkout", str(top), commit, folder=project)
    for lock in ("index.lock", "HEAD.lock"):  # left by a process that was killed
        Path(git("rev-parse", "--absolute-git-dir", folder=top), lock).unlink(missing_ok=True)
    git("checkout", "--quiet", "--force", "--detach", commit, folder=top)
    second = top / git("rev-parse", "--show-prefix", folder=project)
    if clean:
        git("clean", "--quiet", "-d", "--force", folder=top)
        for memory in (locks.BEFORE, locks.AFTER):
            (second / memory).unlink(missing_ok=True)
    return second


def remove_worktree(tree: Path) -> None:
    """Remove a worktree of the current folder's repository, even a half-made one, or a folder with worktrees in it.

    `git worktree prune` would also forget worktrees of the user whose drive is not mounted now.
    """
    root = tree.resolve()
    shutil.rmtree(tree, ignore_errors=True)
    for line in git("worktree", "list", "--porcelain", check=False).splitlines():
        listed = line.removeprefix("worktree ")
        if listed != line and Path(listed).is_relative_to(root):
            git("worktree", "remove", "--force", "--force", listed, check=False)


def temp_tree(command: str) -> Path:
    """Make a folder for a temporary worktree of this process, which runs `command` (one of PASSING).

    Worktrees that killed processes left behind are removed first.
    """
    SCRATCH.mkdir(exist_ok=True)
    for folder in [folder for name in PASSING for folder in abandoned(SCRATCH, name)]:
        remove_worktree(folder)
    return Path(tempfile.mkdtemp(prefix=owned_prefix(command), dir=SCRATCH.absolute()))


def is_temporary(folder: Path) -> bool:
    """Whether `folder` is in a temporary tree, which is removed when the command that made it ends."""
    begins = tuple(f"{name}-" for name in PASSING)
    pairs = pairwise((folder, *folder.parents))
    return any(outer.name == SCRATCH.name and (inner.name.startswith(begins) or inner.name == COMPARED) for inner, outer in pairs)


def trees_of_others(trees: Iterable[Path]) -> list[Path]:
    """The folders of those temporary trees that `temp_tree` never removes, because other machines, or an older version, made them."""
    begins = tuple(f"{name}-" for name in PASSING)
    places = (place for tree in trees for place in (tree, *tree.parents) if place.parent.name == SCRATCH.name)
    return [place for place in dict.fromkeys(places) if place.name.startswith(begins) and not is_of_this_machine(place)]


def run_in(
    tree: Path, run: Sequence[str], processes: Processes, *, show: Callable[[str], None], env: Mapping[str, str] | None = None
) -> tuple[int, list[Problem]]:
    """Execute the command `run` (RUN and its targets) in `tree`, with the code of `tree`. Return its exit status and its problems.

    `show` is called with each line of its output.
    """
    reported = Problems(tree / ".retemper/second-tree.problem.json")
    path = os.pathsep.join(filter(None, [str(tree.absolute()), os.environ.get("PYTHONPATH", "")]))
    variables = {"PYTHONPATH": path, SECOND: "1", TYPED: typed_command(), **(env or {}), **reported.environment}
    try:
        status = processes.run(run, show, environment(**variables), folder=tree)
    finally:
        problems = reported.take()
    return status, problems


@dataclass(frozen=True)
class Changes:
    """The changes of a working tree relative to a commit: a diff of tracked files, and new files by name, with content and permissions."""

    diff: str
    files: Mapping[str, tuple[bytes, int]]


def read_changes(commit: str) -> Changes:
    """Read the uncommitted changes of tracked files, new code, dvc.lock, and data/source.json."""
    plain = ("--unified=3", "--no-color", "--no-ext-diff", "--no-textconv", "--src-prefix=a/", "--dst-prefix=b/")  # not the user's settings
    diff = git("diff", "--binary", "--no-relative", *plain, commit, "--", ".")  # git apply reads paths from the top of the repository
    new = git("ls-files", "--others", "--exclude-standard", "-z", "--", *code_files(Path())).split("\0")
    existing = [Path(name) for name in [*filter(None, new), LOCK, SOURCE] if Path(name).is_file()]
    return Changes(diff, {str(path): (path.read_bytes(), path.stat().st_mode) for path in existing})


def carry_changes(changes: Changes, tree: Path) -> None:
    """Apply `changes` to `tree`, which is at the commit that they are relative to."""
    if changes.diff:
        git("apply", "--whitespace=nowarn", "-", folder=tree, text=f"{changes.diff}\n")
    for name, (content, mode) in changes.files.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes(content)
        (tree / name).chmod(mode)


def equip(tree: Path, project: Path = Path(), *, own_cache: bool = False) -> None:
    """Give `tree` this machine's settings, the project's list of forgotten records, and the project's cache or an empty one."""
    for name in CARRIED:
        (tree / name).unlink(missing_ok=True)
        if (project / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(project / name, tree / name)
    _carry_forgotten(project / forgotten.FILE, tree / forgotten.FILE)
    _share_settings(project.absolute(), tree, own_cache)


def tree_place(room: Path, name: str = "tree") -> Path:
    """The place of a tree in its own folder, `room`. It is so deep that paths up to three folders above the tree are still in the room."""
    return room / "up" / "up" / name


def link_sources(tree: Path, room: Path | None = None) -> None:
    """Make the relative sources in the params.yaml of `tree` resolve from there, by links to the folders or files they name here.

    Links are made in the tree, in its `room` if it has one (`tree_place`), and elsewhere only outside this project and where nothing
    exists. UserError if a source would still resolve to something different from there.
    """
    for key, source in source_keys(read_yaml(tree / "params.yaml")):
        kind, _, name = source.partition(":")
        place = Path(file_and_columns(name)[0] if kind == "pairs" else name or source)
        if place.is_absolute() or not place.exists():
            continue
        target = Path(os.path.normpath(tree.absolute() / place))
        if target.exists() and (target.is_relative_to(tree.absolute()) or target.resolve() == place.resolve()):
            continue
        in_tree = target.is_relative_to(tree.absolute())
        in_room = room is not None and target.is_relative_to(room.absolute()) and not tree.absolute().is_relative_to(target)
        is_free = not target.exists() and not target.is_relative_to(Path.cwd())
        if not (in_tree or in_room or is_free):
            raise UserError(f"params.yaml: {key}: {source} resolves to another folder from {tree}, where this runs; give an absolute path")
        target.parent.mkdir(parents=True, exist_ok=True)
        if in_room and target.is_dir() and not target.is_symlink():  # a folder made for links of an earlier source
            shutil.rmtree(target)
        target.unlink(missing_ok=True)
        target.symlink_to(place.resolve())


def code_files(root: Path) -> list[str]:
    """The files in git that a run reads: params.yaml, dvc.yaml, the code deps of its stages, and tasks/ if the project has it."""
    graph = read_yaml(root / "dvc.yaml")
    deps = {dep for stage in graph.get("stages", {}).values() for dep in stage.get("do", stage).get("deps", []) if isinstance(dep, str)}
    plain = sorted(dep for dep in deps if "${" not in dep and (root / dep).exists() and not dep.startswith(f"data{os.sep}"))
    return ["params.yaml", "dvc.yaml", *plain, *([PACKAGE] if (root / PACKAGE).is_dir() else [])]


def is_worktree(root: Path, common: Path) -> bool:
    """Whether `root` (resolved) is a working tree that git accepts, of the repository whose git folder is `common`."""
    if not (root / ".git").is_file():
        return False
    try:
        shown = git("rev-parse", "--path-format=absolute", "--show-toplevel", "--git-common-dir", folder=root).splitlines()
    except (GitFailed, OSError):
        return False
    return [Path(line).resolve() for line in shown] == [root, common.resolve()]


def _carry_forgotten(source: Path, target: Path) -> None:
    """Add the project's forgotten records to a tree's list: the tree's commit may be older, and a source may still have them."""
    known = forgotten.read_marks(target)
    lines = forgotten.record_lines(source) if forgotten.read_marks(source).keys() - known.keys() else []
    if new_lines := [line for _, line in lines if line.split()[1] not in known]:
        text = target.read_text(encoding="utf-8").rstrip("\n") + "\n" if target.exists() else forgotten.HEAD
        write_text(target, text + "".join(f"{line}\n" for line in new_lines))


def _share_settings(project: Path, folder: Path, own_cache: bool) -> None:
    """Give a worktree the DVC settings of the project that its commit may lack: cache, local settings, remotes, and which one is used."""
    from dvc.config import Config

    with repository(project) as repo:
        cache = repo.cache.local_cache_dir
        shared, local = repo.config.load_one("repo"), repo.config.load_one("local")
    (folder / ".dvc/config.local").unlink(missing_ok=True)
    settings = Config(str(folder / ".dvc"), validate=False)
    with edit_settings(settings, "local", validate=False) as edited:
        edited.update(local)
        edited["cache"]["dir"] = str(folder.absolute() / ".dvc/cache") if own_cache else cache
        if own_cache:
            edited["cache"].pop("shared", None)  # it is empty: as a shared cache, it would count as one that is not mounted
        for name, remote in shared["remote"].items():
            edited["remote"][name] = {**remote, **local["remote"].get(name, {})}
        if default := {**shared["core"], **local["core"]}.get("remote"):
            edited["core"]["remote"] = default
    (folder / ".dvc/config.local").chmod(0o600)
