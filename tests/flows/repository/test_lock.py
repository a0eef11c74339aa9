"""Reading dvc.lock."""

from pathlib import Path

import pytest

from flows.repository.lock import read_lock
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
