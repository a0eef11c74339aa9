"""The index inverted on disk equals bm25s's own build in memory byte for byte, for any block size."""

import random
from pathlib import Path
from tempfile import TemporaryDirectory

import bm25s
import pyarrow as pa
import pytest

from tasks.core.lexical import postings
from tasks.core.lexical.build import build, save
from tasks.core.lexical.params import BM25


def index_by_bm25s(texts: list[str], params: BM25, folder: Path) -> None:
    """All in memory, by the library."""
    vocabulary: dict[str, int] = {}
    documents = [[vocabulary.setdefault(term, len(vocabulary)) for term in text.split()] for text in texts]
    index = bm25s.BM25(k1=params.k1, b=params.b, method="lucene")
    index.index((documents, vocabulary), create_empty_token=False, show_progress=False)
    index.save(folder, show_progress=False)


@pytest.mark.parametrize("block", [1, 7, 100, postings.BLOCK])
@pytest.mark.parametrize("seed", range(3))
def test_index_files_equal_those_of_bm25s(seed: int, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    words = [f"w{int(rng.paretovariate(0.4))}" for _ in range(3000)]  # few often, many once, as in a language
    texts = [" ".join(rng.choices(words, k=rng.choice([0, 1, 5, 30, 200]))) for _ in range(150)]
    params = BM25(k1=rng.uniform(0, 2), b=rng.random())
    index_by_bm25s(texts, params, tmp_path / "bm25s")
    monkeypatch.setattr(postings, "BLOCK", block)
    with TemporaryDirectory(dir=tmp_path) as scratch:
        save(tmp_path / "ours", build(iter(texts), str.split, params, Path(scratch)), [pa.array(map(str, range(150)))], params)
    names = sorted(file.name for file in (tmp_path / "bm25s").iterdir())
    assert len(names) == 5
    for name in names:
        assert (tmp_path / "ours" / name).read_bytes() == (tmp_path / "bm25s" / name).read_bytes(), name


@pytest.mark.parametrize("block", [1, 2, 3, 6, 40])
def test_a_block_ends_with_the_document_that_fills_it(block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `block` pairs, or as many documents, so that texts without terms do not add up in memory."""
    rng = random.Random(block)
    texts = [" ".join(rng.choices("abcd", k=rng.choice([0, 0, 0, 1, 2, 9]))) for _ in range(200)]
    monkeypatch.setattr(postings, "BLOCK", block)
    expected, documents, pairs = list[tuple[int, int]](), 0, 0
    for text in texts:
        documents, pairs = documents + 1, pairs + len(set(text.split()))
        if documents >= block or pairs >= block:
            expected, documents, pairs = [*expected, (documents, pairs)], 0, 0
    assert postings.write_pairs(texts, str.split, tmp_path).blocks == [*expected, (documents, pairs)]
