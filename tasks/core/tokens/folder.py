"""Token ids of many texts, flat in a memory map. Written by tokenize, read by every stage that encodes.

A folder: tokens.bin (uint16, or int32 for large vocabularies; special tokens included), offsets.npy (int64,
rows + 1), owners.npy (int32, the ordinal of the document or query that a row is a passage of, sorted),
ids.parquet (one id per owner), meta.json; same.npy (int64, one per owner; empty without tokenize.near_duplicates).
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tasks.core.errors import UserError
from tasks.core.files import read_json
from tasks.core.tables.ids import Ints, read_ids

if TYPE_CHECKING:  # two CPU seconds, for stages that only need ids
    import torch


@dataclass(frozen=True)
class Tokens:
    """R texts (rows) of O owners. `flat` and `offsets` stay on disk until they are read."""

    flat: npt.NDArray[np.generic]
    offsets: Ints
    owners: npt.NDArray[np.int32]
    folder: Path
    pad: int
    max_length: int
    prefix: str
    tokenizer: str
    prompt: int = 0  # tokens that a row begins with because of its prefix: the prefix's, and special ones before

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Ints:
        """Tokens of every row, [R]."""
        lengths: Ints = np.diff(self.offsets)
        return lengths

    def ids(self) -> pa.Array:
        """The id of every owner, [O]."""
        return read_ids(self.folder / "ids.parquet")

    def rows_of(self, owners: Ints) -> Ints:
        """The rows (passages) of each of `owners` [U], as [U, P]: P is the largest number of passages; -1 where a document has fewer."""
        owners = owners.astype(self.owners.dtype)  # otherwise numpy makes a wider copy of the whole array
        first_U1, end_U1 = (np.searchsorted(self.owners, owners, side)[:, None] for side in ("left", "right"))
        rows_UP: Ints = first_U1 + np.arange(int((end_U1 - first_U1).max(initial=0)))
        return np.where(rows_UP < end_U1, rows_UP, -1)

    def padded(self, rows: Ints, length: int = 0) -> "tuple[torch.Tensor, torch.Tensor]":
        """Token ids and attention mask, both int64 [B, L], of `rows` [B]; L is `length`, or that of the longest row."""
        spans = zip(self.offsets[rows], self.offsets[rows + 1], strict=True)
        return pad_rows([self.flat[start:end] for start, end in spans], self.pad, length)


def pad_rows(rows: Sequence[npt.NDArray[np.generic]], pad: int, length: int = 0) -> "tuple[torch.Tensor, torch.Tensor]":
    """Pad rows of tokens to `length`, or to that of the longest: ids and attention mask, both int64 [B, L]."""
    import torch

    lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
    mask_BL = np.arange(max(length, lengths.max())) < lengths[:, None]
    ids_BL = np.full(mask_BL.shape, pad, dtype=np.int64)
    ids_BL[mask_BL] = np.concatenate(rows)
    return torch.from_numpy(ids_BL), torch.from_numpy(mask_BL.astype(np.int64))


def open_tokens(folder: Path) -> Tokens:
    """Memory-map a token folder; UserError if it is missing or inconsistent."""
    meta = read_json(folder / "meta.json")
    flat_path = folder / "tokens.bin"
    try:
        dtype = np.dtype(meta["dtype"])
        texts = {name: meta[name] for name in ("pad", "max_length", "prefix", "tokenizer")} | {"prompt": meta.get("prompt", 0)}
        offsets = np.load(folder / "offsets.npy", mmap_mode="r", allow_pickle=False)
        owners = np.load(folder / "owners.npy", mmap_mode="r", allow_pickle=False)
        size, expected = flat_path.stat().st_size, int(offsets[-1]) * dtype.itemsize
    except (OSError, ValueError, EOFError, KeyError, TypeError, IndexError) as error:
        raise UserError(f"{folder}: incomplete token folder ({error}); run tokenize again") from None
    if size != expected:
        raise UserError(f"{flat_path}: {size} bytes, expected {expected}; run tokenize again")
    if len(owners) != len(offsets) - 1:
        raise UserError(f"{folder / 'owners.npy'}: {len(owners)} rows, expected {len(offsets) - 1}; run tokenize again")
    flat: npt.NDArray[np.generic] = np.memmap(flat_path, dtype=dtype, mode="r") if size else np.empty(0, dtype=dtype)
    return Tokens(flat, offsets, owners, folder, **texts)


def cut_by_budget(lengths: Ints, budget: int, least: int = 1) -> list[Ints]:
    """Divide positions 0..R-1 into batches of similar length, longest first: rows x longest row of a batch is at most `budget`.

    The budget is lowered until there are at least `least` batches, or one per row. A row longer than the budget is a batch of its own. A
    pure function of its arguments.
    """
    order = np.argsort(-lengths, kind="stable")
    if least > 1:
        budget = min(budget, -(-int(lengths.sum()) // least))
    while True:
        batches = []
        start = 0
        while start < len(order):
            size = max(1, budget // int(lengths[order[start]]))
            batches.append(order[start : start + size])
            start += size
        if len(batches) >= min(least, len(order)):
            return batches
        budget = budget * 7 // 8


def cut_evenly(lengths: Ints, budget: int, least: int) -> list[Ints]:
    """Divide positions 0..R-1 into few batches of about equally many tokens, at most `budget` each, without padding.

    There are at least `least` batches, or one per row. A row longer than the budget is a batch of its own. A pure function of its
    arguments.
    """
    order = np.argsort(-lengths, kind="stable").tolist()
    fewest = max(-(-int(np.sum(lengths * (most + 1) > budget)) // most) for most in range(1, 9))  # a batch has at most `most` such rows
    for count in range(max(least, fewest, -(-int(lengths.sum()) // budget)), len(order)):
        batches, sizes = [list[int]() for _ in range(count)], [(0, number) for number in range(count)]
        for row in order:  # the longest first, each to the batch that has least
            size, number = sizes[0]
            batches[number].append(row)
            heapq.heapreplace(sizes, (size + int(lengths[row]), number))
        if all(size <= budget or len(batches[number]) == 1 for size, number in sizes):
            return [np.array(batch) for batch in batches]
    return [np.array([row]) for row in order]
