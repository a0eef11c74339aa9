"""Documents read in parts, by any number of processes: the bytes, the counts, and the first error of one reader."""

import gzip
import json
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.core.errors import UserError
from tasks.core.files import file_digest
from tasks.prepare import documents
from tasks.prepare.documents import rebatch, write_documents
from tasks.prepare.forgotten import without_forgotten
from tasks.prepare.params import Prepare
from tasks.prepare.readers import beir, lines, msmarco, parquet
from tasks.prepare.readers.lines import blocks
from tasks.prepare.records import Tally
from tasks.prepare.source import Document, Source

COUNT = 700
SETTINGS = Prepare(empty_texts="drop", ids="escape")


def texts(count: int = COUNT) -> list[tuple[str, str, str]]:
    draw = random.Random(count)
    triples = [(f"d{n}", f"Title {n}", " ".join(draw.choices(["a", "bé", "東京", "word"], k=draw.randrange(30)))) for n in range(count)]
    triples[5], triples[77], triples[300] = ("d 5", "", "white id"), ("d77", "", " "), ("d300", "", "no title")
    return triples


def write_jsonl(path: Path) -> Callable[..., Iterator[Document]]:
    rows = [json.dumps({"_id": i, "title": t, "text": x}, ensure_ascii=n % 2 == 0) for n, (i, t, x) in enumerate(texts())]
    rows[3] += "\r"
    text = "\ufeff" + "\n".join([*rows[:9], "", "  ", *rows[9:]])  # no line end at the end
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return beir.documents


def write_tsv(path: Path) -> Callable[..., Iterator[Document]]:
    path.write_text("".join(f"{i}\t{x}\n" for i, _, x in texts()), encoding="utf-8")
    return msmarco.documents


def source_of(kind: str, folder: Path) -> Source:
    if kind == "parquet":
        table = pa.table(list(map(list, zip(*texts(), strict=True))), names=["docid", "title", "text"]).append_column("x", [[1.5] * COUNT])
        table = table.set_column(1, "title", table["title"].dictionary_encode())
        files = tuple(folder / f"{n}.parquet" for n in range(2))
        for file, part in zip(files, (table.slice(0, 400), table.slice(400)), strict=True):
            pq.write_table(part, file, row_group_size=90)
        return Source(partial(parquet.documents, files), {}, {}, parts=partial(parquet.parts, files))
    path = folder / {"jsonl": "corpus.jsonl", "gzip": "corpus.jsonl.gz", "tsv": "collection.tsv"}[kind]
    (write_tsv if kind == "tsv" else write_jsonl)(path)
    module = msmarco if kind == "tsv" else beir
    return Source(partial(module.documents, path), {}, {}, parts=partial(module.parts, path))


