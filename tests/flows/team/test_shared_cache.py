"""A shared cache whose disk is away, and one that a clone leaves while others use it."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows.repository.git import git
from flows.team import remotes


@pytest.mark.parametrize("with_remote", [False, True])
def test_a_shared_cache_that_is_not_mounted_is_not_begun_anew(
    finished_toy: Any, tmp_path: Path, executed: Callable[[dict[str, str]], set[str]], with_remote: bool
) -> None:
    """Nor is it filled from the remote, below the mount point."""
    cache = tmp_path / "share/cache"
    cache.parent.mkdir()
    assert finished_toy.call("cache", "share", str(cache)).returncode == 0
    if with_remote:
        assert finished_toy.call("remote", "add", "team", str(tmp_path / "remote")).returncode == 0
        assert not executed(finished_toy.run()), "it is pushed"
    cache.parent.rename(tmp_path / "mounted")
    cache.parent.mkdir()  # the empty mount point
    shutil.rmtree(finished_toy.folder / "data", ignore_errors=True)
    result = finished_toy.call("run")
    assert (result.returncode, len(result.stderr.splitlines())) == (2, 1), result.stderr
    assert f"{cache}: found an empty cache without projects/" in result.stderr
    shutil.rmtree(cache.parent)
    (tmp_path / "mounted").rename(cache.parent)
    assert not executed(finished_toy.run()), "all of it is there again"


@pytest.mark.parametrize("kind", ["clone", "worktree"])
def test_a_cache_that_others_use_is_copied_not_moved(root: Path, tmp_path: Path, kind: str) -> None:
    cache, other = root / ".dvc/cache", tmp_path / "other"
    cached_file = cache / "files/md5/ab" / ("c" * 30)
    cached_file.parent.mkdir(parents=True)
    cached_file.write_text("of both")
    git(*(("clone", "--quiet", str(root)) if kind == "clone" else ("worktree", "add", "--quiet", "--detach")), str(other))
    (other / ".dvc/config.local").write_text(f"[cache]\n    dir = {cache}\n")
    if kind == "clone":
        for project in (root, other):
            remotes.register(cache, project)  # as every run does
    summary = remotes.share(tmp_path / "new")
    assert f"1 file copied there; {cache} stays as it is, since {other} uses it" in summary
    assert cached_file.read_text() == (tmp_path / "new" / cached_file.relative_to(cache)).read_text() == "of both"
    (root / ".dvc/config.local").unlink()
    (other / ".dvc/config.local").unlink()
    assert "1 file moved there" in remotes.share(tmp_path / "new")
    assert not cache.exists()
