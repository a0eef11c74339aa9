"""Which files of a store of shards may hold a forgotten document."""

from pathlib import Path

import pyarrow as pa
import pytest

from flows.forgetting import holdings
from flows.forgetting.forget import parse_record
from flows.forgetting.holdings import Entry, Store, known_marks, other_shards
from tasks.core.errors import UserError
from tasks.core.files import partial_path
from tasks.core.sources.forgotten import mark


def test_all_that_is_not_known_to_be_of_other_documents_goes_with_what_kills_left(tmp_path: Path) -> None:
    for name, total in (("clean", "c"), ("held", "h"), ("bare", None)):
        (tmp_path / f"{name}.npy").touch()
        if total:
            (tmp_path / f"{name}.sha256").write_text(total)
            (tmp_path / f"{name}.rows").touch()
    for suffix in ("sha256", "rows"):
        (tmp_path / f"half.{suffix}").write_text("c")
    (tmp_path / "note.txt").touch()
    partial_path(tmp_path / "clean.npy").write_text("vectors of anything")
    assert [path.name for path in other_shards(tmp_path, {"c"})] == [
        ".clean.npy.partial", "bare.npy", "half.rows", "half.sha256", "held.npy", "held.rows", "held.sha256",
    ]  # fmt: skip
    assert list(other_shards(tmp_path / "nowhere", set())) == []


def test_the_kinds_of_ids_take_one_reading_of_each_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [
        Entry({"outs": [{"path": path, "md5": oid}]}, True) for path, oid in (("data/corpus", "a"), ("data/corpus", "a"), ("x", "b"))
    ]
    reads = []

    def records(path: str, oid: str, *_: object, **__: object) -> list[tuple[str, pa.RecordBatch]]:
        reads.append((path, oid))
        return [(kind, pa.RecordBatch.from_pydict({"id": [f"{kind}1", "both"]})) for kind in ("document", "query")]

    monkeypatch.setattr(holdings, "_records", records)
    wanted = {mark(kind, name) for kind in ("document", "query") for name in ("document1", "query1", "both", "none")}
    found = {mark("document", "document1"), mark("query", "query1"), mark("document", "both"), mark("query", "both")}
    assert known_marks(entries, Store(tmp_path), wanted) == found
    assert reads == [("data/corpus", "a")]


def test_an_id_has_the_kind_that_the_list_or_a_corpus_says() -> None:
    document, query = (mark(kind, "x") for kind in ("document", "query"))
    assert parse_record("x", {query}, listed=()) == ("query", "x")
    assert parse_record("x", {document, query}, listed={document: "document"}) == ("document", "x")
    assert parse_record("query:y", {document}, listed=()) == ("query", "y")
    with pytest.raises(UserError, match="x: a document and a query have this id"):
        parse_record("x", {document, query}, listed=())
    with pytest.raises(UserError, match="x: no corpus"):
        parse_record("x", (), listed=())
