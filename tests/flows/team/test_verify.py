"""What is corrupt in a cache or on a remote is found, and put back by the next run or push."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from dvc.fs import LocalFileSystem

from flows.storage import cache as integrity
from flows.team import remotes, sync
from flows.team.verify import verify_remote
from tasks.core.errors import UserError

DVC = (sys.executable, "-m", "dvc")


def test_what_is_corrupt_on_a_remote_is_pushed_again(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A file of a folder: plain `dvc push` trusts the folder's listing on the remote."""
    remote = tmp_path / "remote"
    remotes.add("team", str(remote), [])
    (root / "folder").mkdir()
    for name in ("a", "b"):
        (root / "folder" / name).write_text(name)
    subprocess.run([*DVC, "add", "--quiet", "folder"], check=True, env=os.environ | {"DVC_NO_ANALYTICS": "1"})

    def push() -> dict[str, bytes]:
        subprocess.run([sys.executable, "-m", "flows.storage.dvc", "push"], check=True)
        return {integrity.object_id(path): path.read_bytes() for path in integrity.objects(remote / "files/md5")}

    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[3]))
    sent = push()
    assert len(sent) == 3
    (damaged,) = (path for path in integrity.objects(remote / "files/md5") if path.read_text() == "a")
    damaged.chmod(0o644)
    damaged.write_text("x")
    sync.PUSHED.parent.mkdir(exist_ok=True)
    sync.PUSHED.write_text("{}")
    capfd.readouterr()
    assert verify_remote("team") == 1
    out, err = capfd.readouterr()
    assert (len(err.splitlines()), "3 objects, 0.0 MB read, 1 corrupt" in out) == (2, True)
    assert not sync.PUSHED.exists(), "the next run pushes, though it computes nothing"
    assert push() == sent
    assert verify_remote("team") == 0
    damaged.unlink()
    assert verify_remote("team") == 1, "gone by other means: its listing hides that as well"
    assert push() == sent


class Team:
    """A remote with two objects, the first of them corrupt, and a listing of both."""

    def __init__(self, remote: Path) -> None:
        remotes.add("team", str(remote), [])
        self.objects = remote / "files/md5"
        oids = sorted(hashlib.md5(content).hexdigest() for content in (b"a", b"b"))
        self.first, self.second = (integrity.object_path(self.objects, oid) for oid in oids)
        text = json.dumps([{"md5": oid, "relpath": oid} for oid in oids])
        self.listing = integrity.object_path(self.objects, hashlib.md5(text.encode()).hexdigest() + ".dir")
        contents = {hashlib.md5(content).hexdigest(): content for content in (b"a", b"b")}
        for path, content in ((self.first, b"x"), (self.second, contents[oids[1]]), (self.listing, text.encode())):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        sync.PUSHED.parent.mkdir(exist_ok=True)
        sync.PUSHED.write_text("{}")


@pytest.fixture
def team(root: Path, tmp_path: Path) -> Team:
    assert root == Path.cwd()
    return Team(tmp_path / "remote")


@pytest.mark.parametrize("at", ["open", "remove"])
def test_what_was_removed_before_a_connection_is_lost_is_pushed_again(at: str, team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    """No listing on the remote, and no record of the last push, may vouch for it."""
    genuine = getattr(LocalFileSystem, at)
    last = team.second if at == "open" else team.first

    def lose(self: Any, path: str, *arguments: Any, **more: Any) -> Any:
        if path == str(last):
            raise ConnectionError("lost")
        return genuine(self, path, *arguments, **more)

    monkeypatch.setattr(LocalFileSystem, at, lose)
    with pytest.raises(UserError, match="remote team: cannot be read: lost"):
        verify_remote("team")
    assert team.first.exists() == (at == "remove")
    assert not team.listing.exists()
    assert not sync.PUSHED.exists()


def test_what_a_colleague_removes_meanwhile_ends_no_check(
    team: Team, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    genuine = LocalFileSystem.open

    def collect(self: Any, path: str, *arguments: Any, **more: Any) -> Any:
        if path == str(team.first):
            for removed in (team.listing, team.first):
                removed.unlink()
        return genuine(self, path, *arguments, **more)

    monkeypatch.setattr(LocalFileSystem, "open", collect)
    assert verify_remote("team") == 0
    assert "remote team: 2 objects, 0.0 MB read, 0 corrupt\n" in capsys.readouterr().out
