"""The git worktree of scheduled runs, over the project's DVC cache: made, repaired and committed from; nobody's own tree is touched.

It stands in `.retemper/retraining` with a detached HEAD. Its commits are made by plumbing, so no hook, no identity, no
signing key and no branch that somebody has checked out can stand in the way.
"""

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from flows.repository.lock import GIT, NOBODY
from tasks.core.stage.errors import UserError

FOLDER = Path(".retemper/retraining")
BRANCH = "refs/heads/retemper/retraining"
TAGS = "refs/tags/champion/"
ASK_SECONDS, SEND_SECONDS = 60, 300  # to a git remote, at most
RECORD = "retraining.json"
KEPT = ("dvc.lock", "data/source.json")  # of the last retraining, whatever the followed branch has
COMMITTED = (*KEPT, "params.yaml", RECORD)
ZERO = "0" * 40


class GitFailed(UserError):
    """git refused: its own last line."""


def git(folder: Path, *words: str, text: str = "", timeout: float | None = None) -> str:
    """The output of a git command in `folder`, less its last newline; GitFailed where it fails. Never asks, never opens an editor."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_") or name.startswith("GIT_CONFIG")}
    quiet = {"GIT_TERMINAL_PROMPT": "0", "GIT_EDITOR": "true", "LC_ALL": "C"}
    try:
        done = subprocess.run(
            [*GIT, *words], cwd=folder, env=env | NOBODY | quiet, input=text, capture_output=True, text=True, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired:
        raise GitFailed(f"git {words[0]}: no answer within {timeout:g} s") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if not line.startswith("hint:")] or [f"status {done.returncode}"]
        told = next((line for line in lines if line.startswith(("fatal:", "error:", " !"))), lines[-1])
        raise GitFailed(f"git {words[0]}: {told.strip()}")
    return done.stdout.rstrip("\n")


def resolve(folder: Path, revision: str) -> str | None:
    """The commit that `revision` names, None where there is none."""
    try:
        return git(folder, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    except GitFailed:
        return None


@dataclass(frozen=True)
class Tree:
    """The worktree: its root, the project's folder in it, the commit it follows and the last commit of the branch."""

    root: Path
    folder: Path
    followed: str
    tip: str | None


def prepare(project: Path, follow: str, warn: Callable[[str], None]) -> Tree:
    """The worktree at commit `follow` of `project`'s repository; absent or half-made by a kill, it is made anew.

    `dvc.lock` and what it belongs to are those of the last retraining, so that nothing is computed twice. One process at a
    time (the caller holds a lock): git locks found here were left by a dead one. What other machines have done comes first.
    """
    followed = resolve(project, follow)
    if followed is None:
        raise UserError(f"{follow}: no such commit, branch or tag; commit the project first, or name one with --follow")
    root = (project / FOLDER).resolve()
    refuse_taken_names(project)
    common = Path(git(project, "rev-parse", "--path-format=absolute", "--git-common-dir"))
    for left in (common / f"{BRANCH}.lock", *(common / TAGS).glob("*.lock")):
        left.unlink(missing_ok=True)
    if problem := fetch(project):
        warn(problem)
    if not is_worktree(root, common):
        shutil.rmtree(root, ignore_errors=True)
        git(project, "worktree", "prune")
        git(project, "worktree", "add", "--force", "--detach", "--no-checkout", str(root), followed)
    Path(git(root, "rev-parse", "--absolute-git-dir"), "index.lock").unlink(missing_ok=True)
    git(root, "checkout", "--quiet", "--force", "--detach", followed)
    folder = root / git(project, "rev-parse", "--show-prefix")
    if not (folder / "dvc.yaml").exists():
        raise UserError(f"{follow}: no dvc.yaml in commit {followed[:12]}; commit it first")
    tip = resolve(project, BRANCH)
    for name in KEPT if tip else ():
        if tip and git(folder, "ls-tree", tip, "--", name):
            git(folder, "checkout", "--quiet", "--force", tip, "--", name)
    share_settings(project, folder)
    for name in ("runtime.yaml",):
        (folder / name).unlink(missing_ok=True)
        if (project / name).exists():
            shutil.copy(project / name, folder / name)
    return Tree(root, folder, followed, tip)


def refuse_taken_names(project: Path) -> None:
    """UserError where a branch or tag stands in the way of ours: git keeps none below it, and says so when all has been computed."""
    for name, move in ((BRANCH.rpartition("/")[0], "git branch -m {0} NEW"), (TAGS.rstrip("/"), "git tag NEW {0} && git tag -d {0}")):
        if name in git(project, "for-each-ref", "--format=%(refname)", name).splitlines():
            short = name.rpartition("/")[2]
            raise UserError(f"{name}: git can keep no {short}/... beside it, which retrainings need; rename it: {move.format(short)}")


