"""Remotes and shared cache folders: what is written where, what is refused and undone; ten clones at once on one remote."""

import hashlib
import io
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows.cli import main
from flows.process import locks
from flows.process.processes import ending_signals
from flows.storage import cache as integrity
from flows.storage import makings
from flows.team import remotes, sync
from tasks.core.errors import UserError

DVC = (sys.executable, "-m", "dvc")


def refusal_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    config, local = Path(".dvc/config").read_bytes(), Path(".dvc/config.local").exists()
    with pytest.raises(SystemExit) as exit_info:
        main.main(arguments)
    error = capsys.readouterr().err
    assert exit_info.value.code == 2
    assert len(error.splitlines()) == 1, error
    assert (Path(".dvc/config").read_bytes(), Path(".dvc/config.local").exists()) == (config, local), "nothing was changed"
    return error


def test_a_folder_becomes_the_remote_and_is_forgotten(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["remote", "add", "team", str(tmp_path / "remote"), "--option", "type=copy"]) == 0
    assert stat.S_IMODE((tmp_path / "remote").stat().st_mode) == 0o2775
    assert [path.name for path in (tmp_path / "remote").iterdir()] == ["retemper.json"], "the probe is removed"
    config = (root / ".dvc/config").read_text()
    assert all(
        line in config for line in ("remote = team", f"url = {tmp_path / 'remote'}", "verify = true", "shared = group", "type = copy")
    )
    assert not (root / ".dvc/config.local").exists()
    assert main.main(["remote", "add", "team", str(tmp_path / "remote")]) == 0, "adding it again is fine"
    assert f"remote team is {tmp_path / 'remote'}; run retemper remote remove team first" in refusal_of(
        capsys, "remote", "add", "team", str(tmp_path / "other")
    )
    assert main.main(["remote", "list"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"team  {tmp_path / 'remote'}  (used by runs)"
    assert main.main(["remote", "remove", "team"]) == 0
    assert "team" not in (root / ".dvc/config").read_text()
    assert main.main(["remote", "list"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "no remotes; retemper remote add NAME URL adds one"
    assert "no remote team, expected one of none" in refusal_of(capsys, "remote", "remove", "team")


def test_a_remote_name_is_lowercased_as_dvc_reads_it(root: Path, tmp_path: Path) -> None:
    assert main.main(["remote", "add", "Team", str(tmp_path / "remote")]) == 0
    assert "remote = team" in (root / ".dvc/config").read_text()
    assert remotes.remotes() == [("team", str(tmp_path / "remote"), True)]
    config = (root / ".dvc/config").read_text()
    (root / ".dvc/config").write_text(config.replace("remote = team", "remote = Team"))  # as an earlier version wrote it
    assert main.main(["remote", "remove", "TEAM"]) == 0
    assert "eam" not in (root / ".dvc/config").read_text()


def test_a_signal_undoes_a_remote_that_was_not_verified(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = (root / ".dvc/config").read_bytes()
    for signum in (signal.SIGTERM, signal.SIGHUP):
        monkeypatch.setattr(remotes, "probe", lambda *_, signum=signum: os.kill(os.getpid(), signum))
        inherited = signal.signal(signum, signal.SIG_DFL)  # nohup, if the tests run under it, has SIGHUP ignored
        try:
            assert main.main(["remote", "add", "team", str(tmp_path / "remote")]) == 128 + signum
            assert (root / ".dvc/config").read_bytes() == config
            assert signal.getsignal(signum) is signal.SIG_DFL
        finally:
            signal.signal(signum, inherited)
    monkeypatch.setattr(signal, "getsignal", lambda _: signal.SIG_IGN)  # by nohup
    assert signal.SIGHUP not in ending_signals()


@pytest.mark.parametrize(
    ("name", "url", "message"),
    [
        ("team", "", "remote: found no URL, expected a folder"),
        ("team", "file://", "remote: found no URL, expected a folder"),
        ("team", ".", "found a folder within this project"),
        ("team", "data/remote", "found a folder within this project"),
        ("team", "../link/remote", "found a folder within this project"),
        ("team", "HTTPS://host/c", "remote team: found an HTTP remote, which cannot list what it holds, so no run could take anything"),
        ("a b", "../remote", "remote 'a b': expected a name of letters"),
        ("", "../remote", "remote '': expected a name of letters"),
        ("x]y", "../remote", "remote 'x]y': expected a name of letters"),
    ],
)
def test_a_remote_has_a_name_and_is_elsewhere(root: Path, capsys: pytest.CaptureFixture[str], name: str, url: str, message: str) -> None:
    (root.parent / "link").symlink_to(root)
    assert message in refusal_of(capsys, "remote", "add", name, url)
    assert not (root / "retemper.json").exists()


@pytest.mark.usefixtures("root")
def test_a_missing_or_invalid_remote_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "away not found; create it, or mount it" in refusal_of(capsys, "remote", "add", "team", str(tmp_path / "away" / "remote"))
    (tmp_path / "file").write_text("")
    assert "found a file, expected a folder" in refusal_of(capsys, "remote", "add", "team", str(tmp_path / "file"))
    for arguments in (["remote", "add", "team"], ["cache", "share"]):
        assert "~nobodyatall not found; create it" in refusal_of(capsys, *arguments, "~nobodyatall/x")
    assert "key=value" in refusal_of(capsys, "remote", "add", "team", str(tmp_path / "r"), "--option", "port")
    assert "extra keys not allowed" in refusal_of(capsys, "remote", "add", "team", str(tmp_path / "r"), "--option", "colour=blue")
    if not is_installed("dvc_gs"):
        assert "gs:// needs DVC's plug-in; pip install 'dvc[gs]'" in refusal_of(capsys, "remote", "add", "team", "gs://bucket/path")


def is_installed(module: str) -> bool:
    from importlib.util import find_spec

    return find_spec(module) is not None


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
@pytest.mark.usefixtures("root")
def test_a_folder_without_permission_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "remote").mkdir(mode=0o555)
    assert "cannot be written and read" in refusal_of(capsys, "remote", "add", "team", str(tmp_path / "remote"))


def test_secrets_stay_out_of_git_and_of_messages(root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    error = refusal_of(capsys, "remote", "add", "team", "https://me:hunter2@localhost/cache")
    assert "the URL holds a password" in error
    assert "hunter2" not in error
    monkeypatch.setattr(remotes, "probe", lambda *_: None)
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert "password=-: expected the value" in refusal_of(capsys, "remote", "add", "team", "s3://bucket/path", "--option", "password=-")
    monkeypatch.setattr("sys.stdin", io.StringIO("asked\n"))
    options = ["secret_access_key=hunter2", "access_key_id=me", "endpointurl=http://localhost:1", "session_token=-"]
    assert main.main(["remote", "add", "team", "s3://bucket/path", *(part for option in options for part in ("--option", option))]) == 0
    assert "hunter2" not in (root / ".dvc/config").read_text() + capsys.readouterr().out
    assert "endpointurl = http://localhost:1" in (root / ".dvc/config").read_text()
    assert "session_token = asked" in (root / ".dvc/config.local").read_text()
    assert "secret_access_key = hunter2" in (root / ".dvc/config.local").read_text()
    assert stat.S_IMODE((root / ".dvc/config.local").stat().st_mode) == 0o600
    ignored = subprocess.run(["git", "check-ignore", "-q", ".dvc/config.local"], cwd=root, check=False)
    assert ignored.returncode == 0
    assert main.main(["remote", "remove", "team"]) == 0
    assert "hunter2" not in (root / ".dvc/config.local").read_text()


def test_a_secret_is_refused_where_git_would_track_it(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / ".dvc/.gitignore").write_text("/tmp\n/cache\n")
    error = refusal_of(capsys, "remote", "add", "team", "s3://bucket/path", "--option", "secret_access_key=hunter2")
    assert "git does not ignore it" in error
    assert "hunter2" not in error


def test_a_shared_cache_takes_what_is_there_and_links_are_safe(
    finished_toy: Any, tmp_path: Path, executed: Callable[[dict[str, str]], set[str]]
) -> None:
    cache = tmp_path / "cache"
    result = finished_toy.call("cache", "share", str(cache))
    assert result.returncode == 0, result.stderr
    assert not (finished_toy.folder / ".dvc/cache").exists()
    notes = [json.loads(note.read_text()) for note in (cache / "projects").iterdir()]
    assert notes == [{"folder": str(finished_toy.folder)}]
    assert stat.S_IMODE((cache / "files/md5").stat().st_mode) == 0o2775
    finished_toy.set_rounds(a="1", b="3")
    assert executed(finished_toy.run()) == {"train@b", "evaluate@b", "report"}, "the rest is there"
    assert (finished_toy.folder / "data/encoders/b").stat().st_nlink > 1 or (finished_toy.folder / "data/encoders/b").is_symlink(), "links"
    finished_toy.set_rounds(a="1", b="4")
    finished_toy.run()
    finished_toy.set_rounds(a="1", b="3")
    assert executed(finished_toy.run()) == set()
    corrupt: list[Path] = []
    assert integrity.verify(cache / "files/md5", corrupt.append)[0] > 8
    assert corrupt == [], "no stage wrote into a file that the cache holds"


@pytest.mark.heavy
def test_ten_clones_at_once_share_one_remote(finished_toy: Any, tmp_path: Path, executed: Callable[[dict[str, str]], set[str]]) -> None:
    """Clones change a round in five ways, and push and pull at the same time; nothing is lost or corrupted."""
    assert finished_toy.call("remote", "add", "team", str(tmp_path / "remote")).returncode == 0
    finished_toy.command("git", "add", ".dvc/config", "dvc.lock")
    finished_toy.command("git", "commit", "--quiet", "-m", "a remote, and what was computed")
    assert executed(finished_toy.run()) == set()
    clones = []
    for number in range(10):
        folder = tmp_path / f"clone{number}"
        finished_toy.command("git", "clone", "--quiet", str(finished_toy.folder), str(folder))
        clone = type(finished_toy)(folder, finished_toy.environment)
        clone.set_rounds(a="1", b=str(100 + number // 2))  # two of each, so that the same is pushed twice at the same time
        clones.append((clone, clone.start("run")))
    for clone, process in clones:
        out, err = process.communicate(timeout=600)
        assert process.returncode == 0, out + err
        assert "Traceback" not in err
        assert "corrupt" not in err
        assert clone.folder.joinpath("data/encoders/b").read_text().startswith(clone.folder.joinpath("params.yaml").read_text()[-5:-2])
    corrupt: list[Path] = []
    assert integrity.verify(tmp_path / "remote/files/md5", corrupt.append)[0] >= 5 * 3
    assert corrupt == []
    for clone, _ in clones[:2]:
        status = subprocess.run(
            [*DVC, "status", "prepare", "train", "evaluate", "report"],
            cwd=clone.folder,
            env=clone.environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert "up to date" in status.stdout
    first_clone = clones[0][0]
    shutil.rmtree(first_clone.folder / ".dvc/cache")
    shutil.rmtree(first_clone.folder / "data/encoders")
    for number in range(5):  # what anyone has computed, nobody computes again
        first_clone.set_rounds(a="1", b=str(100 + number))
        assert executed(first_clone.run()) == set()


def test_only_the_clones_own_cache_is_moved(root: Path, tmp_path: Path) -> None:
    cached_file = root / ".dvc/cache/files/md5/ab" / ("c" * 30)
    cached_file.parent.mkdir(parents=True)
    cached_file.write_text("of everybody")
    theirs = tmp_path / "theirs"
    shutil.move(root / ".dvc/cache", theirs)
    (tmp_path / "link").symlink_to(theirs)
    cached_file = theirs / cached_file.relative_to(root / ".dvc/cache")
    (root / ".dvc/cache").symlink_to(theirs)
    assert "stays as it is" in remotes.share(tmp_path / "new"), "a link to what others may use"
    assert cached_file.read_text() == "of everybody"
    remotes.share(theirs)
    assert "0 files moved" in remotes.share(tmp_path / "link"), "one folder by two names"
    assert cached_file.read_text() == "of everybody"
    assert "stays as it is" in remotes.share(tmp_path / "new")
    assert cached_file.read_text() == "of everybody"
    (root / ".dvc/cache").unlink()
    (root / ".dvc/cache").mkdir()
    for folder in (root / ".dvc/cache/shared", root):
        with pytest.raises(UserError, match="this clone's own cache"):
            remotes.share(folder)


def test_records_of_how_artifacts_were_made_move_into_a_shared_cache(root: Path, tmp_path: Path) -> None:
    ours, shared = "ab" * 32, "cd" * 32
    for cache, digests in ((root / ".dvc/cache", (ours, shared)), (tmp_path / "cache", (shared,))):
        cache.mkdir(exist_ok=True)
        for digest in digests:
            makings.save(cache, digest, {"stage": "train@a", "by": cache.name if digest == ours else "who made it first"})
    assert "(2 files moved there" in remotes.share(tmp_path / "cache")
    assert not (root / ".dvc/cache").exists()
    records = makings.read(tmp_path / "cache", [ours, shared])
    assert {digest: record["by"] for digest, record in records.items()} == {ours: "cache", shared: "who made it first"}
    assert stat.S_IMODE(makings.record_path(tmp_path / "cache", ours).parent.stat().st_mode) == 0o2775, "colleagues add theirs"


def test_a_shared_cache_is_not_collected_while_a_project_is_unavailable(finished_toy: Any, tmp_path: Path) -> None:
    assert finished_toy.call("cache", "share", str(tmp_path / "cache")).returncode == 0
    (tmp_path / "away/.dvc").mkdir(parents=True)
    remotes.register(tmp_path / "cache", tmp_path / "away")
    (tmp_path / "away").rename(tmp_path / "moved")
    result = finished_toy.call("gc")
    assert (result.returncode, len(result.stderr.splitlines())) == (2, 1), result.stderr
    note = next(note for note in (tmp_path / "cache/projects").iterdir() if "away" in note.read_text())
    assert str(note) in result.stderr
    shutil.rmtree(tmp_path / "cache/projects")
    (tmp_path / "cache/projects").mkdir()
    finished_toy.run()
    assert remotes.registered(tmp_path / "cache") == [finished_toy.folder], "every run notes it again"


def test_a_project_of_another_user_is_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse_open(*_: Any, **__: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse_open)
    with pytest.raises(UserError, match="no permission, so a run may be in progress there"), locks.hold_run_locks([tmp_path]):
        pass


def test_pushed_files_belong_to_the_group_and_unpushed_outs_go_too(root: Path, tmp_path: Path, toy: Any) -> None:
    """Run records are in folders that colleagues can write to; the outs of a replaced dvc.lock are pushed too."""
    cache = tmp_path / "cache"
    remotes.share(cache)
    remotes.add("team", str(tmp_path / "remote"), [])
    intact = add_object(cache, b"text"), add_object(cache, b"more")
    missing = "0" * 32
    lists = [
        add_object(cache, json.dumps([{"md5": oid, "relpath": name} for name, oid in files]).encode(), ".dir")
        for files in ([("a", intact[0]), ("b", intact[1])], [("a", intact[0]), ("c", missing)])
    ]
    outs = "".join(f"    - {{path: data/{oid[:4]}, hash: md5, md5: {oid}}}\n" for oid in (*lists, "1" * 32))
    unpushed = root / sync.UNPUSHED / "x.lock"
    unpushed.parent.mkdir(parents=True)
    unpushed.write_text(f"schema: '2.0'\nstages:\n  train:\n    cmd: x\n    outs:\n{outs}")
    record = Path("runs/ab", "ab" + "c" * 62, "d" * 64)
    (cache / record).parent.mkdir(parents=True)
    (cache / record).write_text("cmd: x\n")
    shutil.rmtree(root / "data")

    def call(script: str) -> None:
        result = toy.call(script=f"import os, sys\nos.umask(0o027)\nfrom flows.storage.dvc import fetch_runs, main\n{script}")
        assert result.returncode == 0, result.stdout + result.stderr
        assert "failed to transfer" not in result.stderr

    call("sys.exit(main(['push']))")
    shutil.rmtree(cache / "runs")
    folder = str(cache / record.parent)
    call(f"from dvc.repo import Repo\nfrom pathlib import Path\nsys.exit(not fetch_runs(Repo(), Path({folder!r})))")
    for store in (cache, tmp_path / "remote"):
        assert (store / record).exists()
        folders = [folder for folder in (store / record).parents if folder.is_relative_to(store)]
        assert {oct(stat.S_IMODE(folder.stat().st_mode) & 0o2070) for folder in folders} == {"0o2070"}
    sent = {integrity.object_id(path) for path in integrity.objects(tmp_path / "remote/files/md5")}
    assert sent == {*intact, lists[0]}, "no listing without what it lists"


@pytest.mark.parametrize("damage", ["file", "listing", "cut listing", "missing file"])
def test_what_is_corrupt_in_a_folder_of_the_remote_is_removed_with_its_listing(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    """DVC trusts a listing that it reads from the remote, and fails if it is not JSON."""
    remote = tmp_path / "remote"
    remotes.add("team", str(remote), [])
    for name in ("folder", "whole"):
        (root / name).mkdir()
        for file in ("a", "b"):
            (root / name / file).write_text(name + file)
    environment = os.environ | {"DVC_NO_ANALYTICS": "1", "PYTHONPATH": str(Path(__file__).resolve().parents[3])}
    subprocess.run([*DVC, "add", "--quiet", "folder", "whole"], check=True, env=environment)

    def call(*words: str) -> list[str]:
        result = subprocess.run([sys.executable, "-m", "flows.storage.dvc", *words], env=environment, capture_output=True, text=True)
        assert "Traceback" not in result.stderr
        return [line for line in result.stdout.splitlines() if line.startswith("retemper: ")]

    def remote_objects() -> dict[str, bytes]:
        return {integrity.object_id(path): path.read_bytes() for path in integrity.objects(remote / "files/md5")}

    call("push")
    sent = remote_objects()
    listing = next(oid for oid, text in sent.items() if oid.endswith(".dir") and hashlib.md5(b"foldera").hexdigest().encode() in text)
    damaged_oid = listing if damage.endswith("listing") else hashlib.md5(b"foldera").hexdigest()
    path = integrity.object_path(remote / "files/md5", damaged_oid)
    path.unlink()
    if damage != "missing file":
        path.write_bytes(
            {"file": b"folderx", "listing": sent[damaged_oid].replace(b'"b"', b'"c"'), "cut listing": sent[damaged_oid][:20]}[damage]
        )
        path.chmod(0o444)
    shutil.move(root / "folder", tmp_path / "folder")
    shutil.rmtree(root / "whole")
    shutil.rmtree(root / ".dvc/cache")
    monkeypatch.chdir(root)
    sync.PUSHED.parent.mkdir(exist_ok=True)
    sync.PUSHED.write_text("{}")
    (warning,) = call("pull", "folder.dvc", "whole.dvc")
    if damage == "missing file":
        assert warning.startswith(f"retemper: warning: remote team: lacks files of folders that it lists ({damaged_oid}); ")
    else:
        assert warning.startswith(f"retemper: warning: remote team: object {damaged_oid} (")
        assert " is corrupt; removed there" in warning
    assert not sync.PUSHED.exists()
    assert {path.name for path in (root / "whole").iterdir()} == {"a", "b"}, "what is intact comes all the same"
    assert set(sent) - set(remote_objects()) == {damaged_oid, listing}
    shutil.rmtree(root / "folder", ignore_errors=True)
    shutil.move(tmp_path / "folder", root / "folder")  # it is made again
    subprocess.run([*DVC, "add", "--quiet", "folder"], check=True, env=environment)
    call("push")
    assert remote_objects() == sent


def add_object(cache: Path, content: bytes, kind: str = "") -> str:
    """Put an object in a cache; returns its digest."""
    oid = hashlib.md5(content).hexdigest() + kind
    path = integrity.object_path(cache / "files/md5", oid)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(0o444)
    return oid
