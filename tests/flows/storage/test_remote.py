"""A corrupt object of a remote is named by the artifacts that it is part of, whatever else the run cache holds."""

import hashlib
import json
from pathlib import Path

import pytest

from flows.storage.remote import artifacts


def test_artifacts_of_objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    listing, a, b = json.dumps([{"relpath": "ids", "md5": "3" * 32}]).encode(), "1" * 32, "2" * 32
    folder = f"{hashlib.md5(listing).hexdigest()}.dir"
    path = tmp_path / "cache/files/md5" / folder[:2] / folder[2:]
    path.parent.mkdir(parents=True)
    path.write_bytes(listing)
    Path("dvc.lock").write_text(f"schema: '2.0'\nstages:\n  one:\n    cmd: one\n    outs: [{{path: data/a, md5: {a}}}]\n")
    runs = tmp_path / "cache/runs/ab/abc"
    runs.mkdir(parents=True)
    (runs / "whole").write_text(f"cmd: two\nouts:\n- path: data/b\n  md5: {b}\n- path: data/tokens\n  md5: {folder}\n- path: data/none\n")
    (runs / "cut").write_text("cmd: two\nouts:\n- pa")
    (runs / "letter").write_bytes(b"cmd: two\nouts:\n- path: data/\xc3")
    (runs / "bomb").write_text(f"cmd: two\nouts:\n- &out {{path: data/bomb, md5: {b}, own: *out}}\n")  # of a shared remote
    expected = {a: ["data/a"], b: ["data/b"], "3" * 32: ["data/tokens/ids"], folder: ["data/tokens"]}
    assert artifacts({*expected, "None", "4" * 32}, tmp_path / "cache") == expected
