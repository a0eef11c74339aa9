"""Writing token folders (tasks.core.tokens): texts stream in, flat ids stream out."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tasks.core.files import write_json
from tasks.core.progress import Progress
from tasks.core.tables import write_table
from tasks.core.tokens import IDS

Texts = Iterable[tuple[list[str], list[str]]]  # (ids, texts), a batch at a time


def write_tokens(folder: Path, batches: Texts, tokenizer: Any, digest: str, max_length: int, prefix: str, total: int) -> None:
    """Tokenise (id, text) batches into `folder` (new). Rust threads of the tokenizer share a batch among the cores.

    A text is cut to `max_length` tokens, special ones included; one without any stands as a single padding token, so that
    every row has a vector. One row a text: passages are to come.
    """
    folder.mkdir(parents=True)
    dtype = np.dtype(np.uint16 if len(tokenizer) <= 2**16 else np.int32)
    lengths: list[np.ndarray[Any, Any]] = []
    progress = Progress(f"tokenize {folder.name}", total, "texts")

    def flat() -> Iterator[pa.Table]:
        with (folder / "tokens.bin").open("wb") as out:
            for ids, texts in batches:
                found = tokenizer([prefix + t for t in texts], truncation=True, max_length=max_length, return_attention_mask=False)
                rows = [row or [tokenizer.pad_token_id] for row in found["input_ids"]]
                np.concatenate([np.asarray(row, dtype=dtype) for row in rows]).tofile(out)
                lengths.append(np.fromiter(map(len, rows), dtype=np.int64, count=len(rows)))
                progress.advance(len(rows))
                yield pa.table([ids], schema=IDS)

    rows = write_table(folder / "ids.parquet", IDS, flat())
    np.save(folder / "offsets.npy", np.concatenate([[0], *lengths]).cumsum().astype(np.int64))
    np.save(folder / "owners.npy", np.arange(rows, dtype=np.int32))
    meta = {"dtype": dtype.name, "pad": tokenizer.pad_token_id, "max_length": max_length, "prefix": prefix, "tokenizer": digest}
    write_json(folder / "meta.json", meta)
    progress.close()
