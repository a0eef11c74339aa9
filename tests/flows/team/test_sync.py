"""Which stages a clone may take from the remote, and what it remembers having pushed. The clones themselves: test_pipeline."""

import hashlib
import json
import os
import re
import shutil
import socket
import stat
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from dvc.fs import LocalFileSystem

from flows.pipeline.stage import Processes
from flows.storage import cache, dvc
from flows.storage.cache import object_path, objects
from flows.storage.remote import SEEN
from flows.team import remotes, sync
from flows.team.sync import is_pushed, push, restorable
from tasks.core.errors import DiskError, UserError


def test_stages_whose_files_are_only_missing_can_be_restored() -> None:
    status = {
        "cloned": [{"changed deps": {"data/corpus": "deleted"}}, {"changed outs": {"data/tokens": "deleted"}}],
        "collected": [{"changed outs": {"data/tokens": "not in cache"}}],
        "edited": [{"changed deps": {"params.yaml": {"text": "modified"}}}, {"changed outs": {"data/tokens": "deleted"}}],
        "recoded": [{"changed deps": {"tasks/bm25": "modified"}}],
        "new": [{"changed deps": {"data/corpus": "new"}}, {"changed outs": {"data/bm25": "deleted"}}, "changed checksum"],
    }
    assert restorable(status, {name: {} for name in status}) == ["cloned", "collected"]
    assert restorable(status, {"collected": {}}) == ["collected"], "the other has never run"


def test_what_was_pushed_is_remembered_until_something_is_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path(".dvc").mkdir()
    Path(".dvc/config").write_text("[remote]")
    Path("dvc.lock").write_text("one")
    warnings: list[str] = []
    assert not is_pushed("team")
    monkeypatch.setattr(sync, "REMOTE", ["sh", "-c", "echo 'ERROR: no route to host'; exit 3"])
    assert not push(Processes(), "team", warnings.append)
    assert not is_pushed("team")
    assert warnings == ["remote team: not everything was pushed; the next run tries again: no route to host (status 3)"]
    unpushed = [path.read_text() for path in sync.UNPUSHED.iterdir()]
    assert unpushed == ["one"], "the next run, of other parameters, sends these outs too"
    monkeypatch.setattr(sync, "REMOTE", ["sh", "-c", "echo 'ERROR: failed to transfer x - [Errno 13] Permission denied'"])
    assert not push(Processes(), "team", warnings.append), "DVC ends with status 0"
    monkeypatch.setattr(sync, "REMOTE", ["true"])
    assert push(Processes(), "team", warnings.append)
    assert is_pushed("team")
    assert not list(sync.UNPUSHED.glob("*"))
    assert not is_pushed("other")
    Path("dvc.lock").write_text("two")
    assert not is_pushed("team")


@pytest.mark.parametrize("cached", [False, True])
def test_a_clone_pushes_nothing_back_that_all_came_from_the_remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cached: bool) -> None:
    monkeypatch.chdir(tmp_path)
    Path("dvc.lock").write_text("stages: {}")
    monkeypatch.setattr(sync, "cache_folder", lambda: tmp_path / "cache")
    if cached:  # by someone else, perhaps: whether the remote has it too is unknown
        (tmp_path / "cache/files").mkdir(parents=True)
    warnings: list[str] = []
    monkeypatch.setattr(sync, "REMOTE", ["sh", "-c", "test $0 = records || { echo 'ERROR: gone'; exit 1; }"])
    assert sync.pull(Processes(), "team", ["a"], warn=warnings.append)
    assert not is_pushed("team")
    assert warnings == ["remote team lacks some outs that dvc.lock names, so they are computed here: gone (status 1)"]
    monkeypatch.setattr(sync, "REMOTE", ["true"])
    assert sync.pull(Processes(), "team", ["a"], warn=warnings.append)
    assert is_pushed("team") == (not cached)