def is_worktree(root: Path, common: Path) -> bool:
    """Whether `root` (resolved) is a working tree, whole enough for git, of the repository whose git folder is `common`."""
    if not (root / ".git").is_file():
        return False
    try:
        shown = git(root, "rev-parse", "--path-format=absolute", "--show-toplevel", "--git-common-dir").splitlines()
    except (GitFailed, OSError):
        return False
    return [Path(line).resolve() for line in shown] == [root, common.resolve()]


def share_settings(project: Path, folder: Path, own_cache: bool = False) -> None:
    """Give a worktree the project's DVC settings that git does not carry: its cache, local settings, where folder remotes are."""
    from dvc.config import Config
    from dvc.repo import Repo

    with Repo(str(project)) as repo:
        cache = repo.cache.local_cache_dir
        local = Config(str(project / ".dvc"), validate=False).load_one("local")
        urls = {name: remote["url"] for name, remote in repo.config["remote"].items() if Path(remote.get("url", "")).is_absolute()}
    (folder / ".dvc/config.local").unlink(missing_ok=True)
    settings = Config(str(folder / ".dvc"), validate=False)
    with settings.edit("local", validate=False) as edited:
        edited.update(local)
        edited.setdefault("cache", {}).pop("dir", None)
        if not own_cache:
            edited["cache"]["dir"] = cache
        for name, url in urls.items():
            edited.setdefault("remote", {}).setdefault(name, {})["url"] = url
    (folder / ".dvc/config.local").chmod(0o600)


def commit(tree: Tree, message: str) -> str:
    """Make a commit of what a retraining made, after the branch's last one and the followed one; no branch moves yet."""
    here = [name for name in COMMITTED if (tree.folder / name).exists()]
    git(tree.folder, "add", "--force", "--", *here)
    content = git(tree.root, "write-tree")
    parents = [tree.tip] if tree.tip else []
    if not tree.tip or not _is_ancestor(tree.root, tree.followed, tree.tip):
        parents.append(tree.followed)
    return git(tree.root, "commit-tree", content, *(word for parent in parents for word in ("-p", parent)), text=message)


def move(folder: Path, updates: Sequence[str]) -> None:
    """Carry out lines of `git update-ref --stdin` together, or none of them."""
    git(folder, "update-ref", "--stdin", text="\n".join(["start", *updates, "prepare", "commit", ""]))


def _is_ancestor(folder: Path, first: str, second: str) -> bool:
    try:
        git(folder, "merge-base", "--is-ancestor", first, second)
    except GitFailed:  # status 1: it is none, be it that the two have nothing in common
        return False
    return True


def fetch(project: Path) -> str | None:
    """Take over what other machines have added to the branch and the tags; a remote that is away in one line, else None.

    UserError where both sides have added something: nobody can say which champion is the one.
    """
    remote = _remote(project)
    if not remote:
        return None
    here = _refs(project)
    try:
        there = _refs_of(project, remote)
        new = {name: digest for name, digest in there.items() if here.get(name) != digest}
        if new:
            git(project, "fetch", "--quiet", "--no-tags", "--no-write-fetch-head", remote, *new, timeout=SEND_SECONDS)
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
            git(project, "push", "--quiet", "--no-verify", remote, *ahead, timeout=SEND_SECONDS)
    except GitFailed as error:
        return f"git remote {remote}: branch and tags are not pushed, the next run tries again: {_without_address(error)}"
    return None


def _remote(project: Path) -> str | None:
    remotes = git(project, "remote").split()
    return "origin" if "origin" in remotes else next(iter(remotes), None)


def _refs(project: Path) -> dict[str, str]:
    """Digest of the branch and of every champion's tag here, by name."""
    listed = git(project, "for-each-ref", "--format=%(refname) %(objectname)", BRANCH, TAGS.rstrip("/"))
    return dict(line.split() for line in listed.splitlines())


def _refs_of(project: Path, remote: str) -> dict[str, str]:
    listed = git(project, "ls-remote", "--refs", remote, BRANCH, f"{TAGS}*", timeout=ASK_SECONDS)
    return {name: digest for digest, name in (line.split("\t") for line in listed.splitlines())}


def _without_address(error: GitFailed) -> str:
    return " ".join("(address)" if "://" in word or "@" in word else word for word in str(error).split())
