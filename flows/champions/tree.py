"""The git worktree of scheduled runs, over the project's DVC cache. The user's own tree is never touched.

It is in `.retemper/retraining`, with a detached HEAD. Commits are made by plumbing, so hooks, a missing identity, signing
keys, and branches that are checked out elsewhere do not interfere.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from flows.process import locks
from flows.repository.git import NOBODY, GitFailed, git
from flows.repository.tags import TAGS, prefix_of, refuse_other_projects
from flows.repository.worktree import equip, make_worktree
from tasks.core.errors import UserError
from tasks.core.sources.forgotten import FILE as FORGOTTEN

FOLDER = Path(".retemper/retraining")
LOCK = Path(".retemper/retraining.lock")  # of a retraining in progress
LOOK = Path(".retemper/retraining.look.lock")  # of a dry run of one
WAIT_SECONDS = 3600.0  # for a dry run, which may prepare the data
BRANCH = "refs/heads/retemper/retraining"
SUPERSEDED = "refs/tags/superseded/"
PACKING_SECONDS = 60.0  # git's lock of all packed references is that of a dead process once it is older
RECORD = "retraining.json"
KEPT = ("dvc.lock", "data/source.json")  # of the last retraining, whatever the followed branch has
OF_RUN = (*KEPT, "params.yaml")  # what a champion's record is read from
COMMITTED = (*OF_RUN, RECORD, str(FORGOTTEN))
SETTINGS = ("params.yaml", "retraining.yaml")
ZERO = "0" * 40


def resolve(folder: Path, revision: str) -> str | None:
    """The commit that `revision` names, None if there is none."""
    return git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}", folder=folder, check=False) or None


def remote_of(project: Path) -> str:
    """The git remote by which machines share the branch and the tags: origin, else the first one; empty without any."""
    remotes = git("remote", folder=project).split()
    return "origin" if "origin" in remotes else next(iter(remotes), "")


def known_tip(project: Path) -> str | None:
    """The last commit of the branch that is known here; None if none is. `git clone` and `git fetch` leave the remote's beside ours."""
    ours, theirs = resolve(project, BRANCH), resolve(project, f"refs/remotes/{remote_of(project)}/{BRANCH.removeprefix('refs/heads/')}")
    return theirs if theirs and (not ours or is_ancestor(project, ours, theirs)) else ours


def resolve_followed(project: Path, follow: str) -> str:
    """The commit that retrainings follow. Raises UserError if there is none."""
    if followed := resolve(project, follow):
        return followed
    git("rev-parse", "--git-dir", folder=project)  # where git itself refuses, it says why
    label = follow or '--follow ""'
    raise UserError(f"{label}: no such commit, branch or tag; commit the project first, or name one with --follow")


def uncommitted(project: Path, names: Sequence[str] = SETTINGS) -> list[str]:
    """The files of `names` that differ from HEAD or are not in git."""
    return [name for name in names if git("status", "--porcelain", "--", name, folder=project)]


@dataclass(frozen=True)
class Tree:
    """The worktree: its root, the project's folder in it, the commit it follows and the last commit of the branch."""

    root: Path
    folder: Path
    followed: str
    tip: str | None


