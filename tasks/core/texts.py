"""Texts by their ordinal, from disk: written once as they stream by, then mapped, so memory does not grow with the corpus."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tasks.core.records import DOCUMENTS, QUERIES
from tasks.core.tables import read_batches, read_table
from tasks.core.text import Text, document_text


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
    """Write `texts`, in order, to the file `path`, and map it; in memory: eight bytes a text."""
    offsets = [0]
    with path.open("wb") as handle:
        for text in texts:
            offsets.append(offsets[-1] + handle.write(text.encode("utf-8")))
    flat: npt.NDArray[np.uint8] = np.memmap(path, dtype=np.uint8, mode="r") if offsets[-1] else np.empty(0, dtype=np.uint8)
    return Texts(flat, np.array(offsets, dtype=np.int64))


def corpus_texts(corpus: Path, settings: Text, path: Path) -> Texts:
    """The texts of all documents of a corpus folder, as every stage reads them, in a new file `path`."""

    def texts() -> Iterator[str]:
        for batch in read_batches(corpus / "documents.parquet", DOCUMENTS):
            for title, text in zip(batch["title"].to_pylist(), batch["text"].to_pylist(), strict=True):
                yield document_text(title, text, settings)

    return store_texts(texts(), path)


def query_texts(corpus: Path, split: str) -> list[tuple[str, str]]:
    """Id and text of every query of a split."""
    table = read_table(corpus / "queries" / f"{split}.parquet", QUERIES, ["id", "text"])
    return list(zip(table["id"].to_pylist(), table["text"].to_pylist(), strict=True))
