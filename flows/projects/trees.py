"""The three trees of an upgrade and their merge by git, in a temporary clone: the project gets the result or nothing.

Base is the Retemper that the project was made from, theirs the newer one, ours the project. Files of Retemper that a project does not have
(tests, benchmarks, removed docs) are left out of base and theirs, so that they do not come back. So are files that belong to the project
only; git keeps them, like everything that only ours has.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from flows.projects.record import RECORD
from flows.repository.git import GitFailed, git
from tasks.core.errors import UserError, redacted

CODE = ("flows/", "tasks/")
OWN = ("params.yaml", "retraining.yaml", "runtime.yaml", "dvc.lock", "data/source.json", str(RECORD))  # `migrations` edits some of them
README = "README.md"
FETCHED = "refs/retemper"
SEVERAL = 8  # files in conflict that are named

Files = Mapping[str, str]  # path to "MODE BLOB"


@dataclass(frozen=True)
class Trees:
    """The sides of the merge: files of base, ours, and theirs by path, below the project's folder."""

    base: Files
    ours: Files
    theirs: Files


def fetch(source: str, clone: Path) -> None:
    """Fetch every branch and tag of a repository of Retemper, and its HEAD. Raises UserError if that fails."""
    heads = [f"+refs/{kind}/*:{FETCHED}/{kind}/*" for kind in ("heads", "tags")]
    try:
        git("fetch", "--quiet", "--no-tags", "--", source, *heads, f"+HEAD:{FETCHED}/HEAD", folder=clone)
    except GitFailed as error:
        raise UserError(f"{redacted(source)}: {error}; expected the URL or folder of a git repository of Retemper") from None


def resolve(revision: str, clone: Path) -> str:
    """The fetched commit that a branch, tag, or id names. Raises UserError if there is none."""
    for name in (f"{FETCHED}/heads/{revision}", f"{FETCHED}/tags/{revision}", f"{FETCHED}/{revision}", revision):
        if commit := git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}", folder=clone, check=False):
            return commit
    raise UserError(
        f"revision {revision}: not found in the source, expected a branch, tag, or commit of Retemper; check the source and --to"
    )


def common_base(head: str, new: str, clone: Path) -> str:
    """The commit where the project's history branched off from Retemper's; empty if they share none."""
    return git("merge-base", head, new, folder=clone, check=False)


def files_of(tree: str, clone: Path) -> dict[str, str]:
    """The files of a commit or tree, without submodules."""
    lines = filter(None, git("ls-tree", "-r", "-z", "--full-tree", tree, folder=clone).split("\0"))
    entries = (line.partition("\t") for line in lines)
    return {path: f"{entry.split()[0]} {entry.split()[2]}" for entry, _, path in entries if not entry.startswith("160000")}


def adapt(trees: Trees, *, ours: Collection[str] = (), theirs: Collection[str] = ()) -> Trees:
    """The trees, with base and theirs without the files that only Retemper or only the project should have.

    Files named in `ours` stay as in the project; those in `theirs` become as in Retemper. Raises UserError for a name that neither has.
    """
    for name in (*ours, *theirs):
        if name not in trees.ours and name not in trees.theirs:
            raise UserError(
                f"{name}: found in neither the project nor the newer Retemper, expected a file that is in conflict; fix the path"
            )
    excluded = {path for path in trees.base if path not in trees.ours and not path.startswith(CODE)}
    folders = {path.split("/")[0] for path in trees.base if "/" in path}
    kept_folders = {path.split("/")[0] for path in trees.base if "/" in path and path in trees.ours}
    excluded |= {path for path in trees.theirs if path not in trees.base and "/" in path and path.split("/")[0] in folders - kept_folders}
    excluded -= {*ours, *theirs}
    project_only = {*OWN, *ours, *({README} if trees.ours.get(README) != trees.base.get(README) else ())} - set(theirs)
    base, newer = (
        {path: entry for path, entry in side.items() if path not in excluded and path not in project_only}
        for side in (trees.base, trees.theirs)
    )
    for path in theirs:
        base.pop(path, None)
        if path in trees.ours:
            base[path] = trees.ours[path]
    return Trees(base, trees.ours, newer)


def write_tree(files: Files, prefix: str, clone: Path) -> str:
    """Write a git tree of these files below `prefix` (empty, or ending in a slash); return its id."""
    index = {"GIT_INDEX_FILE": str(clone / ".git" / "retemper-index")}
    git("read-tree", "--empty", folder=clone, env=index)
    lines = "".join(f"{entry}\t{prefix}{path}\0" for path, entry in files.items())
    git("update-index", "-z", "--index-info", folder=clone, env=index, text=lines)
    return git("write-tree", folder=clone, env=index)


def merge(trees: Trees, head: str, *, prefix: str, clone: Path) -> None:
    """Check out, in the clone, the project at `head` merged with the changes from base to theirs.

    Raises UserError, with the files and the remedy, if both sides changed the same lines.
    """

    def commit(tree: str, *parents: str) -> str:
        return git("commit-tree", tree, *(word for parent in parents for word in ("-p", parent)), "-m", "upgrade", folder=clone)

    base = commit(write_tree(trees.base, prefix, clone))
    ours, theirs = commit(f"{head}^{{tree}}", base), commit(write_tree(trees.theirs, prefix, clone), base)
    git("checkout", "--quiet", "--detach", ours, folder=clone)
    try:
        git("merge", "--quiet", "--no-commit", "--no-ff", "--no-verify", theirs, folder=clone)
    except GitFailed:
        unmerged = git("diff", "--name-only", "--diff-filter=U", "-z", folder=clone).split("\0")
        names = [name.removeprefix(prefix) for name in unmerged if name]
        if not names:
            raise
        shown = f"{', '.join(names[:SEVERAL])}{f' and {len(names) - SEVERAL} more' if names[SEVERAL:] else ''}"
        raise UserError(
            f"{shown}: changed both in this project and in the newer Retemper; nothing was changed; for each file, keep yours with "
            f"--ours FILE, or take the newer one with --theirs FILE, then make your change again"
        ) from None
