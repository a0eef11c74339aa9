"""A cache that may only be read, and a remote: what cannot be written is the cache, which the warning names."""

from pathlib import Path

import pytest

from flows.process.processes import Processes
from flows.team import sync


@pytest.mark.parametrize("command", ["records", "pull"])
def test_a_cache_that_may_only_be_read_is_not_the_remotes_fault(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache may hold all that is needed, so the run continues. Root may write anywhere, so permissions are patched."""
    cache = tmp_path / "cache"
    (cache / "files").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sync, "cache_folder", lambda: cache)
    error = "ERROR: [Errno 30] Read-only file system"
    monkeypatch.setattr(sync, "REMOTE", ["sh", "-c", f"test $0 != {command} || {{ echo '{error}'; exit 1; }}"])
    monkeypatch.setattr(sync, "unwritable_folder", lambda _: cache)
    warnings: list[str] = []
    assert not sync.pull(Processes(), "team", ["a"], warn=warnings.append)
    assert warnings == [f"{cache}: no permission to write to the cache, so nothing is pulled from remote team"]
