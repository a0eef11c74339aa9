"""Outs of a commit from a real cache and a real remote, both of which may have corrupt or missing objects."""

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from flows.champions import champion, outs
from flows.champions.outs import Lost
from flows.repository.git import git
from flows.storage.cache import object_path
from tasks.core.errors import UserError

FILES = {"a": "one", "below/b": "two"}
LISTING = json.dumps([{"md5": hashlib.md5(text.encode()).hexdigest(), "relpath": name} for name, text in FILES.items()])
FOLDER = f"{hashlib.md5(LISTING.encode()).hexdigest()}.dir"
ONE, TWO = (hashlib.md5(text.encode()).hexdigest() for text in FILES.values())


@pytest.fixture
def project(tmp_path: Path, toy_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: a project whose one out, data/made, is in the cache and on the remote, not in the working tree."""
    for name, value in toy_environment.items():
        monkeypatch.setenv(name, value)
    folder = tmp_path / "project"
    folder.mkdir()
    git("init", "--quiet", folder=folder)
    subprocess.run([sys.executable, "-m", "dvc", "init", "--quiet"], cwd=folder, check=True)
    (folder / ".dvc/config").write_text("[core]\n    remote = team\n['remote \"team\"']\n    url = ../../remote\n")
    (folder / "dvc.yaml").write_text("stages: {make: {cmd: x, outs: [data/made]}}\n")
    (folder / "dvc.lock").write_text(
        f"schema: '2.0'\nstages:\n  make: {{cmd: x, outs: [{{path: data/made, hash: md5, md5: {FOLDER}, size: 6, nfiles: 2}}]}}\n"
    )
    git("add", ".", folder=folder)
    git("commit", "--quiet", "-m", "made", folder=folder)
    for root in (folder / ".dvc/cache/files/md5", tmp_path / "remote/files/md5"):
        for digest, text in ((ONE, "one"), (TWO, "two"), (FOLDER, LISTING)):
            object_path(root, digest).parent.mkdir(parents=True)
            object_path(root, digest).write_text(text)
            object_path(root, digest).chmod(0o444)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def fetch_files(project: Path) -> Callable[..., dict[str, str]]:
    """`fetch_files(path)`: the content of what was fetched, by relative name."""

    def get(path: str = "data/made") -> dict[str, str]:
        out = project.parent / "got"
        champion.get_out(project, git("rev-parse", "HEAD", folder=project), path, out=out)
        files = [out] if out.is_file() else sorted(file for file in out.rglob("*") if file.is_file())
        assert [file.name for file in project.parent.glob(".got*")] == []
        return {file.relative_to(out).as_posix(): file.read_text() for file in files}

    return get


def spoil(root: Path, digest: str) -> None:
    """Corrupt an object as a disk would: with the same time and permissions, which DVC relies on."""
    path = object_path(root, digest)
    path.chmod(0o644)
    path.write_text("bad")
    path.chmod(0o444)


def test_what_is_corrupt_in_the_cache_comes_from_the_remote(project: Path, fetch_files: Callable[..., dict[str, str]]) -> None:
    cache, remote = project / ".dvc/cache/files/md5", project.parent / "remote"
    assert fetch_files() == FILES
    assert fetch_files("data/made/below/b") == {".": "two"}
    spoil(cache, TWO)
    assert fetch_files() == FILES
    spoil(cache, ONE)
    shutil.move(remote, project.parent / "not mounted")
    with pytest.raises(UserError, match=r"^data/made: not in the cache, and no remote can be asked for it \(") as unavailable:
        fetch_files()
    assert not isinstance(unavailable.value, Lost), "it may be there once the folder is mounted"
    assert not object_path(cache, ONE).exists(), "a corrupt object is as good as none"
    shutil.move(project.parent / "not mounted", remote)
    shutil.rmtree(cache)
    assert fetch_files() == FILES
    object_path(remote / "files/md5", FOLDER).unlink()
    object_path(remote / "files/md5", ONE).unlink()
    with pytest.raises(Lost, match=r"^data/made of \w{12}: neither in the cache nor on the remote"):
        fetch_files()


def test_an_http_remote_that_does_not_answer_has_lost_nothing(project: Path) -> None:
    """fsspec reports each failure of HTTP as a missing file."""
    object_path(project / ".dvc/cache/files/md5", ONE).unlink()
    lock = champion.lock_at(project, "HEAD")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(project.parent / "remote")))
    Thread(target=server.serve_forever, daemon=True).start()
    config = project / ".dvc/config"
    config.write_text(config.read_text().replace("../../remote", f"http://127.0.0.1:{server.server_port}"))
    try:
        outs.refuse_lost(["data/made"], project=project, lock=lock)
        object_path(project.parent / "remote/files/md5", ONE).unlink()
        with pytest.raises(Lost):
            outs.refuse_lost(["data/made"], project=project, lock=lock)
    finally:
        server.shutdown()
        server.server_close()
    with pytest.raises(UserError, match=r"^data/made: not in the cache, and no remote can be asked for it \(.*127\.0\.0\.1") as unavailable:
        outs.refuse_lost(["data/made"], project=project, lock=lock)
    assert not isinstance(unavailable.value, Lost)


@pytest.mark.parametrize(("path", "digest", "file"), [("data/made", ONE, "a"), ("data/made/below/b", TWO, "b")])
def test_what_is_corrupt_on_the_remote_is_refused(
    project: Path, fetch_files: Callable[..., dict[str, str]], path: str, digest: str, file: str
) -> None:
    shutil.rmtree(project / ".dvc/cache")
    spoil(project.parent / "remote/files/md5", digest)
    with pytest.raises(Lost, match=rf"^{path} of \w{{12}}: {file} is corrupt on the remote; push it again"):
        fetch_files(path)
    assert not (project.parent / "got").exists()


def test_what_is_lost_is_known_without_a_download(project: Path) -> None:
    cache, remote = project / ".dvc/cache/files/md5", project.parent / "remote/files/md5"
    lock = champion.lock_at(project, "HEAD")

    def check(path: str = "data/made") -> None:
        outs.refuse_lost(["data/elsewhere", path], project=project, lock=lock)

    object_path(remote, ONE).unlink()
    check()
    object_path(cache, ONE).unlink()
    check("data/made/below")
    with pytest.raises(Lost, match=r"^data/made: neither in the cache nor on the remote; push it from a machine that has it"):
        check()
    share = project.parent / "remote"
    shutil.move(share, share.with_name("not mounted"))
    with pytest.raises(UserError, match=r"^data/made: .*, and no remote can be asked for it \(.*: found no .*; mount it") as unavailable:
        check()
    assert not isinstance(unavailable.value, Lost)
    shutil.move(share.with_name("not mounted"), share)
    object_path(remote, ONE).write_text("one")
    object_path(remote, ONE).chmod(0o444)
    check()
    shutil.rmtree(cache)
    check()
    assert not cache.exists()
    git("config", "--file", ".dvc/config", "--remove-section", "core", folder=project)
    with pytest.raises(Lost, match=r"^data/made: not in the cache, and no remote can be asked for it \("):
        check()  # there is none


def test_a_file_that_is_lost_is_known_by_the_listing_on_the_remote(project: Path, fetch_files: Callable[..., dict[str, str]]) -> None:
    """Another machine's cache has nothing of the out. Every retraining failed there, after its training."""
    remote, lock = project.parent / "remote/files/md5", champion.lock_at(project, "HEAD")
    shutil.rmtree(project / ".dvc/cache")
    object_path(remote, ONE).unlink()
    outs.refuse_lost(["data/made/below"], project=project, lock=lock)
    for path in ("data/made", "data/made/a", "data/made/none"):
        with pytest.raises(Lost, match=rf"^{path}: neither in the cache nor on the remote"):
            outs.refuse_lost([path], project=project, lock=lock)
    with pytest.raises(Lost, match=r"^data/made of \w{12}: neither in the cache nor on the remote"):
        fetch_files()
    spoil(remote, FOLDER)
    with pytest.raises(Lost):
        outs.refuse_lost(["data/made/below"], project=project, lock=lock)


def test_a_path_that_an_out_never_had_is_lost(fetch_files: Callable[..., dict[str, str]]) -> None:
    for path in ("data/made/none", "data/none"):
        with pytest.raises(Lost, match=rf"^{path} of \w{{12}}: no such file was recorded$"):
            fetch_files(path)


@pytest.mark.parametrize(
    "first_use",
    [
        "worktree.equip(Path('../tree'))",
        "outs.refuse_lost(['data/made'], project=Path.cwd(), lock=lock)",
        "outs.get('data/made', Path('../got'), project=Path.cwd(), commit=git('rev-parse', 'HEAD'), lock=lock)",
    ],
)
@pytest.mark.usefixtures("project")
def test_a_corrupt_memory_of_dvc_is_replaced_at_first_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first_use: str) -> None:
    """Retrainings, sweeps, and evaluations ended in a traceback, and all that is only on the remote counted as lost."""
    monkeypatch.setenv("DVC_SITE_CACHE_DIR", str(tmp_path / "site"))
    (tmp_path / "tree/.dvc").mkdir(parents=True)
    shutil.rmtree(".dvc/cache")
    subprocess.run([sys.executable, "-m", "dvc", "status", "--quiet"], check=False)  # 1: something has changed
    databases = [file for file in (tmp_path / "site").rglob("cache.db*") if file.is_file()]
    assert databases
    for database in databases:
        database.write_bytes(b"garbage" * 2000)
    imports = "from pathlib import Path\nfrom flows.champions import champion, outs\nfrom flows.repository import worktree\n"
    program = f"{imports}from flows.repository.git import git\nlock = champion.lock_at(Path.cwd(), 'HEAD')\n{first_use}"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