@contextmanager
def hold_for_retraining(project: Path, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold the worktree for a retraining. Raises Busy if another retraining holds it.

    If a dry run holds it, call `waiting` and wait: a dry run at three at night must not cost the week's retraining. One that has been
    suspended must not cost all of them: raises UserError after WAIT_SECONDS.
    """
    with ExitStack() as stack:
        with locks.wait_and_hold(project / LOOK, waiting, seconds=WAIT_SECONDS):
            stack.enter_context(locks.hold_run_lock(project / LOCK))
        yield


@contextmanager
def hold_if_idle(project: Path) -> Iterator[None]:
    """Hold the worktree without waiting. Raises UserError if a retraining, or a dry run of one, holds it."""
    with locks.hold_run_lock(project / LOOK), locks.hold_run_lock(project / LOCK):
        yield


@contextmanager
def hold_for_dry_run(project: Path) -> Iterator[None]:
    """Hold the worktree for a dry run, after waiting for any other. Raises UserError if a retraining holds it."""
    with locks.wait_and_hold(project / LOOK), locks.hold_run_lock(project / LOCK):
        yield


def folder_of(project: Path) -> Path:
    """The project's folder in the worktree."""
    return (project / FOLDER).resolve() / prefix_of(project)


def prepare(project: Path, follow: str, meet: Callable[[Path], None]) -> Tree:
    """Check out commit `follow` of `project`'s repository in the worktree, made again if it is missing or a kill left it half-made.

    `dvc.lock` and data/source.json are those of the last retraining, so that nothing is computed twice. Only one process may call this
    at a time (the one that holds the worktree), so git locks found here were left by a process that died, and are removed. `meet` then
    takes over what other machines did. Raises UserError if another project of the repository has champions.
    """
    followed = resolve_followed(project, follow)
    root = (project / FOLDER).resolve()
    refuse_taken_names(project)
    common = Path(git("rev-parse", "--path-format=absolute", "--git-common-dir", folder=project))
    for stale_lock in (common / f"{BRANCH}.lock", *(common / TAGS).glob("*.lock"), *(common / SUPERSEDED).glob("*.lock")):
        stale_lock.unlink(missing_ok=True)
    _remove_old(common / "packed-refs.lock", PACKING_SECONDS)  # the user's own `git gc` may hold it
    meet(project)
    refuse_other_projects(project)
    folder = make_worktree(root, followed, project, clean=False)  # what the last retraining made is still there
    if not (folder / "dvc.yaml").exists():
        raise UserError(f"{follow}: no dvc.yaml in commit {followed[:12]}; commit it first")
    tip = resolve(project, BRANCH)
    for name in KEPT if tip else ():
        if tip and git("ls-tree", tip, "--", name, folder=folder):
            git("checkout", "--quiet", "--force", tip, "--", name, folder=folder)
    equip(folder, project)
    return Tree(root, folder, followed, tip)


def _remove_old(path: Path, seconds: float) -> None:
    with suppress(FileNotFoundError):
        if time.time() - path.stat().st_mtime > seconds:
            path.unlink()


def refuse_taken_names(project: Path) -> None:
    """Raise UserError if a branch or tag has a name that ours need as a folder: git would refuse ours only after everything has run."""
    for name, move in ((BRANCH.rpartition("/")[0], "git branch -m {0} NEW"), (TAGS.rstrip("/"), "git tag NEW {0} && git tag -d {0}")):
        if name in git("for-each-ref", "--format=%(refname)", name, folder=project).splitlines():
            short = name.rpartition("/")[2]
            raise UserError(
                f"{name}: conflicts with {short}/..., which retrainings create (git allows only one of them); "
                f"rename it: {move.format(short)}"
            )


def commit(tree: Tree, message: str) -> str:
    """Commit the files of a retraining on top of the branch's tip and the followed commit; return the commit. No branch moves yet."""
    files = [name for name in COMMITTED if (tree.folder / name).exists()]
    git("add", "--force", "--", *files, folder=tree.folder)
    content = git("write-tree", folder=tree.root)
    parents = [tree.tip] if tree.tip else []
    if not tree.tip or not is_ancestor(tree.root, tree.followed, tree.tip):
        parents.append(tree.followed)
    return git("commit-tree", content, *(word for parent in parents for word in ("-p", parent)), text=message, folder=tree.root, env=NOBODY)


def move(folder: Path, updates: Sequence[str]) -> None:
    """Carry out lines of `git update-ref --stdin` together, or none of them."""
    git("update-ref", "--stdin", text="\n".join(["start", *updates, "prepare", "commit", ""]), folder=folder)


def records(folder: Path, *span: str) -> list[str]:
    """The commits of the branch in `span` (as for `git rev-list`) that add a record of their own, oldest first."""
    commits = git("rev-list", "--first-parent", "--reverse", *span, folder=folder).split()
    path = prefix_of(folder) + RECORD
    names = "".join(f"{commit}:{path}\n" for commit in (f"{commits[0]}^", *commits)) if commits else ""
    # Not `rev-list -- RECORD`: it leaves out a commit with the record of its second parent, as flows.champions.machines makes them.
    blobs = git("cat-file", "--batch-check=%(objectname)", text=names, folder=folder).splitlines()
    return [commit for commit, before, blob in zip(commits, blobs, blobs[1:], strict=False) if blob != before and " " not in blob]


def is_ancestor(folder: Path, first: str, second: str) -> bool:
    """Whether commit `first` is `second`, or before it."""
    try:
        git("merge-base", "--is-ancestor", first, second, folder=folder)
    except GitFailed:  # status 1: it is not, or the two have nothing in common
        return False
    return True