@pytest.mark.parametrize("command", ["records", "pull"])
def test_a_disk_that_a_pull_fills_is_not_the_remotes(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run would warn, go on, and compute what it cannot store."""
    monkeypatch.setattr(sync, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr(sync, "REMOTE", ["sh", "-c", f"test $0 != {command} || {{ echo 'ERROR: os error 28'; exit 1; }}"])
    with pytest.raises(DiskError, match="cache: No space left on device; what was pulled is kept, make room and run again"):
        sync.pull(Processes(), "team", ["a"], warn=pytest.fail)


def test_a_disk_that_fails_in_a_pull_may_be_the_remotes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sync, "REMOTE", ["sh", "-c", "echo 'ERROR: [Errno 5] Input/output error'; exit 1"])
    warnings: list[str] = []
    assert not sync.pull(Processes(), "team", ["a"], warn=warnings.append)
    assert "remote team is unavailable, so nothing is pulled: [Errno 5]" in warnings[0]


def test_a_remote_that_vanishes_during_a_pull_is_said_to_be_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The warning does not say that files are missing there; and stages do not contact the remote."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cache/files").mkdir(parents=True)
    monkeypatch.setattr(sync, "cache_folder", lambda: tmp_path / "cache")
    Path("remote").mkdir()
    failed = "echo 'ERROR: Checkout failed for following targets:'; echo data/a; echo data/b; echo 'Is your cache up to date?'; exit 1"
    warnings: list[str] = []
    for vanishes, reached, message in (
        (True, False, "remote team has become unavailable, so not everything is pulled: not mounted (status 1)"),
        (False, True, "Checkout failed for following targets: data/a, data/b (status 1)"),
    ):
        Path("remote").mkdir(exist_ok=True)
        pulls = f"test $0 = records || {{ {'rmdir remote;' * vanishes} {failed}; }}"
        monkeypatch.setattr(sync, "REMOTE", ["sh", "-c", f"{pulls}; test -d remote || {{ echo 'ERROR: not mounted'; exit 1; }}"])
        assert sync.pull(Processes(), "team", ["a"], warn=warnings.append) == reached
        assert [line.endswith(message) for line in warnings] == [True], warnings
        warnings.clear()


def test_a_remote_that_is_gone_lacks_nothing(toy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Files that a download did not find are not reported as missing from the remote."""
    monkeypatch.chdir(toy.folder)
    for name, value in toy.environment.items():
        monkeypatch.setenv(name, value)
    remote = tmp_path / "remote"
    remotes.add("team", str(remote), [])
    oid = "0123456789abcdef0123456789abcdef"
    download = dvc.Download(LocalFileSystem(), str(remote / "files/md5" / oid[:2] / oid[2:]), oid, missing=True)
    dvc.heal([download])
    assert "remote team: lacks files of folders that it lists" in capsys.readouterr().out
    remote.rename(tmp_path / "away")
    downloads = [download]
    dvc.heal(downloads)
    assert (capsys.readouterr().out, downloads) == ("", [])


COUNTED = """
import sys
from dvc.dvcfile import Lockfile
loads, load = [], Lockfile._load
Lockfile._load = lambda self, **named: (loads.append(1), load(self, **named))[1]
from flows.storage.dvc import main
status = main(["checkout", *sys.argv[1:]])
print(len(loads))
sys.exit(status)
"""


def test_the_lock_is_not_read_again_for_every_stage(finished_toy: Any) -> None:
    for name in ("corpus", "report"):
        (finished_toy.folder / "data" / name).unlink()
    result = finished_toy.call("prepare", "train@a", "train@b", "evaluate@a", "evaluate@b", "report", script=COUNTED)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout.splitlines()[-1]) <= 2
    assert (finished_toy.folder / "data/corpus").exists()
    assert (finished_toy.folder / "data/report").exists()


@pytest.mark.parametrize(
    ("error", "fix"),
    [
        ("failed to connect to s3 (bucket/c) - Forbidden: An error occurred (403) when calling the HeadObject operation: Forbidden", "KEY"),
        ("An error occurred (InvalidAccessKeyId) when calling the PutObject operation: The AWS Access Key Id does not exist", "KEY"),
        ("unexpected error - Unable to locate credentials", "KEY"),
        ("403, message='Forbidden', url='http://host/runs'", "; fix its credentials: dvc remote modify --local team auth"),
        ("failed to transfer 'x' - An error occurred (NoSuchBucket): The specified bucket does not exist", "; create the bucket"),
        ("failed to transfer 'x' - [Errno 13] Permission denied: '/srv/team/runs/x'", "; give access"),
        ("unexpected error - [Errno 30] Read-only file system: '/srv/team/runs/61'", "; mount it for writing"),
        ("[Errno 113] No route to host", ""),
        ("failed to transfer 'x' - [Errno 28] No space left on device", "; make room"),
        ("failed to transfer 'x' - [Errno 122] Disk quota exceeded", "; make room"),
    ],
)
def test_a_refusal_is_told_from_an_unavailable_remote(error: str, fix: str) -> None:
    key = "; fix its credentials: retemper remote add team URL --option access_key_id=- --option secret_access_key=- (ssh: password=-)"
    remedy = sync.remedy("team", error)
    assert remedy == key if fix == "KEY" else remedy.startswith(fix) and bool(remedy) == bool(fix)


