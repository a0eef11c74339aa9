"""Texts are read back unchanged, in any script."""

import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from tasks.core.text import mapped
from tasks.core.text.document import Text
from tasks.core.text.mapped import corpus_texts, query_texts, store_texts


def test_stored_texts_are_read_back(tmp_path: Path) -> None:
    texts = ["", "plain", "über 東京 🙂", "", "two\nlines"]
    stored = store_texts(iter(texts), tmp_path / "a")
    assert [stored[n] for n in range(len(stored))] == texts
    assert len(store_texts(iter([]), tmp_path / "b")) == 0
    assert store_texts(iter(["", ""]), tmp_path / "c")[1] == ""


def test_a_text_is_eight_bytes_in_memory(tmp_path: Path) -> None:
    tracemalloc.start()
    stored = store_texts(("a text" for _ in range(100_000)), tmp_path / "a")
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(stored) == 100_000
    assert most < 2_000_000, f"{most:,} bytes"


def test_texts_are_written_once_unless_corrupt(tiny_corpus: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_texts() -> list[str]:
        stored = corpus_texts(tiny_corpus.records, Text(titles=True), tmp_path / "t.bin")
        return [stored[n] for n in range(len(stored))]

    texts = read_texts()
    assert texts == [f"{title} {text}" if title else text for title, text in tiny_corpus.documents.values()]
    with monkeypatch.context() as context:
        context.setattr(mapped, "read_batches", lambda *_, **__: pytest.fail("the corpus was read again"))
        assert read_texts() == texts
    for name in ("t.bin", "t.npy"):
        file = tmp_path / name
        corrupt = bytearray(file.read_bytes())
        corrupt[-3] ^= 1
        file.write_bytes(corrupt)
        assert read_texts() == texts


def test_of_a_corpus(tiny_corpus: Any, tmp_path: Path) -> None:
    stored = corpus_texts(tiny_corpus.records, Text(titles=True), tmp_path / "t")
    assert [stored[n] for n in range(60)] == [f"{title} {text}" if title else text for title, text in tiny_corpus.documents.values()]
    assert query_texts(tiny_corpus.records, "dev") == list(tiny_corpus.queries["dev"].items())
