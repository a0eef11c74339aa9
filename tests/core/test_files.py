"""Files are complete or absent, whatever goes wrong while they are written."""

import errno
import gzip
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from tasks.core.errors import UserError, one_line_errors
from tasks.core.files import (
    WORKER,
    append_line,
    delete,
    file_digest,
    folder_digest,
    from_record,
    is_gzip,
    new_file,
    new_folder,
    open_unpacked,
    partial_path,
    read_json,
    read_mapping,
    write_json,
)
from tasks.core.stage.scratch import KEPT, scratch_folder, work_digest


def test_a_file_appears_only_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "a" / "file"
    with pytest.raises(RuntimeError), new_file(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert list(path.parent.iterdir()) == []
    with new_file(path) as temporary:
        temporary.write_text("whole")
        assert not path.exists()
    assert path.read_text() == "whole"


def test_two_workers_that_write_one_file_do_not_disturb_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker behind a broken network still writes the piece that another one does again; the last to end replaces the file."""
    path = tmp_path / "000003.npy"
    monkeypatch.setenv(WORKER, "1")
    with new_file(path) as again:
        with new_file(path) as lost, lost.open("wb") as of_lost, again.open("wb") as of_again:
            for half in (b"first, ", b"second"):
                of_lost.write(half)
                of_again.write(half)
        assert path.read_bytes() == b"first, second"
        assert [file for file in tmp_path.iterdir() if file != path] == [again]
    assert path.read_bytes() == b"first, second" and list(tmp_path.iterdir()) == [path]
    with pytest.raises(RuntimeError), new_file(tmp_path / "other") as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == [path]
    monkeypatch.delenv(WORKER)
    with new_file(path) as temporary:
        assert temporary == partial_path(path), "where the next attempt of a stage that was killed replaces it"
        temporary.touch()


@pytest.mark.parametrize("content", [None, b"", b'{"a": 1', b"[1]", b"null", b'{"a": "\xff"}'])
def test_a_mapping_that_cannot_be_read_is_empty(content: bytes | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "record.json").write_bytes(content)
    assert read_mapping(tmp_path / "record.json") == {}
    write_json(tmp_path / "record.json", {"a": [1]})
    assert read_mapping(tmp_path / "record.json") == {"a": [1]}


def test_a_link_is_removed_and_not_what_it_points_to(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "file").write_text("1")
    links = tmp_path / "to-folder", tmp_path / "to-file", tmp_path / "to-nothing"
    for link, target in zip(links, (folder, folder / "inner/file", tmp_path / "nothing"), strict=True):
        link.symlink_to(target)
        delete(link)
        delete(link)
        assert not link.is_symlink()
    assert (folder / "inner/file").read_text() == "1"
    delete(folder / "inner/file")
    delete(folder)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_replaces_the_old_one_only_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    with new_folder(path) as temporary:
        (temporary / "old").write_text("old")
    with pytest.raises(RuntimeError), new_folder(path) as temporary:
        (temporary / "new").write_text("half")
        raise RuntimeError
    assert [p.name for p in tmp_path.rglob("*")] == ["folder", "old"]
    (tmp_path / ".folder.partial").mkdir()
    (tmp_path / ".folder.partial" / "litter").write_text("of a killed run")
    with new_folder(path) as temporary:
        (temporary / "deep").mkdir()
        (temporary / "deep" / "new").write_text("new")
        (temporary / "deep" / "new").chmod(0o600)
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["deep", "folder", "new"]
    assert (path / "deep" / "new").stat().st_mode & 0o777 == 0o644


def test_json_round_trips_and_nan_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "value.json"
    write_json(path, {"ä": [1, 2.5, None]})
    assert read_json(path) == {"ä": [1, 2.5, None]}
    with pytest.raises(ValueError):
        write_json(path, {"loss": float("nan")})
    assert read_json(path) == {"ä": [1, 2.5, None]}
    path.write_text("{")
    with pytest.raises(UserError, match=r"value\.json: not JSON"):
        read_json(path)
    with pytest.raises(UserError, match=r"none\.json: not found"):
        read_json(tmp_path / "none.json")


@pytest.mark.parametrize("lasting", [True, False])
@pytest.mark.parametrize(
    ("content", "after"),
    [(None, "größe\n"), ("", "größe\n"), ("first\n", "first\ngröße\n"), ('{"torn": 1', '{"torn": 1\ngröße\n')],
)
def test_an_appended_line_is_a_line_of_its_own(
    content: str | None, after: str, lasting: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in a new folder, and after a line that a kill has cut off."""
    path = tmp_path / "folder" / "history.jsonl"
    if content is not None:
        path.parent.mkdir()
        path.write_text(content, encoding="utf-8")
    flushed: list[int] = []
    monkeypatch.setattr(os, "fsync", flushed.append)
    append_line(path, "größe", lasting=lasting)
    assert len(flushed) == lasting
    assert path.read_bytes() == after.encode()
    append_line(path, "", lasting=lasting)
    assert path.read_bytes() == f"{after}\n".encode()


@dataclass(frozen=True)
class Record:
    name: str
    runs: int = 1


def test_a_record_of_a_newer_version_is_read_without_what_it_adds() -> None:
    assert from_record(Record, {"name": "a", "runs": 2, "added": [3]}) == Record("a", 2)
    assert from_record(Record, {"name": "a"}) == Record("a")
    with pytest.raises(TypeError, match="name"):
        from_record(Record, {"runs": 2})


def test_digests_depend_on_names_and_bytes(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "a").write_bytes(b"1")
    (tmp_path / "b" / "c").write_bytes(b"2")
    assert file_digest(tmp_path / "a") == hashlib.sha256(b"1").hexdigest()
    before = folder_digest(tmp_path)
    (tmp_path / "b" / "c").rename(tmp_path / "b" / "d")
    renamed = folder_digest(tmp_path)
    (tmp_path / "b" / "d").write_bytes(b"3")
    assert len({before, renamed, folder_digest(tmp_path)}) == 3


def test_work_digest_depends_on_content_and_values(tmp_path: Path) -> None:
    (tmp_path / "input").write_bytes(b"1")
    first = work_digest({"lr": 1e-5}, tmp_path / "input")
    assert first == work_digest({"lr": 1e-5}, tmp_path / "input")
    assert first != work_digest({"lr": 2e-5}, tmp_path / "input")
    (tmp_path / "input").write_bytes(b"2")
    assert first != work_digest({"lr": 1e-5}, tmp_path / "input")
    with pytest.raises(UserError, match="not found"):
        work_digest(tmp_path / "gone")


def test_scratch_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for number in range(9):
        folder = scratch_folder("train-star", hashlib.sha256(bytes([number])).hexdigest())
        os.utime(folder, (number, number))
    other = scratch_folder("train-warmup", "0" * 64)
    assert len(list(folder.parent.iterdir())) == KEPT
    assert folder.exists()
    assert other.exists()


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (UserError("corpus.jsonl:3: no text;\n add it"), "retemper: corpus.jsonl:3: no text; add it"),
        (OSError(errno.ENOSPC, "No space left on device", "data/x"), "retemper: data/x: No space left on device; no partial output"),
        (PermissionError(errno.EACCES, "Permission denied", "data"), "retemper: data: Permission denied"),
    ],
)
def test_a_user_error_is_one_line_and_status_2(error: Exception, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info, one_line_errors():
        raise error
    stderr = capsys.readouterr().err
    assert exit_info.value.code == 2
    assert stderr.startswith(line)
    assert stderr.count("\n") == 1


def test_our_own_errors_are_not_hidden() -> None:
    with pytest.raises(FileNotFoundError), one_line_errors():
        raise FileNotFoundError(errno.ENOENT, "No such file", "x")


@pytest.mark.parametrize("name", ["lines.jsonl", "lines.jsonl.gz"])
@pytest.mark.parametrize("content", [b"", b"\x1f", b"one\ntwo\n"])
@pytest.mark.parametrize("packed", [True, False])
def test_the_first_bytes_decide(packed: bool, content: bytes, name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if packed else content)
    assert is_gzip(path) == packed
    with open_unpacked(path) as handle:
        assert handle.read() == content
