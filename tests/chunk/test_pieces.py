"""Chunks made by several processes, or resumed, are the bytes of one process."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks.chunk import pieces
from tasks.chunk.params import Chunk
from tasks.chunk.pieces import Batch, Job, chunked
from tasks.chunk.store import write_parts
from tasks.core.files import folder_digest
from tasks.core.tokens.bare_tokenizer import known_of
from tasks.core.tokens.tokenizer import load_tokenizer
from tests.chunks import write_chunks

PARAMS = Chunk(length=24, least=3)


def batches(corpus: Any) -> Iterator[Batch]:
    """Twelve articles at a time, one batch without a chunk, and an article with a sentence that no chunk holds."""
    rows = [(name, text) for name, (_, text) in corpus.documents.items()]
    rows[14] = ("é\n14", "a long sentence " * 40)
    for start in range(0, len(rows), 12):
        ids, texts = zip(*rows[start : start + 12], strict=True)
        yield list(ids), [""] * 12 if start == 36 else list(texts)


def write_and_digest(out: Path, tokenizer: Path, parts: Any) -> str:
    out.mkdir()
    stats = write_parts(out, parts, load_tokenizer(tokenizer), digest="d", params=PARAMS, total=60)
    assert stats["articles"] == 60 and stats["chunks"] > 60
    return folder_digest(out)


def test_any_number_of_processes_gives_the_bytes_of_one(
    tiny_corpus: Any, tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "whole").mkdir()
    write_chunks(tmp_path / "whole", batches(tiny_corpus), load_tokenizer(tiny_encoder), "d", PARAMS, 60)
    expected, job = folder_digest(tmp_path / "whole"), Job(tiny_encoder, PARAMS)
    assert write_and_digest(tmp_path / "one", tiny_encoder, chunked(job, batches(tiny_corpus), 1, None)) == expected
    monkeypatch.setattr(pieces, "ALONE", 1)
    known = known_of(load_tokenizer(tiny_encoder), tiny_encoder)
    assert known
    assert write_and_digest(tmp_path / "two", tiny_encoder, chunked(job._replace(known=known), batches(tiny_corpus), 2, None)) == expected
    scratch = tmp_path / "scratch"
    assert write_and_digest(tmp_path / "kept", tiny_encoder, chunked(job, batches(tiny_corpus), 2, scratch)) == expected
    (scratch / "000001").write_bytes((scratch / "000001").read_bytes()[:-1])
    (scratch / "000004.sha256").unlink()
    first_ids, real = list[str](), pieces.chunk_batch
    monkeypatch.setattr(pieces, "chunk_batch", lambda job, batch: first_ids.append(batch[0][0]) or real(job, batch))
    assert write_and_digest(tmp_path / "again", tiny_encoder, chunked(job, batches(tiny_corpus), 1, scratch)) == expected
    assert first_ids == [ids[0] for number, (ids, _) in enumerate(batches(tiny_corpus)) if number in (1, 4)]


def test_a_table_of_words_changes_nothing(tiny_corpus: Any, tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digests = []
    for name in ("table", "tokenizer"):
        (tmp_path / name).mkdir()
        write_chunks(tmp_path / name, batches(tiny_corpus), load_tokenizer(tiny_encoder), "d", PARAMS, 60)
        digests.append(folder_digest(tmp_path / name))
        monkeypatch.setattr("tasks.chunk.store.word_by_word", lambda _: False)
    assert digests[0] == digests[1]