def run_around_outage(project: Any, remote: Path, executed: Callable[[dict[str, str]], set[str]], states: Any) -> None:
    """Run while the remote is unavailable, and again once it is back; the second run also pushes what the first computed."""
    away = remote.parent.with_name("away")
    before = list(remote.parent.rglob("*"))
    project.set_rounds(a="1", b="11")
    result = project.call("run")
    assert result.returncode == 0, result.stderr
    assert executed(states(result.stdout)) == {"train@b", "evaluate@b", "report"}
    pulled, pushed = result.stderr.splitlines()
    reason = f"{remote}: found no retemper.json, which every remote has; mount it, or if it is new: retemper remote add team URL"
    assert pulled == f"retemper: warning: remote team is unavailable, so nothing is pulled: {reason} (status 1)"
    assert pushed == f"retemper: warning: remote team: not everything was pushed; the next run tries again: {reason} (status 1)"
    for words in (("verify", "--remote", "team"), ("gc", "--remote", "team")):
        result = project.call(*words)
        assert result.returncode == 2
        assert "found no retemper.json" in result.stderr
    assert list(remote.parent.rglob("*")) == before, "nothing is created"
    shutil.rmtree(remote.parent, ignore_errors=True)
    away.rename(remote.parent)
    project.set_rounds(a="1", b="12")
    assert executed(project.run()) == {"train@b", "evaluate@b", "report"}
    texts = {path.read_text() for path in objects(remote / "files/md5")}
    for value in ("11", "12"):
        assert any(text.startswith(f"{value}(") for text in texts), value
    assert stat.S_IMODE(remote.stat().st_mode) == 0o2775


@pytest.mark.parametrize("mounted", [None, "share", "share/remote"], ids=["gone", "empty share", "empty folder"])
def test_a_folder_remote_that_vanishes_is_not_recreated(
    finished_toy: Any, tmp_path: Path, executed: Any, states_of: Any, mounted: str | None
) -> None:
    """An unmounted share gives a warning; what is computed is kept, and pushed by the next run that reaches it."""
    remote = tmp_path / "share/remote"
    remote.parent.mkdir()
    assert finished_toy.call("remote", "add", "team", str(remote)).returncode == 0
    assert executed(finished_toy.run()) == set()
    assert (remote / "retemper.json").stat().st_mode & 0o777 == 0o664
    remote.parent.rename(tmp_path / "away")
    if mounted:
        (tmp_path / mounted).mkdir(parents=True)
    before = list(tmp_path.rglob("share/**/*"))
    result = finished_toy.call("run")
    assert result.returncode == 0
    assert list(tmp_path.rglob("share/**/*")) == before, "nothing is created"
    run_around_outage(finished_toy, remote, executed, states_of)


