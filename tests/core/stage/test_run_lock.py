"""A file system without locks is named, where a run would take one."""

import errno
import os
from pathlib import Path

import pytest

from tasks.core.errors import UserError
from tasks.core.stage import run_lock


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_named(tmp_path: Path, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(UserError, match=r"run\.lock: its file system has no locks"), run_lock.hold_run_lock(tmp_path / "run.lock"):
        pass
