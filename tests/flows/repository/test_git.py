"""Who commits: git's own identity where it has one, ours where it has none; and what is said of a git that fails."""

import json
import re
import shutil
from pathlib import Path

import pytest

from flows.champions.tree import resolve_followed
from flows.repository.git import NOBODY, QUIET, GitFailed, git, identity

ONLY_CONFIGURED = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "user.useConfigOnly", "GIT_CONFIG_VALUE_0": "true"}


@pytest.fixture
def anonymous_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which git knows no identity."""
    for name in ("GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL", "GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "EMAIL"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {**ONLY_CONFIGURED, "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path), "GIT_CONFIG_NOSYSTEM": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_one_repository_has_an_identity_and_another_has_none(anonymous_folder: Path) -> None:
    for name in ("one", "two"):
        git("init", "--quiet", name)
    git("config", "user.name", "somebody", folder=anonymous_folder / "one")
    git("config", "user.email", "somebody@example.com", folder=anonymous_folder / "one")
    assert [identity(anonymous_folder / name) for name in ("one", "two", "one")] == [{}, NOBODY, {}]
    for name, committer in (("one", "somebody"), ("two", "retemper")):
        git("commit", "--quiet", "--allow-empty", "-m", "empty", folder=anonymous_folder / name)
        assert git("log", "--format=%cn", folder=anonymous_folder / name) == committer


@pytest.mark.usefixtures("anonymous_folder")
def test_an_identity_that_comes_and_goes_with_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    git("init", "--quiet")
    assert identity() == NOBODY
    with monkeypatch.context() as patch:
        for name in NOBODY:
            patch.setenv(name, "somebody@example.com" if name.endswith("EMAIL") else "somebody")
        assert identity() == {}
        git("commit", "--quiet", "--allow-empty", "-m", "one")
    assert identity() == NOBODY
    git("commit", "--quiet", "--allow-empty", "-m", "two")
    assert git("log", "--format=%cn").split() == ["retemper", "somebody"]


def test_a_full_disk_is_named_where_git_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(GitFailed, match=r"^git checkout: not a git repository[^;]*$"):
        git("checkout", "x", folder=tmp_path)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=4096))
    with pytest.raises(GitFailed, match=r"^git checkout: not a git repository.*; No space left on device, make room and run again$"):
        git("checkout", "x", folder=tmp_path)


def test_a_folder_of_another_user_is_refused_with_gits_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not as a project without a commit. git takes its tests' word for who owns a folder."""
    git("init", "--quiet", folder=tmp_path)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    monkeypatch.setitem(QUIET, "GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    message = rf"^git rev-parse: detected dubious ownership .*; run as its owner, or, if you trust it: .* safe.directory '{tmp_path}'$"
    with pytest.raises(GitFailed, match=message):
        resolve_followed(tmp_path, "HEAD")


def test_objects_and_references_survive_a_power_cut(anonymous_folder: Path) -> None:
    """A tag or branch that is empty afterwards would block each later promotion."""
    version = re.search(r"(\d+)\.(\d+)", git("--version"))
    assert version
    if tuple(map(int, version.groups())) < (2, 36):
        pytest.skip("this git flushes no references")
    git("init", "--quiet")
    trace = anonymous_folder / "trace"

    def flushed(*words: str) -> tuple[str, int]:
        """What a command prints, and how often it flushed a file."""
        trace.write_text("")
        output = git(*words, env={"GIT_TRACE2_EVENT": str(trace)})
        counters = [entry for line in trace.read_text().splitlines() if (entry := json.loads(line)).get("category") == "fsync"]
        return output, sum(int(entry["value"]) for entry in counters)

    commit, objects = flushed("commit-tree", git("write-tree"), "-m", "a record")
    _, references = flushed("update-ref", "refs/heads/retemper/retraining", commit)
    assert (objects, references) == (1, 1)


def test_signatures_are_not_part_of_what_git_prints(anonymous_folder: Path) -> None:
    """With the user's log.showSignature, a line on the signature precedes each signed commit."""
    git("init", "--quiet")
    git("commit", "--quiet", "--allow-empty", "-m", "one")
    git("config", "log.showSignature", "true")
    header, _, message = git("cat-file", "commit", "HEAD").partition("\n\n")
    signature = "gpgsig -----BEGIN SSH SIGNATURE-----\n AAAA\n -----END SSH SIGNATURE-----"
    signed = git("hash-object", "-t", "commit", "-w", "--stdin", text=f"{header}\n{signature}\n\n{message}\n")
    git("reset", "--quiet", "--hard", signed)
    assert "gpgsig" in git("cat-file", "commit", "HEAD")
    for command in ("log", "show"):
        assert git(command, "--no-patch", "--format=%H", "HEAD") == signed
    assert anonymous_folder.is_dir()
