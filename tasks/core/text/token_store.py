"""Writing token folders (tasks.core.text.tokens): texts stream in, flat ids stream out."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tasks.core.stage.errors import UserError
from tasks.core.stage.files import write_json
from tasks.core.stage.progress import Progress
from tasks.core.tables.batching import joined
from tasks.core.tables.ids import IDS
from tasks.core.tables.parquet import BATCH_ROWS, write_table

Texts = Iterable[tuple[list[str], list[str]]]  # (ids, texts), a batch at a time


class Passages:
    """Splits texts into passages. The first is that of FirstP; the others have the special tokens and the prefix too.

    Each begins with the last `overlap` tokens of the one before.
    """

    def __init__(self, tokenizer: Any, max_length: int, prefix: str, most: int, overlap: int = 0) -> None:
        framed = tokenizer("a", return_special_tokens_mask=True)
        body = [n for n, special in enumerate(framed["special_tokens_mask"]) if not special]
        lead, self.trail = framed["input_ids"][: body[0]], framed["input_ids"][body[-1] + 1 :]
        self.first, self.tokenizer, self.most, self.overlap = lead, tokenizer, most, overlap
        self.next = [*lead, *tokenizer(prefix, add_special_tokens=False)["input_ids"]]
        self.room, self.room_next = (max_length - len(head) - len(self.trail) for head in (self.first, self.next))
        if self.room_next < 1:
            raise UserError(
                f"params.yaml: tokenize.document_prefix {prefix!r} fills all {max_length} tokens of a passage; increase document_length"
            )
        if overlap >= self.room_next:
            raise UserError(
                f"params.yaml: tokenize.passage_overlap: found {overlap}, expected less than {self.room_next}, "
                "the tokens of a passage without its special tokens and prefix; decrease it, or increase document_length"
            )

    def __call__(self, texts: list[str]) -> list[list[list[int]]]:
        """The passages of each text, prefix included, as rows of token ids; at least one."""
        most = self.room + (self.most - 1) * (self.room_next - self.overlap)
        bodies = self.tokenizer(texts, add_special_tokens=False, truncation=True, max_length=most, return_attention_mask=False)["input_ids"]
        return [self._cut(body) for body in bodies]

    def _cut(self, body: list[int]) -> list[list[int]]:
        starts = range(self.room - self.overlap, len(body) - self.overlap, self.room_next - self.overlap)
        later = [[*self.next, *body[start : start + self.room_next], *self.trail] for start in starts]
        return [[*self.first, *body[: self.room], *self.trail], *later]


def write_tokens(
    folder: Path,
    batches: Texts,
    tokenizer: Any,
    digest: str,
    max_length: int,
    prefix: str,
    total: int,
    passages: int = 1,
    overlap: int = 0,
) -> None:
    """Tokenize (id, text) batches into `folder` (new). The tokenizer's threads share each batch.

    A text is truncated to `max_length` tokens, special tokens included (FirstP), or split into up to `passages` rows of that
    length, each with the special tokens and the prefix (MaxP: ANCE (arXiv:2007.00808), section 5), and with the last `overlap`
    tokens of the row before. A text without tokens becomes a single padding token, so that every text has a vector.
    """
    split = Passages(tokenizer, max_length, prefix, passages, overlap) if passages > 1 else None
    folder.mkdir(parents=True)
    dtype = np.dtype(np.uint16 if len(tokenizer) <= 2**16 else np.int32)
    lengths: list[np.ndarray[Any, Any]] = []
    counts: list[np.ndarray[Any, Any]] = []
    progress = Progress(f"tokenize {folder.name}", total, "texts")

    def flat() -> Iterator[pa.Table]:
        with (folder / "tokens.bin").open("wb") as out:
            for ids, texts in batches:
                prefixed = [prefix + text for text in texts]
                if split:
                    parts = split(prefixed)
                    counts.append(np.fromiter(map(len, parts), dtype=np.int64, count=len(parts)))
                    found = [row for part in parts for row in part]
                else:
                    found = tokenizer(prefixed, truncation=True, max_length=max_length, return_attention_mask=False)["input_ids"]
                rows = [row or [tokenizer.pad_token_id] for row in found]
                np.concatenate([np.asarray(row, dtype=dtype) for row in rows]).tofile(out)
                lengths.append(np.fromiter(map(len, rows), dtype=np.int64, count=len(rows)))
                progress.advance(len(texts))
                yield pa.table([ids], schema=IDS)

    rows = write_table(folder / "ids.parquet", IDS, joined(flat(), BATCH_ROWS))
    np.save(folder / "offsets.npy", np.concatenate([[0], *lengths]).cumsum().astype(np.int64))
    owners = np.arange(rows, dtype=np.int32)
    np.save(folder / "owners.npy", np.repeat(owners, np.concatenate(counts)) if counts else owners)
    meta = {"dtype": dtype.name, "pad": tokenizer.pad_token_id, "max_length": max_length, "prefix": prefix, "tokenizer": digest}
    write_json(folder / "meta.json", meta)
    progress.close()
    full = int((np.concatenate(lengths or [np.zeros(0)]) == max_length).sum())
    if full and not split:
        print(f"{folder.name}: {full:,} of {rows:,} texts reach {max_length} tokens; anything beyond is truncated")
