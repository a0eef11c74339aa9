"""What has no other copy stays: an uncommitted result, an object that a shared cache has corrupt, and what is being copied to one."""

import hashlib
import shutil
import subprocess
from contextlib import chdir
from pathlib import Path
from typing import Any

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


def add_result(project: Path, content: bytes) -> str:
    """Make a repository with one result, in its own cache and in dvc.lock; return its digest."""
    git("init", "--quiet", str(project), folder=project.parent)
    (project / ".dvc").mkdir()
    (project / ".dvc/config").touch()
    (project / "dvc.yaml").write_text("stages:\n  make: {cmd: x, outs: [data/x]}\n")
    oid = hashlib.md5(content).hexdigest()
    (project / "dvc.lock").write_text(f"schema: '2.0'\nstages:\n  make: {{cmd: x, outs: [{{path: data/x, hash: md5, md5: {oid}}}]}}\n")
    cached = object_path(project / ".dvc/cache/files/md5", oid)
    cached.parent.mkdir(parents=True)
    cached.write_bytes(content)
    return oid


@pytest.fixture
def colleague(tmp_path: Path, toy_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Path:
    """The project of a colleague, with the shared cache `tmp_path/shared`."""
    for name, value in toy_environment.items():
        monkeypatch.setenv(name, value)
    project = tmp_path / "theirs"
    add_result(project, b"theirs")
    with chdir(project):
        remotes.share(tmp_path / "shared")
    return project


def test_a_gc_of_others_keeps_what_is_being_copied(colleague: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The project was unknown there until all was copied: its copies were garbage, and then its own cache was removed."""
    oid = add_result(tmp_path / "ours", b"ours")
    remove_folder = shutil.rmtree

    def remove_after_gc(folder: Path, **options: Any) -> None:
        with chdir(colleague):
            gc.collect(False, None, print)
        remove_folder(folder, **options)

    monkeypatch.chdir(tmp_path / "ours")
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", remove_after_gc)
        remotes.share(tmp_path / "shared")
    assert not Path(".dvc/cache").exists()
    assert object_path(tmp_path / "shared/files/md5", oid).read_bytes() == b"ours"


def test_a_gc_of_others_that_began_before_removes_nothing(colleague: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    oid = add_result(tmp_path / "ours", b"ours")
    find_needs = gc.find_needs

    def find_after_sharing(*arguments: Any) -> gc.Needs:
        with chdir(tmp_path / "ours"):
            remotes.share(tmp_path / "shared")
        return find_needs(*arguments)

    monkeypatch.setattr(gc, "find_needs", find_after_sharing)
    with chdir(colleague), pytest.raises(UserError, match=r"shared: another project began to use it meanwhile.* run retemper gc again"):
        gc.collect(False, None, print)
    assert object_path(tmp_path / "shared/files/md5", oid).read_bytes() == b"ours"


def test_a_tree_that_began_meanwhile_keeps_what_it_relies_on(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An evaluation or a sweep makes trees of its own, whose needs were not read."""
    garbage = object_path(root / ".dvc/cache/files/md5", "a" * 32)
    garbage.parent.mkdir(parents=True)
    garbage.touch()
    find_needs = gc.find_needs

    def find_and_begin(*arguments: Any) -> gc.Needs:
        needs = find_needs(*arguments)
        git("worktree", "add", "--quiet", "--detach", str(tmp_path / "begun"), folder=root)
        return needs

    with monkeypatch.context() as patched, pytest.raises(UserError, match="another working tree began to use it meanwhile"):
        patched.setattr(gc, "find_needs", find_and_begin)
        gc.collect(False, None, print)
    assert garbage.exists()
    gc.collect(False, None, print)
    assert not garbage.exists()


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