def test_a_push_to_a_remote_that_vanishes_meanwhile_has_failed(toy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DVC creates the folder again, on the disk under the mount point, and reports success."""
    monkeypatch.chdir(toy.folder)
    for name, value in toy.environment.items():
        monkeypatch.setenv(name, value)
    remote = tmp_path / "remote"
    remotes.add("team", str(remote), [])

    def unmount(_: list[str]) -> int:
        shutil.rmtree(remote)
        (remote / "files").mkdir(parents=True)
        return 0

    for dvc_main in (unmount, lambda _: pytest.fail("nothing more goes there")):
        monkeypatch.setattr("dvc.cli.main", dvc_main)
        with pytest.raises(UserError, match=r"found no retemper\.json, which every remote has"):
            dvc.push()


def test_an_unmarked_remote_gets_the_mark_if_it_holds_artifacts(finished_toy: Any, tmp_path: Path) -> None:
    remote = tmp_path / "share/remote"
    remote.parent.mkdir()
    assert finished_toy.call("remote", "add", "team", str(remote)).returncode == 0
    finished_toy.run()
    (remote / "retemper.json").unlink()
    (finished_toy.folder / SEEN).unlink()
    assert finished_toy.call("run").stderr == "", "nothing to do, no contact"
    finished_toy.set_rounds(a="1", b="9")
    result = finished_toy.call("run")
    assert (result.returncode, result.stderr) == (0, "")
    assert (remote / "retemper.json").exists()
    shutil.copytree(remote / "files", tmp_path / "away/remote/files")
    shutil.rmtree(remote.parent)
    shutil.copytree(tmp_path / "away", remote.parent)  # what DVC makes of a folder that vanishes while it writes
    result = finished_toy.call("verify", "--remote", "team")
    assert result.returncode == 2
    assert not (remote / "retemper.json").exists(), "it had a mark before"


@pytest.mark.parametrize(("mode", "verify", "committed"), [(0o444, "true", True), (0o644, "false", True), (0o444, "true", False)])
def test_a_corrupt_object_of_the_remote_is_named_and_replaced(
    finished_toy: Any, tmp_path: Path, executed: Any, states_of: Any, mode: int, verify: str, committed: bool
) -> None:
    """The first clone that downloads it does so; the second gets intact bytes. Plain DVC trusts a remote without `verify`."""
    remote = tmp_path / "remote"
    assert finished_toy.call("remote", "add", "team", str(remote), "--option", f"verify={verify}").returncode == 0
    config = finished_toy.folder / ".dvc/config"
    config.write_text(config.read_text().replace("verify = true", f"verify = {verify}"))
    finished_toy.run()
    finished_toy.command("git", "add", ".dvc/config", *(["dvc.lock"] if committed else []))
    finished_toy.command("git", "commit", "--quiet", "-m", "computed")
    text = (finished_toy.folder / "data/encoders/a").read_bytes()
    oid = hashlib.md5(text).hexdigest()
    path = object_path(remote / "files/md5", oid)
    path.chmod(0o644)
    path.write_bytes(b"x" * len(text))
    path.chmod(mode)

    def run_in_clone(name: str) -> subprocess.CompletedProcess[str]:
        finished_toy.command("git", "clone", "--quiet", str(finished_toy.folder), str(tmp_path / name))
        project = type(finished_toy)(tmp_path / name, finished_toy.environment)
        result = project.call("run")
        assert result.returncode == 0, result.stderr
        assert (project.folder / "data/encoders/a").read_bytes() == text
        corrupt: list[Path] = []
        cache.verify(project.folder / ".dvc/cache/files/md5", corrupt.append)
        assert corrupt == []
        return subprocess.CompletedProcess([], 0, result.stdout, result.stderr)

    first = run_in_clone("first")
    assert executed(states_of(first.stdout)) == {"train@a"}
    named = f"retemper: warning: remote team: object {oid} (data/encoders/a) is corrupt"
    if committed:
        assert [line.startswith(named) for line in first.stderr.splitlines()] == [True, False], first.stderr
    else:  # each stage fetches what its recorded run has made
        assert named in first.stdout
    assert path.read_bytes() == text
    second = run_in_clone("second")
    assert executed(states_of(second.stdout)) == set()
    assert "corrupt" not in second.stdout + second.stderr
    assert second.stderr == "" or not committed  # without a dvc.lock, `dvc pull` has nothing to check out


MOTO = os.environ.get("MOTO_SERVER") or shutil.which("moto_server") or ""  # moto's and dvc-s3's botocore conflict: its own environment


@pytest.fixture
def s3() -> Iterator[tuple[str, str, str]]:
    """A local S3 server that checks signatures, with one bucket: its address, and a key's id and secret."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    server = subprocess.Popen([MOTO, "-H", "127.0.0.1", "-p", url.rpartition(":")[2]], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def ask(path: str = "", method: str = "POST", body: bytes = b"", **headers: str) -> str:
        request = urllib.request.Request(url + path, body, {"Content-Type": "text/plain", **headers}, method=method)
        with urllib.request.urlopen(request, timeout=300) as answer:
            return str(answer.read().decode())

    def iam(**query: str) -> str:
        signed = "AWS4-HMAC-SHA256 Credential=x/20200101/us-east-1/iam/aws4_request, SignedHeaders=host, Signature=x"
        form = {"Content-Type": "application/x-www-form-urlencoded", "Authorization": signed}
        return ask(body=urllib.parse.urlencode({**query, "Version": "2010-05-08"}).encode(), **form)

    try:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            try:
                ask("/bucket", "PUT")
                break
            except OSError:
                time.sleep(0.2)
        iam(Action="CreateUser", UserName="team")
        allow = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}
        iam(Action="PutUserPolicy", UserName="team", PolicyName="all", PolicyDocument=json.dumps(allow))
        response = iam(Action="CreateAccessKey", UserName="team")
        credentials = [re.findall(f"<{name}>(.*?)<", response)[0] for name in ("AccessKeyId", "SecretAccessKey")]
        ask("/moto-api/reset-auth", body=b"0")  # from now on nothing without a valid signature
        yield url, credentials[0], credentials[1]
    finally:
        server.kill()
        server.wait()


