"""What has no other copy stays: results of a working tree that git does not list, and an object that a shared cache has corrupt."""

import hashlib
import subprocess
from contextlib import chdir
from pathlib import Path

import pytest

from flows.process import locks
from flows.repository.git import git
from flows.storage.cache import file_md5, object_path
from flows.team import gc, remotes
from tasks.core.errors import UserError


@pytest.mark.parametrize("theirs", [b"weights", b"weig", b""], ids=["intact", "truncated", "empty"])
def test_a_corrupt_object_of_a_shared_cache_is_replaced(root: Path, tmp_path: Path, theirs: bytes) -> None:
    """Its name alone decided, and then the only intact copy was deleted."""
    (tmp_path / "weights").write_bytes(b"weights")
    oid = file_md5(tmp_path / "weights")
    own, shared = (object_path(cache / "files/md5", oid) for cache in (root / ".dvc/cache", tmp_path / "shared"))
    for path, content in ((own, b"weights"), (shared, theirs)):
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
        path.chmod(0o444)
    inode = shared.stat().st_ino
    assert "(1 file moved there" in remotes.share(tmp_path / "shared")
    assert (shared.read_bytes(), own.exists()) == (b"weights", False)
    assert (shared.stat().st_ino == inode) == (theirs == b"weights"), "an intact one stays as it is"


@pytest.mark.parametrize("place", ["submodule", "separate"])
def test_what_an_uncommitted_lock_names_stays_where_git_is_elsewhere(root: Path, tmp_path: Path, place: str) -> None:
    """git lists its own folder as the main working tree of these: gc removed what a run there had just computed."""
    project = tmp_path / "super/toy"
    project.parent.mkdir()
    if place == "submodule":
        git("init", "--quiet", folder=project.parent)
        git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(root), "toy", folder=project.parent)
    else:
        git("clone", "--quiet", "--separate-git-dir", str(tmp_path / "git"), str(root), str(project), folder=tmp_path)
    objects = project / ".dvc/cache/files/md5"
    oids = {content: hashlib.md5(content).hexdigest() for content in (b"needed", b"garbage")}
    for content, oid in oids.items():
        object_path(objects, oid).parent.mkdir(parents=True)
        object_path(objects, oid).write_bytes(content)
    out = f"outs: [{{path: data/x, hash: md5, md5: {oids[b'needed']}}}]"
    (project / "dvc.lock").write_text(f"schema: '2.0'\nstages:\n  prepare: {{cmd: x, {out}}}\n")
    with chdir(project):
        with locks.hold_run_lock(), pytest.raises(UserError, match=r"run\.lock: another run is in progress in this folder"):
            gc.collect(False, None, print)
        gc.collect(False, None, print)
    present = [object_path(objects, oid).exists() for oid in oids.values()]
    assert present == [True, False]


def test_after_a_first_run_that_failed_all_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It leaves an empty copy of the dvc.lock that there was not: no user of the shared cache could collect garbage."""
    monkeypatch.chdir(tmp_path)
    subprocess.run(["git", "init", "--quiet"], check=True)
    locks.remember()
    locks.DVC_LOCK.write_text("schema: '2.0'\nstages:\n  prepare: {cmd: x, outs: [{path: data/x, hash: md5, md5: now}]}\n")
    assert gc.find_needs([], [tmp_path]).oids == {"now"}
