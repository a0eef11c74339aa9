"""Texts come back as they were, whatever their letters."""

from pathlib import Path
from typing import Any

from tasks.core.text import Text
from tasks.core.texts import corpus_texts, query_texts, store_texts


def test_texts_come_back(tmp_path: Path) -> None:
    texts = ["", "plain", "über 東京 🙂", "", "two\nlines"]
    stored = store_texts(iter(texts), tmp_path / "a")
    assert [stored[n] for n in range(len(stored))] == texts
    assert len(store_texts(iter([]), tmp_path / "b")) == 0
    assert store_texts(iter(["", ""]), tmp_path / "c")[1] == ""


def test_of_a_corpus(tiny_corpus: Any, tmp_path: Path) -> None:
    stored = corpus_texts(tiny_corpus.records, Text(titles=True), tmp_path / "t")
    assert [stored[n] for n in range(60)] == [f"{title} {text}" if title else text for title, text in tiny_corpus.documents.values()]
    assert query_texts(tiny_corpus.records, "dev") == list(tiny_corpus.queries["dev"].items())
