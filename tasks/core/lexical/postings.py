"""A corpus's postings, inverted on disk: memory holds a block of documents and the vocabulary, for any corpus.

Two passes. Documents stream in and are written as (term, frequency) pairs, in their order; then, document and term
frequencies being known, each pair's weight is written to its position in the column of its term: a counting sort, a block at a time.
Shapes: N documents, V terms, P pairs.
"""

import math
from array import array
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tasks.core.stage.progress import Progress

BLOCK = 2**17  # pairs in memory at a time, about 13 MB including sorting
PARTS = ("terms", "counts", "lengths", "sizes")  # files of the first pass, int32: two per pair, two per document


@dataclass(frozen=True)
class Pairs:
    """The result of the first pass: the files PARTS in `folder`, and the parts that are in memory."""

    folder: Path
    vocabulary: dict[str, int]  # terms by number, in order of appearance
    frequencies: npt.NDArray[np.int64]  # documents of every term, [V]
    blocks: list[tuple[int, int]]  # documents and pairs of each
    documents: int
    words: int


@dataclass(frozen=True)
class Columns:
    """The inverted index: for every term its documents, ascending, and its weight in each."""

    data: npt.NDArray[np.float32]  # [P], mapped
    indices: npt.NDArray[np.int32]  # [P], mapped
    indptr: npt.NDArray[np.int64]  # [V + 1]


def write_pairs(texts: Iterable[str], terms: Callable[[str], list[str]], folder: Path) -> Pairs:
    """Make the first pass over `texts`, which are read once; `folder` exists."""
    vocabulary: dict[str, int] = {}
    frequencies, blocks = array("q"), list[tuple[int, int]]()
    buffers = {part: array("i") for part in PARTS}
    documents = words = 0
    files = {part: (folder / part).open("wb") for part in PARTS}
    try:

        def flush() -> None:
            blocks.append((len(buffers["sizes"]), len(buffers["terms"])))
            for part, buffer in buffers.items():
                buffer.tofile(files[part])
                del buffer[:]

        for text in texts:
            counts = Counter([vocabulary.setdefault(term, len(vocabulary)) for term in terms(text)])
            frequencies.extend([0] * (len(vocabulary) - len(frequencies)))
            for term in counts:
                frequencies[term] += 1
            buffers["terms"].extend(counts)
            buffers["counts"].extend(counts.values())
            buffers["lengths"].append(counts.total())
            buffers["sizes"].append(len(counts))
            documents, words = documents + 1, words + counts.total()
            if len(buffers["terms"]) >= BLOCK or len(buffers["sizes"]) >= BLOCK:
                flush()
        flush()
    finally:
        for file in files.values():
            file.close()
    return Pairs(folder, vocabulary, np.array(frequencies, dtype=np.int64), blocks, documents, words)


def invert(pairs: Pairs, k1: float, b: float) -> Columns:
    """Make the second pass: weights idf * tf / (k1 (1 - b + b length / mean length) + tf), Lucene's BM25, with the same bits as bm25s."""
    indptr = np.concatenate([[0], np.cumsum(pairs.frequencies)])
    total = int(indptr[-1])
    data = np.memmap(pairs.folder / "data", np.float32, "w+", shape=(total,))
    indices = np.memmap(pairs.folder / "indices", np.int32, "w+", shape=(total,))
    seen = np.unique(pairs.frequencies)  # few: most terms are rare
    logs = np.array([math.log(1 + (pairs.documents - n + 0.5) / (n + 0.5)) for n in seen.tolist()], dtype=np.float32)
    idf = logs[np.searchsorted(seen, pairs.frequencies)]
    average = pairs.words / pairs.documents
    heads, first = indptr[:-1].copy(), 0
    offsets = dict.fromkeys(PARTS, 0)
    progress = Progress("bm25: postings inverted", total, "postings")
    for documents, count in pairs.blocks:
        parts: dict[str, npt.NDArray[np.int32]] = {}
        for part, items in zip(PARTS, (count, count, documents, documents), strict=True):
            parts[part] = np.fromfile(pairs.folder / part, np.int32, items, offset=offsets[part])
            offsets[part] += 4 * items
        norm = np.repeat(k1 * ((1 - b) + b * parts["lengths"] / average), parts["sizes"])
        document = np.repeat(np.arange(first, first + documents, dtype=np.int32), parts["sizes"])
        frequency = parts["counts"].astype(np.float32)
        weight = idf[parts["terms"]] * (frequency / (norm + frequency))
        order = np.argsort(parts["terms"], kind="stable")
        term = parts["terms"][order]
        starts = np.flatnonzero(np.diff(term, prepend=-1))  # of each term's run: a block has few of the V terms
        runs = np.diff(starts, append=count)
        place = heads[term] + np.arange(count) - np.repeat(starts, runs)
        data[place] = weight[order]
        indices[place] = document[order]
        heads[term[starts]] += runs
        first += documents
        progress.advance(count)
    progress.close()
    return Columns(data, indices, indptr)
