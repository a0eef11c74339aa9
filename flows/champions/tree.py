"""The git worktree of scheduled runs, over the project's DVC cache. The user's own tree is never touched.

It is in `.retemper/retraining`, with a detached HEAD. Commits are made by plumbing, so hooks, a missing identity, signing
keys, and branches that are checked out elsewhere do not interfere.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from flows.repository.git import NOBODY, GitFailed, git
from flows.repository.worktree import equip, make_worktree
from tasks.core.stage.errors import UserError

FOLDER = Path(".retemper/retraining")
BRANCH = "refs/heads/retemper/retraining"
TAGS = "refs/tags/champion/"
ASK_SECONDS, SEND_SECONDS = 60, 300  # to a git remote, at most
RECORD = "retraining.json"
KEPT = ("dvc.lock", "data/source.json")  # of the last retraining, whatever the followed branch has
COMMITTED = (*KEPT, "params.yaml", RECORD)
ZERO = "0" * 40


def resolve(folder: Path, revision: str) -> str | None:
    """The commit that `revision` names, None where there is none."""
    try:
        return git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}", folder=folder)
    except GitFailed:
        return None


@dataclass(frozen=True)
class Tree:
    """The worktree: its root, the project's folder in it, the commit it follows and the last commit of the branch."""

    root: Path
    folder: Path
    followed: str
    tip: str | None


def folder_of(project: Path) -> Path:
    """The project's folder in the worktree."""
    return (project / FOLDER).resolve() / git("rev-parse", "--show-prefix", folder=project)


def prepare(project: Path, follow: str, warn: Callable[[str], None]) -> Tree:
    """The worktree at commit `follow` of `project`'s repository; made again if it is missing or a kill left it half-made.

    `dvc.lock` and data/source.json are those of the last retraining, so that nothing is computed twice. One process at a time
    (the caller holds a lock): git locks found here were left by a process that died. Other machines' results are fetched first.
    """
    followed = resolve(project, follow)
    if followed is None:
        raise UserError(f"{follow}: no such commit, branch or tag; commit the project first, or name one with --follow")
    root = (project / FOLDER).resolve()
    refuse_taken_names(project)
    common = Path(git("rev-parse", "--path-format=absolute", "--git-common-dir", folder=project))
    for left in (common / f"{BRANCH}.lock", *(common / TAGS).glob("*.lock")):
        left.unlink(missing_ok=True)
    if problem := fetch(project):
        warn(problem)
    folder = make_worktree(root, followed, project, clean=False)  # what the last retraining made is still there
    if not (folder / "dvc.yaml").exists():
        raise UserError(f"{follow}: no dvc.yaml in commit {followed[:12]}; commit it first")
    tip = resolve(project, BRANCH)
    for name in KEPT if tip else ():
        if tip and git("ls-tree", tip, "--", name, folder=folder):
            git("checkout", "--quiet", "--force", tip, "--", name, folder=folder)
    equip(folder, project)
    return Tree(root, folder, followed, tip)


def refuse_taken_names(project: Path) -> None:
    """UserError if a branch or tag has a name that ours need as a folder: git would refuse them only after everything has run."""
    for name, move in ((BRANCH.rpartition("/")[0], "git branch -m {0} NEW"), (TAGS.rstrip("/"), "git tag NEW {0} && git tag -d {0}")):
        if name in git("for-each-ref", "--format=%(refname)", name, folder=project).splitlines():
            short = name.rpartition("/")[2]
            raise UserError(f"{name}: git can keep no {short}/... beside it, which retrainings need; rename it: {move.format(short)}")


def commit(tree: Tree, message: str) -> str:
    """Make a commit of what a retraining made, after the branch's last one and the followed one; no branch moves yet."""
    here = [name for name in COMMITTED if (tree.folder / name).exists()]
    git("add", "--force", "--", *here, folder=tree.folder)
    content = git("write-tree", folder=tree.root)
    parents = [tree.tip] if tree.tip else []
    if not tree.tip or not _is_ancestor(tree.root, tree.followed, tree.tip):
        parents.append(tree.followed)
    return git("commit-tree", content, *(word for parent in parents for word in ("-p", parent)), text=message, folder=tree.root, env=NOBODY)


def move(folder: Path, updates: Sequence[str]) -> None:
    """Carry out lines of `git update-ref --stdin` together, or none of them."""
    git("update-ref", "--stdin", text="\n".join(["start", *updates, "prepare", "commit", ""]), folder=folder)


def _is_ancestor(folder: Path, first: str, second: str) -> bool:
    try:
        git("merge-base", "--is-ancestor", first, second, folder=folder)
    except GitFailed:  # status 1: it is not, or the two have nothing in common
        return False
    return True


def fetch(project: Path) -> str | None:
    """Fetch what other machines have added to the branch and the tags. Returns one line if the remote is unavailable, else None.

    UserError if both sides have added something: it is unclear which champion is right.
    """
    remote = _remote(project)
    if not remote:
        return None
    here = _refs(project)
    try:
        there = _refs_of(project, remote)
        new = {name: digest for name, digest in there.items() if here.get(name) != digest}
        if new:
            git("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", remote, *new, timeout=SEND_SECONDS, folder=project)
    except GitFailed as error:
        return f"git remote {remote}: not asked for the champions of other machines: {_without_address(error)}"
    ahead = BRANCH in new and BRANCH in here and _is_ancestor(project, new[BRANCH], here[BRANCH])
    split = BRANCH in new and BRANCH in here and not ahead and not _is_ancestor(project, here[BRANCH], new[BRANCH])
    parted = [name for name in new if (split if name == BRANCH else name in here)]
    if parted:
        names = ", ".join(name.removeprefix("refs/heads/").removeprefix("refs/tags/") for name in parted)
        raise UserError(
            f"{names}: another here than on git remote {remote}, for two machines retrained at once; delete the one here "
            f"(git update-ref -d {parted[0]}) to go on with the remote's"
        )
    updates = [f"update {name} {digest} {here.get(name, ZERO)}" for name, digest in new.items() if not (ahead and name == BRANCH)]
    if updates:
        move(project, updates)
    return None


def push(project: Path) -> str | None:
    """Push branch and tags to the git remote, where there is one; what went wrong in one line without its address, else None."""
    remote, refs = _remote(project), _refs(project)
    if not (remote and refs):
        return None
    try:
        there = _refs_of(project, remote)
        if ahead := [name for name, digest in refs.items() if there.get(name) != digest]:
            git("push", "--quiet", "--no-verify", remote, *ahead, timeout=SEND_SECONDS, folder=project)
    except GitFailed as error:
        return f"git remote {remote}: branch and tags are not pushed, the next run tries again: {_without_address(error)}"
    return None


def _remote(project: Path) -> str | None:
    remotes = git("remote", folder=project).split()
    return "origin" if "origin" in remotes else next(iter(remotes), None)


def _refs(project: Path) -> dict[str, str]:
    """Digest of the branch and of every champion's tag here, by name."""
    listed = git("for-each-ref", "--format=%(refname) %(objectname)", BRANCH, TAGS.rstrip("/"), folder=project)
    return dict(line.split() for line in listed.splitlines())


def _refs_of(project: Path, remote: str) -> dict[str, str]:
    listed = git("ls-remote", "--refs", remote, BRANCH, f"{TAGS}*", timeout=ASK_SECONDS, folder=project)
    return {name: digest for digest, name in (line.split("\t") for line in listed.splitlines())}


def _without_address(error: GitFailed) -> str:
    return " ".join("(address)" if "://" in word or "@" in word else word for word in str(error).split())
