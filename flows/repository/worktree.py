"""A second working tree of the project, for a run beside the person's own: at a commit, over a cache that is told to it."""

import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from flows.experiments.store import code_files
from flows.parameters.sources import source_keys
from flows.repository.lock import LOCK, git
from flows.retraining.tree import is_worktree, share_settings
from tasks.core.stage.params import read_yaml

SOURCE = "data/source.json"
CARRIED = ("runtime.yaml", ".retemper/digests.json")  # this machine's own, never git's


def make_worktree(tree: Path, commit: str) -> Path:
    """A git worktree at `commit`; one that is already at `tree` is cleaned and used again. Returns the project's folder in it."""
    top = tree.resolve()
    if not is_worktree(top, Path(git("rev-parse", "--path-format=absolute", "--git-common-dir"))):
        shutil.rmtree(top, ignore_errors=True)
        git("worktree", "prune")
        git("worktree", "add", "--quiet", "--force", "--detach", str(top), commit)
    Path(git("rev-parse", "--absolute-git-dir", folder=top), "index.lock").unlink(missing_ok=True)  # of a dead one: the caller holds a lock
    git("checkout", "--quiet", "--force", "--detach", commit, folder=top)
    git("clean", "--quiet", "-d", "--force", folder=top)
    return top / git("rev-parse", "--show-prefix")


@dataclass(frozen=True)
class Changes:
    """What a working tree holds beyond a commit, read once: a diff of tracked files, and files by name with their permissions."""

    diff: str
    files: Mapping[str, tuple[bytes, int]]


def read_changes(commit: str) -> Changes:
    """Uncommitted changes of tracked files, new code, and dvc.lock."""
    plain = ("--no-color", "--no-ext-diff", "--no-textconv", "--src-prefix=a/", "--dst-prefix=b/")  # whatever the user's settings are
    diff = git("diff", "--binary", "--relative", *plain, commit)
    new = git("ls-files", "--others", "--exclude-standard", "-z", "--", *code_files(Path())).split("\0")
    there = [Path(name) for name in [*filter(None, new), LOCK, SOURCE] if Path(name).is_file()]
    return Changes(diff, {str(path): (path.read_bytes(), path.stat().st_mode) for path in there})


def carry_changes(changes: Changes, tree: Path) -> None:
    """Bring `changes` into `tree`, which is at the commit that they are upon."""
    if changes.diff:
        git("apply", "--whitespace=nowarn", "-", folder=tree, text=f"{changes.diff}\n")
    for name, (content, mode) in changes.files.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes(content)
        (tree / name).chmod(mode)


def copy(names: Iterable[str], tree: Path) -> None:
    """Copy those of `names` that are here into `tree`; what an earlier time has left there of the others goes."""
    for name in names:
        (tree / name).unlink(missing_ok=True)
        if Path(name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(name, tree / name)


def equip(tree: Path, own_cache: bool = False) -> None:
    """Give `tree` this machine's settings and cache (or a cache of its own), and let relative sources be found from it."""
    copy(CARRIED, tree)
    share_settings(Path.cwd(), tree, own_cache)
    for _, named in source_keys(read_yaml(tree / "params.yaml")):
        place = Path(named.partition(":")[2] or named)
        if not place.is_absolute() and place.exists():
            there = Path(os.path.normpath(tree / place))
            if not there.exists():
                there.parent.mkdir(parents=True, exist_ok=True)
                there.unlink(missing_ok=True)
                there.symlink_to(place.resolve())
