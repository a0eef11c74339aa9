"""Reading dvc.lock."""

import shutil
from pathlib import Path

import pytest

from flows.process.locks import BEFORE
from flows.repository.git import QUIET, GitFailed, git, identity
from flows.repository.lock import lock_of, mapping_at, read_blob, read_lock, worktrees
from tasks.core.errors import UserError


@pytest.mark.parametrize("text", ["", "\n", "{}\n"])
def test_an_emptied_lock_is_not_taken_for_none(tmp_path: Path, text: str) -> None:
    lock, memory = tmp_path / "dvc.lock", tmp_path / BEFORE
    assert read_lock(lock) == {}
    lock.write_text(text)
    message = "found no stages in it, expected those of the last run; git checkout it, or run retemper run"
    with pytest.raises(UserError) as refusal:
        read_lock(lock)
    assert str(refusal.value) == f"{lock}: {message}"
    memory.parent.mkdir()
    memory.write_text(text)
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
        assert read_blob("", "dvc.lock") == "schema: '2.0'\r\n\n"
        assert read_blob("", "none") is None
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
    for place in ("HEAD", ""):
        with pytest.raises(GitFailed, match=r"^git cat-file: .*(corrupt|header|unpack)"):
            read_blob(place, "dvc.lock")
    commit = git("rev-parse", "HEAD")
    (tmp_path / ".git/objects" / commit[:2] / commit[2:]).unlink()
    with pytest.raises(GitFailed, match=r"^git ls-tree: not a (tree object|valid object name)"):
        read_blob(commit, "dvc.lock")


def test_a_commit_of_a_project_elsewhere_is_read(subfolder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert lock_of("HEAD", "here") is None
    assert lock_of("HEAD", "there", subfolder) == {}
    assert mapping_at("HEAD", "params.yaml", subfolder) == {}
    for text, stages in (("rounds: {a: {}}", {"prepare", "train@a"}), ("rounds: {b: {}}", {"prepare", "train@b"})):
        (subfolder / "dvc.lock").write_text("stages: {prepare: {}, train@a: {}, train@b: {}}")
        (subfolder / "dvc.yaml").write_text("stages: {prepare: {}, train: {foreach: '${rounds}'}}")
        (subfolder / "params.yaml").write_text(text)
        git("add", ".", folder=subfolder)
        git("commit", "--quiet", "-m", "two", folder=subfolder)
        assert set(lock_of("HEAD", "there", subfolder) or ()) == stages
        assert mapping_at("HEAD", "params.yaml", subfolder).keys() == {"rounds"}
    (subfolder / "params.yaml").write_text("- a list")
    git("commit", "--quiet", "--all", "-m", "three", folder=subfolder)
    with pytest.raises(UserError, match=r"^params\.yaml: found a list, expected a mapping of sections$"):
        mapping_at("HEAD", "params.yaml", subfolder)


@pytest.mark.parametrize("place", ["plain", "below", "submodule", "separate"])
def test_every_working_tree_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """In a submodule, and after `git init --separate-git-dir`, git lists the folder of the repository as the main working tree."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    top = tmp_path / "project"
    project, second = (folder / "below" if place == "below" else folder for folder in (top, tmp_path / "second"))
    origin = tmp_path / "origin" if place == "submodule" else top
    git("init", "--quiet", *(["--separate-git-dir", str(tmp_path / "git")] if place == "separate" else []), str(origin), folder=tmp_path)
    marker = origin / project.relative_to(top) / ".dvc/config"
    marker.parent.mkdir(parents=True)
    marker.touch()
    git("add", ".", folder=origin)
    git("commit", "--quiet", "-m", "one", folder=origin)
    if place == "submodule":
        git("init", "--quiet", folder=tmp_path)
        git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(origin), "project", folder=tmp_path)
    git("worktree", "add", "--quiet", "--detach", str(tmp_path / "second"), folder=top)
    for missing in ("removed", "project/.retemper/evaluate-1"):
        git("worktree", "add", "--quiet", "--detach", str(tmp_path / missing), folder=top)
        shutil.rmtree(tmp_path / missing)
    assert worktrees(project) == [project, second]
    with pytest.raises(UserError) as refusal:
        worktrees(project, all_known=True)
    assert str(refusal.value).startswith(f"{tmp_path / 'removed'}: git lists this working tree, but it is missing")
    (tmp_path / "removed").mkdir()  # the mount point of its drive
    with pytest.raises(UserError, match="removed: git lists this working tree"):
        worktrees(project, all_known=True)
    git("worktree", "remove", "--force", str(tmp_path / "removed"), folder=top, check=False)
    git("worktree", "prune", folder=top)
    assert worktrees(project, all_known=True) == [project, second]
    if place != "separate":
        assert worktrees(second, all_known=True) == [project, second]
        return
    assert worktrees(second) == [second]
    with pytest.raises(UserError) as refusal:
        worktrees(second, all_known=True)
    assert str(refusal.value) == f"{second}: git does not know the main working tree of {tmp_path / 'git'}; run this there"
    git("config", "core.worktree", str(top), folder=project)
    assert worktrees(second, all_known=True) == [project, second]


def test_trees_of_a_bare_repository_have_no_main_one(tmp_path: Path) -> None:
    git("init", "--quiet", "origin", folder=tmp_path)
    (tmp_path / "origin/.dvc").mkdir()
    (tmp_path / "origin/.dvc/config").touch()
    git("add", ".", folder=tmp_path / "origin")
    git("commit", "--quiet", "-m", "one", folder=tmp_path / "origin")
    git("clone", "--quiet", "--bare", "origin", "bare", folder=tmp_path)
    git("worktree", "add", "--quiet", "--detach", str(tmp_path / "only"), folder=tmp_path / "bare")
    assert worktrees(tmp_path / "only", all_known=True) == [tmp_path / "only"]