@pytest.mark.skipif(not MOTO or not find_spec("dvc_s3"), reason="needs dvc[s3], and moto's server in MOTO_SERVER or PATH")
def test_wrong_credentials_and_a_missing_bucket(
    finished_toy: Any, s3: tuple[str, str, str], executed: Callable[[dict[str, str]], set[str]], states_of: Callable[[str], dict[str, str]]
) -> None:
    """Adding the remote ends with status 2; a later run warns and continues. No secret is printed, or stored anywhere else."""
    url, key, secret = s3

    def add_remote(bucket: str, secret_key: str) -> Any:
        options = (f"endpointurl={url}", "region=us-east-1", f"access_key_id={key}", f"secret_access_key={secret_key}")
        return finished_toy.call("remote", "add", "team", bucket, *(part for option in options for part in ("--option", option)))

    def warnings_of_run(value: str) -> str:
        """The warnings of a run that computes something new."""
        finished_toy.set_rounds(a="1", b=value)
        result = finished_toy.call("run")
        assert result.returncode == 0, result.stdout + result.stderr
        assert executed(states_of(result.stdout)) == {"train@b", "evaluate@b", "report"}
        outputs.append(result.stdout + result.stderr)
        return str(result.stderr)

    outputs: list[str] = []
    for bucket, secret_key, error in (("s3://bucket/c", "hunter2", "SignatureDoesNotMatch"), ("s3://nowhere/c", secret, "NoSuchBucket")):
        result = add_remote(bucket, secret_key)
        assert (result.returncode, len(result.stderr.splitlines())) == (2, 1), result.stderr
        assert "remote team: cannot be written and read: " in result.stderr
        assert error in result.stderr
        outputs.append(result.stdout + result.stderr)
    assert add_remote("s3://bucket/c", secret).returncode == 0
    local = finished_toy.folder / ".dvc/config.local"
    local.write_text(local.read_text().replace(secret, "hunter2"))
    pulled, pushed = warnings_of_run("31").splitlines()
    assert pulled.startswith(
        "retemper: warning: remote team refuses access, so nothing is pulled: Forbidden (status 1); "
        "fix its credentials: retemper remote add"
    )
    assert pushed.startswith("retemper: warning: remote team: not everything was pushed; the next run tries again: ")
    assert "; fix its credentials: retemper remote add team URL --option access_key_id=- --option secret_access_key=-" in pushed
    result = finished_toy.call("verify", "--remote", "team")
    assert result.returncode == 2
    assert "remote team: cannot be read: Forbidden; fix its credentials" in result.stderr
    assert add_remote("s3://bucket/c", secret).returncode == 0, "as the line says"
    assert warnings_of_run("32") == ""
    config = finished_toy.folder / ".dvc/config"
    config.write_text(config.read_text().replace("s3://bucket", "s3://nowhere"))
    assert "found no retemper.json" in warnings_of_run("33"), "a missing bucket has no mark either"
    files = [path for path in finished_toy.folder.rglob("*") if path.is_file() and path != local]
    for hidden in (secret, "hunter2"):
        assert hidden not in "".join(outputs)
        assert [path for path in files if hidden.encode() in path.read_bytes()] == []
