"""Texts by their ordinal, from disk: written once while streaming, then memory-mapped, so memory does not grow with the corpus."""

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tasks.core.stage.progress import track
from tasks.core.stage.scratch import is_sealed, seal
from tasks.core.tables.batching import split_batch
from tasks.core.tables.parquet import count_rows, read_batches, read_table
from tasks.core.tables.schemas import DOCUMENTS, QUERIES
from tasks.core.text.document import Text, document_text


@dataclass(frozen=True)
class Texts:
    """T texts: UTF-8 bytes, flat, and where each begins."""

    flat: npt.NDArray[np.uint8]
    offsets: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, ordinal: int) -> str:
        return bytes(self.flat[self.offsets[ordinal] : self.offsets[ordinal + 1]]).decode("utf-8")


def store_texts(texts: Iterable[str], path: Path) -> Texts:
    """Write `texts`, in order, to the file `path`, and map it; uses eight bytes of memory per text."""
    offsets = array("q", [0])
    with path.open("wb") as handle:
        for text in texts:
            offsets.append(offsets[-1] + handle.write(text.encode("utf-8")))
    return Texts(_mapped(path), np.frombuffer(offsets, dtype=np.int64))


def _mapped(path: Path) -> npt.NDArray[np.uint8]:
    return np.memmap(path, dtype=np.uint8, mode="r") if path.stat().st_size else np.empty(0, dtype=np.uint8)


def corpus_texts(corpus: Path, settings: Text, path: Path) -> Texts:
    """The texts of all documents of a corpus folder, as every stage reads them, in the file `path`.

    A finished file is reused, so `path` must be in a scratch folder keyed by the same corpus and settings.
    """
    starts = path.with_suffix(".npy")
    if is_sealed(path) and is_sealed(starts):
        return Texts(_mapped(path), np.load(starts, allow_pickle=False))
    documents = corpus / "documents.parquet"
    stored = store_texts(track(document_texts(documents, settings), "texts", count_rows(documents), "documents"), path)
    np.save(starts, stored.offsets)
    for file in (path, starts):
        seal(file)
    return stored


def document_texts(path: Path, settings: Text) -> Iterator[str]:
    """The texts of a file of documents, as every stage reads them, in its order."""
    return (text for _, texts in document_parts(path, settings) for text in texts)


def document_parts(path: Path, settings: Text, group: int | None = None) -> Iterator[tuple[list[str], list[str]]]:
    """Ids and texts of a file of documents, or of one of its row groups, with at most TEXT_BYTES of text at a time."""
    for batch in read_batches(path, DOCUMENTS, group=group):
        for part in split_batch(batch, ["title", "text"]):
            rows = zip(part["title"].to_pylist(), part["text"].to_pylist(), strict=True)
            yield part["id"].to_pylist(), [document_text(title, text, settings) for title, text in rows]


def query_texts(corpus: Path, split: str) -> list[tuple[str, str]]:
    """Id and text of every query of a split."""
    table = read_table(corpus / "queries" / f"{split}.parquet", QUERIES, ["id", "text"])
    return list(zip(table["id"].to_pylist(), table["text"].to_pylist(), strict=True))