def write_and_count(source: Source, out: Path, processes: int) -> tuple[object, ...]:
    """Digest of the file, and all that is counted."""
    tally = Tally()
    ids, empty = write_documents(source, SETTINGS, out, tally=tally, processes=processes)
    counts = tally.documents.counts, tally.empty_titles, tally.empty_texts, tally.dropped, tally.white_ids
    return file_digest(out), *counts, ids.ordinals([name for name, _, _ in texts()]).tolist(), empty


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of a few documents."""
    monkeypatch.setattr(beir, "blocks", partial(blocks, size=900))
    monkeypatch.setattr(msmarco, "blocks", partial(blocks, size=900))
    monkeypatch.setattr(parquet, "BATCH_ROWS", 50)
    monkeypatch.setattr(documents, "rebatch", partial(rebatch, rows=64))


@pytest.mark.parametrize("kind", ["jsonl", "gzip", "tsv", "parquet"])
@pytest.mark.usefixtures("small")
def test_parts_give_what_one_reader_gives(kind: str, tmp_path: Path) -> None:
    source = source_of(kind, tmp_path)
    assert source.parts
    parts = list(source.parts())
    assert len(parts) > 8
    assert [document for part in parts for document in part()] == list(source.documents())  # places too
    expected = write_and_count(Source(source.documents, {}, {}), tmp_path / "whole.parquet", 1)
    no_title = sum(not text.strip() for _, _, text in texts()) if kind == "tsv" else 1
    assert expected[4] == {"documents without text": no_title} and expected[5] == {"document": 1}
    assert pq.read_metadata(tmp_path / "whole.parquet").num_row_groups > 8
    assert write_and_count(source, tmp_path / "one.parquet", 1) == expected
    marked = without_forgotten(source, frozenset(["nothing"]))
    assert marked.parts and write_and_count(marked, tmp_path / "marked.parquet", 1) == expected


@pytest.mark.usefixtures("small")
def test_several_processes_give_the_bytes_of_one(tmp_path: Path) -> None:
    source = source_of("jsonl", tmp_path)
    assert write_and_count(source, tmp_path / "two.parquet", 2) == write_and_count(source, tmp_path / "one.parquet", 1)


WRONG = {
    "not JSON": "{",
    "a number": '{"_id": "x", "text": 5}',
    "no id": '{"_id": "", "text": "x"}',
    "half": '{"_id": "x", "text": "\\ud800"}',
}


@pytest.mark.parametrize("kind", [*WRONG, "white", "bytes", "cut", "missing"])
@pytest.mark.usefixtures("small")
def test_the_first_error_is_that_of_one_reader(kind: str, tmp_path: Path) -> None:
    """With its line, though a later part has another mistake."""
    path, settings = tmp_path / "corpus.jsonl", Prepare()
    rows = [json.dumps({"_id": f"d{n}", "text": "some words"}).encode() for n in range(COUNT)]
    rows[611] = b"{ later"
    if kind in WRONG:
        rows[222] = WRONG[kind].encode()
    elif kind == "white":
        rows[222], rows[400] = b'{"_id": "a b", "text": "x"}', b'{"_id": "c d", "text": "x"}'
    elif kind == "bytes":
        rows[222] = b"\xff\xfe"
    if kind == "cut":
        raw = random.Random(1).randbytes(40_000).hex().encode()
        packed = gzip.compress(b"\n".join(rows[:500]) + b'\n{"_id": "z", "text": "' + raw + b'"}\n')
        path.write_bytes(packed[:-9000])
    elif kind != "missing":
        path.write_bytes(b"\n".join(rows))
    parts = Source(partial(beir.documents, path), {}, {}, parts=partial(beir.parts, path))
    readers = [(parts, 1)]
    if kind != "half":  # is found when a batch is complete: one reader meets line 612 first
        readers += [(Source(parts.documents, {}, {}), 1)]
    if kind in ("white", "no id"):
        readers += [(parts, 2)]
    messages = []
    for source, processes in readers:
        with pytest.raises(UserError) as error:
            write_documents(source, settings, tmp_path / "x.parquet", tally=Tally(), processes=processes)
        messages.append(str(error.value))
        assert not (tmp_path / "x.parquet").exists()
    assert len(set(messages)) == 1
    assert messages[0].startswith(f"{path}: not found" if kind == "missing" else f"{path}:{501 if kind == 'cut' else 223}: ")
    if kind == "white":
        assert "(2 such document ids)" in messages[0]


@pytest.mark.usefixtures("small")
def test_a_damaged_parquet_file_names_the_same_row(tmp_path: Path) -> None:
    source = source_of("parquet", tmp_path)
    raw = bytearray((tmp_path / "0.parquet").read_bytes())
    raw[3000:3400] = bytes(400)
    (tmp_path / "0.parquet").write_bytes(raw)
    messages = []
    for each in (source, Source(source.documents, {}, {})):
        with pytest.raises(UserError, match="cannot be read as Parquet") as error:
            write_documents(each, SETTINGS, tmp_path / "x.parquet", tally=Tally(), processes=1)
        messages.append(str(error.value))
    assert messages[0] == messages[1]


def test_blocks_are_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"one\ntwo\r\n" + b"x" * 50 + b"\n\nlast")
    for size in (1, 4, 10, 1000):
        parts = list(blocks(path, size))
        assert b"".join(block.raw or b"" for block in parts) == path.read_bytes()
        assert all((block.raw or b"").endswith(b"\n") for block in parts[:-1])
        assert [text for block in parts for text in lines.read_text_lines(block)] == list(lines.read_text_lines(path))
