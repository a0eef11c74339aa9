"""Reading dvc.lock."""

from pathlib import Path

import pytest

from flows.repository.git import QUIET, GitFailed, git, identity
from flows.repository.lock import read_blob, read_lock
from tasks.core.errors import UserError


@pytest.mark.parametrize("text", ["", "\n", "{}\n"])
def test_an_emptied_lock_is_not_taken_for_none(tmp_path: Path, text: str) -> None:
    lock, memory = tmp_path / "dvc.lock", tmp_path / "before.lock"
    assert read_lock(lock) == {}
    for path in (lock, memory):
        path.write_text(text)
    message = "found no stages in it, expected those of the last run; git checkout it, or run retemper run"
    with pytest.raises(UserError) as refusal:
        read_lock(lock)
    assert str(refusal.value) == f"{lock}: {message}"
    assert read_lock(memory) == {}, "the copy from before the first run"
    lock.write_text("schema: '2.0'\nstages: {}\n")
    assert read_lock(lock) == {}


@pytest.fixture
def subfolder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project in a folder of a repository, with one committed file; the current folder."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    git("init", "--quiet", folder=tmp_path)
    (folder / "dvc.lock").write_bytes(b"schema: '2.0'\r\n\n")
    (folder / "latin").write_bytes("Straße".encode("latin-1"))
    git("add", ".")
    assert read_blob("HEAD", "dvc.lock") is None, "no commit yet"
    git("commit", "--quiet", "-m", "one")
    return folder


def test_a_committed_file_is_read_as_it_is_in_a_hook_too(subfolder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """git sets GIT_DIR for a hook, relative to the top folder: reproduce said that the commit had no dvc.lock."""
    for _ in range(2):
        assert read_blob("HEAD", "dvc.lock") == "schema: '2.0'\r\n\n" == read_blob("HEAD", "dvc.lock", subfolder)
        assert read_blob("HEAD", "none") is None
        monkeypatch.setenv("GIT_DIR", ".git")
    git("config", "user.useConfigOnly", "true")
    git("config", "user.name", "somebody")
    git("config", "user.email", "somebody@example.com")
    for name in ("GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL", "EMAIL"):
        monkeypatch.delenv(name, raising=False)
    assert identity() == {}


@pytest.mark.usefixtures("subfolder")
def test_a_file_that_git_cannot_read_is_not_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"^latin of commit HEAD: not UTF-8; save it as UTF-8 and commit it$"):
        read_blob("HEAD", "latin")
    with monkeypatch.context() as patch:
        patch.setitem(QUIET, "GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
        with pytest.raises(GitFailed, match="dubious ownership"):
            read_blob("HEAD", "dvc.lock")
    oid = git("rev-parse", "HEAD:./dvc.lock")
    file = tmp_path / ".git/objects" / oid[:2] / oid[2:]
    file.chmod(0o644)
    file.write_bytes(b"corrupt")
    with pytest.raises(GitFailed, match=r"^git cat-file: .*(corrupt|header|unpack)"):
        read_blob("HEAD", "dvc.lock")
