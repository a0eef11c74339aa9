"""The query log, on a full disk and after a kill."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tasks.core.errors import UserError
from tasks.search.server.log import Log

NAME = "a" * 32


def test_a_key_is_complete_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    Log(path, "hashed", pytest.fail).searched(NAME, "a river", [], "m")
    key = path.with_name("q.jsonl.key")
    assert len(key.read_bytes()) == 32 and oct(key.stat().st_mode & 0o777) == "0o600"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["q.jsonl", "q.jsonl.key"]
    for content in (b"", key.read_bytes()[:31]):  # of a server that was killed, or a full disk: hashes would be easy to try out
        key.write_bytes(content)
        with pytest.raises(UserError, match=rf"q.jsonl.key: found {len(content)} bytes, expected a key of 32; remove it"):
            Log(path, "hashed", pytest.fail)


def test_a_server_that_comes_second_takes_the_key_of_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def link_after_another(source: str, target: Path) -> None:
        target.write_bytes(b"k" * 32)
        link(source, target)

    monkeypatch.setattr(os, "link", link_after_another)
    Log(tmp_path / "q.jsonl", "hashed", pytest.fail)
    assert (tmp_path / "q.jsonl.key").read_bytes() == b"k" * 32


def test_a_line_that_a_full_disk_truncates_is_lost_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    errors: list[OSError] = []
    log = Log(tmp_path / "q.jsonl", "plain", errors.append)
    log.searched(NAME, "first", [], "m")
    write = os.write
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda file, line: write(file, line[:20]))
        log.searched(NAME, "second", [], "m")
    log.searched(NAME, "third", [], "m")
    assert len(errors) == 1 and errors[0].filename == str(tmp_path / "q.jsonl")
    assert queries_of(tmp_path / "q.jsonl") == ["first", None, "third"]


def test_an_incomplete_last_line_takes_no_later_one_with_it(tmp_path: Path) -> None:
    """After a kill of the machine, or where another server's write did not fit: this server did not see it."""
    path = tmp_path / "q.jsonl"
    path.write_text('{"event": "sea')
    log = Log(path, "plain", pytest.fail)
    log.searched(NAME, "first", [], "m")
    log.searched(NAME, "second", [], "m")
    with path.open("a") as other_server:
        other_server.write('{"event": "cl')
    log.searched(NAME, "third", [], "m")
    assert queries_of(path) == [None, "first", "second", None, "third"]


def queries_of(path: Path) -> list[Any]:
    """The query of each line; None if the line is incomplete."""

    def query_of(line: str) -> Any:
        try:
            return json.loads(line)["query"]
        except ValueError:
            return None

    return [query_of(line) for line in path.read_text().splitlines()]
