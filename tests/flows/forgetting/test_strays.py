"""Which objects go by their text alone, and which stay."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dvc.fs import MemoryFileSystem
from dvc_data.hashfile.db import HashFileDB

from flows.forgetting import strays
from flows.forgetting.holdings import Entry, Remote, Store
from flows.storage.cache import file_md5, object_path

TEXT = 'A heading that many documents of this project have, all in capitals.\n\nThe "secret" of one.'


def add(root: Path, content: str, ending: str = "") -> Path:
    """Add an object to the cache `root`."""
    (root / "written").write_text(content)
    path = object_path(root / "files/md5", file_md5(root / "written") + ending)
    path.parent.mkdir(parents=True, exist_ok=True)
    return (root / "written").rename(path)


def oid_of(path: Path) -> str:
    return path.parent.name + path.name


def test_only_objects_with_all_of_a_text_go_and_none_of_a_dvc_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strays, "worktrees", list)
    lines = json.dumps({"text": TEXT})
    stray, planned, alike = add(tmp_path, lines), add(tmp_path, f"{lines} "), add(tmp_path, TEXT.replace("secret", "news"))
    listing = add(tmp_path, json.dumps([{"md5": oid_of(stray), "relpath": "a"}]), ".dir")
    added, inner = add(tmp_path, f"{lines}  "), add(tmp_path, f"{lines}   ")
    folder = add(tmp_path, json.dumps([{"md5": oid_of(inner), "relpath": "a"}]), ".dir")
    add(tmp_path, "something else")
    pq.write_table(pa.table({"text": [TEXT]}), tmp_path / "table")
    table = object_path(tmp_path / "files/md5", file_md5(tmp_path / "table"))
    table.parent.mkdir(exist_ok=True)
    (tmp_path / "table").rename(table)
    entries = [Entry({"outs": [{"path": "mine", "md5": oid_of(path)}]}, False, True) for path in (added, folder)]
    store = Store(tmp_path / "files/md5")
    found = strays.find_strays([TEXT], entries, store, oids={oid_of(planned)}, trees=[])
    assert set(found.removed[tmp_path]) == {stray, listing, table}
    assert (set(found.added), found.alike, found.unread) == ({added, inner}, (alike,), ())
    notes = found.notes()
    assert len(notes) == 4 and sum("has the text, though no recorded run says so" in note for note in notes) == 3
    assert f"{alike}: begins like one of the texts" in notes[-1]
    said: list[str] = []
    strays.remove_strays(found, store, said.append)
    assert set(found.remaining(said.append)) == {added, inner} and len(said) == 5
    assert not any(path.exists() for path in (stray, listing, table))
    assert all(path.exists() for path in (planned, alike, added, inner, folder))


def add_folder(root: Path) -> tuple[Path, Path]:
    """A listing and its one file, which has the text."""
    file = add(root, json.dumps({"text": TEXT}))
    return add(root, json.dumps([{"md5": oid_of(file), "relpath": "documents.jsonl"}]), ".dir"), file


def test_after_a_kill_the_rest_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strays, "worktrees", list)
    folder = add_folder(tmp_path)
    store = Store(tmp_path / "files/md5")
    while places := strays.find_strays([TEXT], [], store, oids=set(), trees=[]).removed[tmp_path]:
        places[0].unlink()  # and killed
    assert not any(path.exists() for path in folder)


def test_objects_with_a_text_go_from_remotes_that_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From S3 and ssh by digest, and first: after a kill, the cache still tells which they are."""
    monkeypatch.setattr(strays, "worktrees", list)
    listing, file = add_folder(tmp_path)
    fs = MemoryFileSystem(global_store=False)
    places = {oid: f"/team/files/md5/{oid}" for oid in (oid_of(listing), oid_of(file), "0" * 32)}
    for place in places.values():
        fs.pipe_file(place, b"")
    remote = Remote("team", fs, HashFileDB(fs, "/team/files/md5"), "/team", places)
    store = Store(tmp_path / "files/md5", [remote])
    found = strays.find_strays([TEXT], [], store, oids=set(), trees=[])
    said: list[str] = []

    def tell(line: str) -> None:
        said.append(line)
        assert not fs.exists(places[oid_of(file)])

    strays.remove_strays(found, store, tell)
    assert list(fs.find("/team")) == [f"/team/files/md5/{'0' * 32}"] and not file.exists() and not listing.exists()
    assert said[:2] == [f"remote team: {places[oid_of(path)]}: had the text; removed" for path in (listing, file)] and len(said) == 4


def test_a_corpus_of_this_project_is_named_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the text under another id. Of another entry's, no run of this project is known."""
    monkeypatch.setattr(strays, "worktrees", list)
    listing, file = add_folder(tmp_path)
    other = add(tmp_path, json.dumps({"text": TEXT, "more": 1}))
    entries = [
        Entry({"outs": [{"path": name, "md5": oid_of(path)}]}, own)
        for name, path, own in (("data/corpus", listing, True), ("data/pseudo", other, False))
    ]
    found = strays.find_strays([TEXT], entries, Store(tmp_path / "files/md5"), oids=set(), trees=[])
    assert found.own == dict.fromkeys((oid_of(listing), oid_of(file)), ("data/corpus", oid_of(listing)))
    reason = "under another id (data/corpus of this project): forget that id, too, since what was made from it stays"
    assert set(found.notes()) == {
        *(f"{path}: has the text, {reason}; it is removed, too" for path in (listing, file)),
        f"{other}: has the text, though no recorded run says so; it is removed, too",
    }
