"""Code in git's history: the commit that has what a stage ran."""

import hashlib
import io
import os
import tempfile
from collections.abc import Collection
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from flows.repository.git import GitFailed, git
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
        self._folder = tempfile.TemporaryDirectory()  # code of the commit looked at last: few files change from one to the next
        self._files: dict[str, str] = {}  # git's id of each file in that folder

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
        for commit in self._commits:
            if commit not in self._digests:
                self._digests[commit] = self._code_of(commit).stage_digests()
            if self._digests[commit].get(stage) == digest:
                return commit
        return ""

    def commit_of_reference(self, name: str, digest: str) -> str:
        """The same for code that a parameter names: `tasks.train.mine:loss`."""
        for commit in self._commits:
            if (commit, name) not in self._named:
                self._named[commit, name] = _frozen(name, self._code_of(commit))
            if self._named[commit, name] == f"{name}@{digest}":
                return commit
        return ""

    def absence(self, *, limited: bool) -> str:
        """What no commit found means: that the code is uncommitted, or that not all of history was searched.

        `limited`: of the searches that read LOOKED_AT commits at most.
        """
        if git("rev-parse", "--is-shallow-repository").strip() == "true":
            return "not in git's history here, which is shallow"
        if limited and len(self._commits) == LOOKED_AT:
            return f"not in the last {LOOKED_AT} commits of {PACKAGE}"
        return "uncommitted"

    @cached_property
    def _commits(self) -> list[str]:
        return git("log", f"--max-count={LOOKED_AT}", "--format=%H", self._head, "--", PACKAGE).splitlines()

    def _code_of(self, commit: str) -> Reader:
        """The code of stages in a commit; valid until the next call."""
        folder, files = Path(self._folder.name), _files_in(commit, PACKAGE)
        changed = {name: blob for name, blob in files.items() if self._files.get(name) != blob}
        contents = _read_blobs(set(changed.values()))
        for name in self._files.keys() - files.keys():
            (folder / name).unlink()
            with suppress(OSError):  # other files are in it
                os.removedirs((folder / name).parent)
        for name, blob in changed.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(contents[blob])
        self._files = files
        return Reader(folder)


def _frozen(name: str, reader: Reader) -> str:
    """The reference `name` as `reader` freezes it; empty if its code lacks it."""
    try:
        return str(freeze_references(name, reader))
    except UserError:
        return ""


def _tree_digest(commit: str, path: str) -> str:
    """DVC's digest of a file, or of a folder (`.dir`), in a commit; empty if the commit lacks it."""
    files = _files_in(commit, path)
    blobs = _read_blobs(set(files.values()))
    digests = {name: hashlib.md5(blobs[blob], usedforsecurity=False).hexdigest() for name, blob in files.items()}
    if list(digests) == [path]:
        return digests[path]
    return folder_digest({name.removeprefix(f"{path}/"): digest for name, digest in digests.items()}) if digests else ""


def _files_in(commit: str, path: str) -> dict[str, str]:
    """git's ids of the contents of a file, or of all files of a folder, in a commit, by path. Submodules are left out."""
    listed = (line.split("\t", 1) for line in git("ls-tree", "-r", "-z", commit, "--", f"./{path}").split("\0") if line)
    return {name: about.split()[2] for about, name in listed if about.split()[1] == "blob"}


def _read_blobs(blobs: Collection[str]) -> dict[str, bytes]:
    """The contents of git's blobs, by id, read by one process. GitFailed if one is missing, as from an incomplete clone."""
    if not blobs:
        return {}
    output = git("cat-file", "--batch", text="".join(f"{blob}\n" for blob in blobs))
    stream = io.BytesIO(f"{output}\n".encode("utf-8", "surrogateescape"))
    contents = {}
    for _ in blobs:
        blob, kind, *size = stream.readline().decode().split()
        if not size:
            raise GitFailed(f"git cat-file: {blob}: {kind}; fetch it again (git fsck lists what is missing)")
        contents[blob] = stream.read(int(size[0]))
        stream.read(1)  # the newline after it
    return contents
