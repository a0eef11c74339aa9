"""What is corrupt in a cache or on a remote is found, and put back by the next run or push."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flows.storage import cache as integrity
from flows.team import remotes, sync
from flows.team.verify import verify_remote

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
