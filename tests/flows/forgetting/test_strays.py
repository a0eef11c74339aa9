"""Which objects go by their text alone, and which stay."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.forgetting import strays
from flows.forgetting.holdings import Entry, Store
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
    strays.remove_strays(found, said.append)
    assert set(found.remaining(said.append)) == {added, inner} and len(said) == 5
    assert not any(path.exists() for path in (stray, listing, table))
    assert all(path.exists() for path in (planned, alike, added, inner, folder))
