"""Titles and texts of a few documents of a corpus, and how they are shown."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.core.tables.ids import ordinals
from tasks.core.tables.parquet import open_parquet, parquet_errors


def texts_of(path: Path, documents: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Title and text of those of `documents` that a documents.parquet has; reads all its ids, but only the row groups with these ones."""
    ids = pa.array(documents, pa.string())
    rows = ordinals(pa.chunked_array([ids]), path)
    with parquet_errors(path), open_parquet(path) as file:
        ends = np.cumsum([file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)])
        groups = np.unique(np.searchsorted(ends, rows[rows >= 0], side="right")).tolist()
        table = file.read_row_groups(groups, columns=["id", "title", "text"])
    return {row["id"]: (row["title"], row["text"]) for row in table.filter(pc.is_in(table["id"], ids)).to_pylist()}


def shortened(text: str, most: int) -> str:
    """`text` in at most `most` characters, cut at a word boundary if one is near; not every script has spaces."""
    text = " ".join(text.split())
    if len(text) <= most:
        return text
    head = text[: most - 3]
    end = head.rfind(" ")
    return (head[:end] if end > most // 2 else head).rstrip() + " ..."
