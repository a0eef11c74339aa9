"""Whose a temporary folder is, by its name: ended processes of this machine alone lose theirs."""

import os
import platform
import subprocess
import tempfile
from pathlib import Path

import pytest

from flows.process.owners import abandoned, machine, owned_prefix


def test_only_folders_of_ended_processes_of_this_machine_are_abandoned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder that two machines share, the second deleted the living project of the first."""
    process = subprocess.Popen(["true"])
    process.wait()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: process.pid)
        dead = Path(tempfile.mkdtemp(prefix=owned_prefix(".new"), dir=tmp_path))
        Path(tempfile.mkdtemp(prefix=owned_prefix(".other"), dir=tmp_path))
        for place, name, value in ((platform, "node", lambda: "another"), (Path, "readlink", lambda _: Path("pid:[1]"))):
            with monkeypatch.context() as elsewhere:
                elsewhere.setattr(place, name, value)
                machine.cache_clear()
                Path(tempfile.mkdtemp(prefix=owned_prefix(".new"), dir=tmp_path))
    machine.cache_clear()
    Path(tempfile.mkdtemp(prefix=owned_prefix(".new"), dir=tmp_path))
    (tmp_path / f".new-{machine()}-1-init").mkdir()  # another user's, where we are not root
    assert abandoned(tmp_path, ".new") == [dead]
    assert len(list(tmp_path.glob(".new-*"))) == 5
