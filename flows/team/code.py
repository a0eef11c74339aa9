"""Code in git's history: the commit that has what a stage ran."""

import hashlib
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flows.repository.git import git
from flows.storage.cache import folder_digest
from tasks.core.errors import UserError
from tasks.core.stage.code import PACKAGE, Reader
from tasks.core.stage.references import freeze_references

LOOKED_AT = 100  # commits of code searched for the one that made an artifact


class Code:
    """Finds the latest commit, going back from `head`, in which a file or folder of code has a given content."""

    def __init__(self, head: str) -> None:
        self._head = head
        self._history: dict[str, dict[str, str]] = {}
        self._digests: dict[str, dict[str, str]] = {}  # of every stage's code, by commit
        self._named: dict[tuple[str, str], str] = {}  # code that parameters name, frozen, by commit and name

    def commit(self, path: str, digest: str) -> str:
        """The commit's id; empty if no commit up to `head` has that content."""
        known = self._history.setdefault(path, {})
        if digest not in known:
            for commit in git("log", "--format=%H", self._head, "--", path).splitlines():
                if commit not in known.values():
                    known.setdefault(_tree_digest(commit, path), commit)
                if digest in known:
                    break
        return known.get(digest, "")

    def commit_of_stage(self, stage: str, digest: str) -> str:
        """The latest commit up to `head` in which a stage's code has that digest; empty if none of the last LOOKED_AT commits has it."""
        for commit in self._commits():
            if commit not in self._digests:
                with _code_of(commit) as reader:
                    self._digests[commit] = reader.stage_digests()
            if self._digests[commit].get(stage) == digest:
                return commit
        return ""

    def commit_of_reference(self, name: str, digest: str) -> str:
        """The same for code that a parameter names: `tasks.train.mine:loss`."""
        for commit in self._commits():
            if (commit, name) not in self._named:
                with _code_of(commit) as reader:
                    self._named[commit, name] = _frozen(name, reader)
            if self._named[commit, name] == f"{name}@{digest}":
                return commit
        return ""

    def _commits(self) -> list[str]:
        return git("log", f"--max-count={LOOKED_AT}", "--format=%H", self._head, "--", PACKAGE).splitlines()


@contextmanager
def _code_of(commit: str) -> Iterator[Reader]:
    """The code of stages in a commit."""
    with tempfile.TemporaryDirectory() as folder:
        for line in filter(None, git("ls-tree", "-r", "-z", commit, "--", f"./{PACKAGE}").split("\0")):
            file = Path(folder, line.split("\t", 1)[1])
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(_blob(line.split()[2]))
        yield Reader(Path(folder))


def _frozen(name: str, reader: Reader) -> str:
    """The reference `name` as `reader` freezes it; empty if its code lacks it."""
    try:
        return str(freeze_references(name, reader))
    except UserError:
        return ""


def _tree_digest(commit: str, path: str) -> str:
    """DVC's digest of a file, or of a folder (`.dir`), in a commit; empty if the commit lacks it."""
    listed = git("ls-tree", "-r", "-z", commit, "--", f"./{path}").split("\0")
    files = {line.split("\t", 1)[1]: line.split()[2] for line in listed if line}
    digests = {name: hashlib.md5(_blob(oid), usedforsecurity=False).hexdigest() for name, oid in files.items()}
    if list(digests) == [path]:
        return digests[path]
    return folder_digest({name.removeprefix(f"{path}/"): digest for name, digest in digests.items()}) if digests else ""


def _blob(oid: str) -> bytes:
    return subprocess.run(["git", "cat-file", "blob", oid], capture_output=True, check=True).stdout
