"""Which files of a store of shards may hold a forgotten document."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.forgetting import holdings
from flows.forgetting.forget import parse_record
from flows.forgetting.holdings import Entry, Remote, Store, known_marks, other_shards
from flows.storage.cache import file_md5, folder_digest, object_path
from tasks.core.errors import UserError
from tasks.core.files import partial_path
from tasks.core.sources.forgotten import mark
from tasks.core.tables.parquet import write_table
from tasks.core.tables.schemas import DOCUMENTS, QUERIES

JUDGMENTS = {"qrels/dev.parquet": "a" * 32, "qrels/test.parquet": "b" * 32}  # the same files in every corpus


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


def add(objects: Path, write: Any, ending: str = "") -> str:
    """Add an object; returns its digest."""
    written = objects / "written"
    write(written)
    oid = file_md5(written) + ending
    path = object_path(objects, oid)
    path.parent.mkdir(exist_ok=True)
    written.replace(path)
    return oid


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def add_corpus(store: Store, texts: dict[str, str]) -> str:
    """A corpus of these documents and one query in the store; its digest."""
    documents = [{"id": name, "title": "", "text": text} for name, text in texts.items()]
    files = {"documents.parquet": add_table(store, DOCUMENTS, documents), "queries/train.parquet": add_query(store, "q1", "who")}
    return add_listing(store, files | JUDGMENTS)


def add_query(store: Store, name: str, text: str) -> str:
    return add_table(store, QUERIES, [{"id": name, "text": text, "answers": []}])


def add_table(store: Store, schema: pa.Schema, rows: list[dict[str, Any]]) -> str:
    return add(store.objects, lambda path: write_table(path, schema, [pa.Table.from_pylist(rows, schema)]))


def documents_of(store: Store, oid: str) -> str:
    return store.listing(oid)["documents.parquet"]


def add_listing(store: Store, files: dict[str, str]) -> str:
    entries = [{"md5": files[name], "relpath": name} for name in sorted(files)]
    return add(store.objects, lambda path: path.write_text(json.dumps(entries)), ".dir")


def entry(own: bool, reads: dict[str, str], **makes: str) -> Entry:
    return Entry(
        {
            "deps": [{"path": path, "md5": oid} for path, oid in reads.items()],
            "outs": [{"path": f"data/{name.replace('__', '/')}", "md5": oid} for name, oid in makes.items()],
        },
        own,
    )


def test_what_was_made_from_a_corpus_with_the_record_holds_it(store: Store) -> None:
    old, new = add_corpus(store, {"d1": "secret of one", "d2": "two"}), add_corpus(store, {"d2": "two"})
    tokens = add_listing(store, {"documents/tokens.bin": "t1", "queries/train/tokens.bin": "t2"})
    clean = add_listing(store, {"documents/tokens.bin": "t3", "queries/train/tokens.bin": "t2"})
    entries = [
        entry(True, {}, corpus=old),
        entry(False, {}, corpus=new),
        entry(False, {"data/corpus": old}, tokens=tokens),
        entry(False, {"data/corpus": new}, tokens=clean),
        entry(False, {"data/tokens/documents": folder_digest({"tokens.bin": "t1"})}, encoders__a="e1", runs__a="r1"),
        entry(False, {"data/tokens/documents": folder_digest({"tokens.bin": "t3"})}, encoders__b="e2", runs__b="r2"),
        entry(False, {"data/encoders/a": "e1"}, metrics__a="m1", runs__elsewhere="r3"),
    ]
    of_document = holdings.find(entries, store, {mark("document", "d1")}, kinds=["document"])
    assert of_document.oids.keys() == {old, documents_of(store, old), tokens, "t1", "r1"}, (
        "neither weights, nor what they alone made, nor queries"
    )
    assert (of_document.texts, of_document.ids) == ({"secret of one"}, {"d1"})
    of_query = holdings.find(entries, store, {mark("query", "q1")}, kinds=["query"])
    assert {"t2", tokens, clean, old, new} <= of_query.oids.keys()
    assert not {"t1", "t3", "r1", documents_of(store, old)} & of_query.oids.keys(), "documents hold no query"


def test_the_same_id_of_another_projects_data_is_another_record(store: Store) -> None:
    ours, theirs, copy = (add_corpus(store, {"d1": "ours"} | more) for more in ({}, {"d1": "theirs"}, {"d2": "two"}))
    entries = [entry(True, {}, corpus=ours), entry(False, {}, corpus=theirs), entry(False, {}, pseudo=copy)]
    result = holdings.find(entries, store, {mark("document", "d1")}, kinds=["document"])
    assert result.outs == {("data/corpus", ours), ("data/pseudo", copy)}
    assert holdings.find([entry(True, {}, corpus="gone.dir")], store, {"x"}, kinds=["document"]).unread == ["data/corpus gone.dir"]


def test_a_record_with_a_blank_text_is_found_by_its_title(store: Store) -> None:
    """A blank text is no sign that another project's record is the same one."""
    documents = [{"id": "d1", "title": "Complaint of Anna", "text": " "}, {"id": "d2", "title": "", "text": "\n"}]
    ours, theirs = (
        add_listing(store, {"documents.parquet": add_table(store, DOCUMENTS, rows), **JUDGMENTS}) for rows in (documents, documents[1:])
    )
    entries = [entry(True, {}, corpus=ours), entry(False, {}, corpus=theirs)]
    result = holdings.find(entries, store, {mark("document", "d1"), mark("document", "d2")}, kinds=["document"])
    assert (result.texts, result.outs, result.clean_corpora) == ({"Complaint of Anna"}, {("data/corpus", ours)}, set())
    assert holdings.find(entries, store, {mark("document", "d2")}, kinds=["document"]).outs == {("data/corpus", ours)}


def test_the_same_text_under_another_id_is_named(store: Store) -> None:
    ours, older, theirs = (add_corpus(store, {"d1": "who", **more}) for more in ({"d2": "who", "d3": "x"}, {"d4": "who"}, {"d5": "who"}))
    free = add_corpus(store, {"d6": "who"})
    entries = [entry(own, {}, corpus=oid) for own, oid in ((True, ours), (True, older), (False, theirs), (True, free))]
    marks = {mark("document", "d1"), mark("document", "d4")}
    result = holdings.find(entries, store, marks, kinds=["document"])

    def others(outs: set[tuple[str, str]]) -> list[str]:
        return holdings.same_texts(entries, store, marks, texts={*result.texts, "half: \ud800"}, outs=outs)

    assert others(result.outs) == ["document:d2", "query:q1"]
    assert others(result.outs | {("data/corpus", free), ("data/corpus", theirs)}) == ["document:d2", "document:d6", "query:q1"]
    other_marks = {mark("document", "d3")}
    result = holdings.find(entries, store, other_marks, kinds=["document"])
    assert holdings.same_texts(entries, store, other_marks, texts=result.texts, outs=result.outs) == []


def test_a_corpus_is_read_a_batch_at_a_time(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    oid = add_corpus(store, {f"d{number}": f"text {number}" for number in range(20_000)})
    monkeypatch.setattr(pq, "read_table", pytest.fail)  # the whole of it in memory
    result = holdings.holders([entry(True, {}, corpus=oid)], store, {mark("document", "d5"), mark("document", "d19999")})
    assert (result.ids, result.texts) == ({"d5", "d19999"}, {"text 5", "text 19999"}), "of the first and of the last batch"


def test_a_corrupt_object_is_read_from_a_remote(store: Store, tmp_path: Path) -> None:
    """A corpus whose documents differ by a byte would seem to hold no record."""
    oid = add_corpus(store, {"d1": "secret of one"})
    local_file, remote_file = object_path(store.objects, documents_of(store, oid)), tmp_path / "remote"
    local_file.rename(remote_file)
    write_table(local_file, DOCUMENTS, [])
    entries, marks = [entry(True, {}, corpus=oid)], {mark("document", "d1")}
    result = holdings.find(entries, store, marks, kinds=["document"])
    assert (result.texts, len(result.unread)) == (set(), 1)

    def store_with_remote(file: Path) -> Store:
        places = SimpleNamespace(fs=SimpleNamespace(cat_file=lambda path: Path(path).read_bytes()))
        return Store(store.objects, [Remote("origin", places, None, "", {documents_of(store, oid): str(file)})])

    assert holdings.find(entries, store_with_remote(remote_file), marks, kinds=["document"]).texts == {"secret of one"}
    assert len(holdings.find(entries, store_with_remote(local_file), marks, kinds=["document"]).unread) == 1, "corrupt there, too"


def made(reads: dict[str, str], **makes: str) -> Entry:
    return entry(True, {f"data/{path}": oid for path, oid in reads.items()}, **makes)


def test_what_a_clean_corpus_has_too_leads_to_no_record(store: Store) -> None:
    """A colleague has retrained without d1 and pushed; this cache still has the corpus with it. Their judgments are the same file."""
    old, new = (add_corpus(store, {"d2": "two", **more}) for more in ({"d1": "secret of one"}, {}))
    qrels = folder_digest({name.removeprefix("qrels/"): oid for name, oid in JUDGMENTS.items()})
    file = {"corpus/qrels/dev.parquet": "a" * 32}
    entries = [
        made({}, corpus=old),
        made({}, corpus=new),
        made({"corpus": old}, bm25="index-old", negatives__bm25="same"),
        made({"corpus": new}, bm25="index-new", negatives__bm25="same"),
        made({"bm25": "index-old"} | file, runs__bm25="run-old"),
        made({"bm25": "index-new"} | file, runs__bm25="run-new"),
        made({"corpus/qrels": qrels, "runs/bm25": "run-new"}, runs__two="fused-new"),
        made({"negatives/bm25": "same"} | file, negatives__mix="mixed"),
    ]
    found = holdings.find(entries, store, {mark("document", "d1")}, kinds=["document"])
    assert found.oids.keys() == {old, documents_of(store, old), "index-old", "run-old"}
    lost = object_path(store.objects, documents_of(store, new))
    lost.unlink()
    found = holdings.find(entries, store, {mark("document", "d1")}, kinds=["document"])
    assert {"fused-new", "mixed", "same"} <= found.oids.keys(), "whether a lost corpus has the record is unknown"


def test_tokens_of_other_queries_lead_to_no_record(store: Store) -> None:
    new = add_corpus(store, {"d1": "one"})
    secret = add_query(store, "q2", "secret")
    old = add_listing(store, store.listing(new) | {"queries/train.parquet": secret, "queries/dev.parquet": add_query(store, "q3", "what")})
    new = add_listing(store, store.listing(new) | {"queries/dev.parquet": add_query(store, "q3", "what")})
    tokens_old, tokens_new = (
        add_listing(store, {"queries/dev/tokens.bin": "dev", "queries/train/tokens.bin": train}) for train in ("train-old", "train-new")
    )
    entries = [
        made({}, corpus=old),
        made({}, corpus=new),
        made({"corpus": old, "tokenizer": "words"}, tokens=tokens_old),
        made({"corpus": new, "tokenizer": "words"}, tokens=tokens_new),
        made({"encoders/star": "weights", "tokens/queries/dev": folder_digest({"tokens.bin": "dev"})}, runs__star="run-new"),
    ]
    found = holdings.find(entries, store, {mark("query", "q2")}, kinds=["query"])
    assert found.oids.keys() == {old, secret, tokens_old, "train-old"}


def test_a_title_that_other_records_have_is_not_looked_for(store: Store) -> None:
    """It would be found in other tables, and in the source's other pages, which stay."""
    rows = [("d1", "Employee handbook", ""), ("d2", "Employee handbook", "page two"), ("d3", "Complaint of Anna", " "), ("d4", "x", "four")]
    documents = [dict(zip(("id", "title", "text"), row, strict=True)) for row in rows]
    oid = add_listing(store, {"documents.parquet": add_table(store, DOCUMENTS, documents), **JUDGMENTS})
    marks = {mark("document", name) for name in ("d1", "d3", "d4")}
    assert holdings.find([entry(True, {}, corpus=oid)], store, marks, kinds=["document"]).texts == {"Complaint of Anna", "four"}
    marks.add(mark("document", "d2"))
    assert "Employee handbook" in holdings.find([entry(True, {}, corpus=oid)], store, marks, kinds=["document"]).texts


def test_a_title_that_other_records_have_is_no_sign_of_the_same_record(store: Store) -> None:
    """Another project numbers its documents too, and has a page of that title."""

    def corpus(*rows: tuple[str, str, str]) -> str:
        documents = [dict(zip(("id", "title", "text"), row, strict=True)) for row in rows]
        return add_listing(store, {"documents.parquet": add_table(store, DOCUMENTS, documents), **JUDGMENTS})

    ours = corpus(("1", "Contents", ""), ("2", "Contents", ""), ("3", "Pumps", "x"))
    theirs = corpus(("1", "Contents", ""), ("9", "Law", "y"))
    copy = corpus(("1", "Contents", ""), ("3", "Pumps", "x"))
    entries, marks = [entry(own, {}, corpus=oid) for own, oid in ((False, theirs), (True, ours), (False, copy))], {mark("document", "1")}
    result = holdings.find(entries, store, marks, kinds=["document"])
    assert (result.outs, result.texts) == ({("data/corpus", ours)}, set())
    result = holdings.find(entries, store, marks | {mark("document", "3")}, kinds=["document"])
    assert (result.outs, result.texts) == ({("data/corpus", ours), ("data/corpus", copy)}, {"x"}), "another record of it shows a copy"
