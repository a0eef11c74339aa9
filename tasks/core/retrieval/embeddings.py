"""Vectors of a corpus on disk: fixed-width shards that can be memory-mapped, and a manifest written last.

A folder: 00000.npy, 00001.npy, ... [rows, width], manifest.json, owners.npy (int32 [R], the ordinal of the document
that a row is a passage of), ids.parquet (one id per document).
"""

import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from tasks.core.errors import UserError
from tasks.core.files import file_digest, read_json, write_json
from tasks.core.retrieval.ranked import Floats
from tasks.core.tables.ids import Ints, read_ids

Block = npt.NDArray[np.floating]


@dataclass(frozen=True)
class Manifest:
    """The form of the vectors, and the encoder, tokenizer, and text settings that they were made with."""

    rows: int
    width: int
    dtype: str
    shards: list[int]  # rows of each
    weights: str  # SHA-256 of the document tower (tasks.core.models.bi_encoder.document_digest)
    tokenizer: str
    max_length: int
    prefix: str
    digests: list[str] = field(default_factory=list)  # SHA-256 of each shard's file


@dataclass(frozen=True)
class Embeddings:
    """R vectors of width D; shards are mapped one at a time, so memory does not grow with R."""

    folder: Path
    manifest: Manifest
    checked: set[int] = field(default_factory=set)  # shards whose digests have been verified
    mapped: dict[int, torch.Tensor] = field(default_factory=dict)  # shards that `take` has read from

    def __len__(self) -> int:
        return self.manifest.rows

    def refuse_other_width(self, width: int) -> None:
        """UserError unless the vectors have the `width` of the queries'."""
        if width != self.manifest.width:
            raise UserError(
                f"{self.folder}: width {self.manifest.width}, but the encoder has {width}; choose one of that width, or encode again"
            )

    def blocks(self) -> Iterator[tuple[int, Block]]:
        """(first row, [rows, D] memory map) of each shard in turn; UserError for a shard that differs from the manifest.

        Bytes are compared with the manifest's digests the first time that a shard is read.
        """
        start = 0
        for number, rows in enumerate(self.manifest.shards):
            yield start, self._shard(number)
            start += rows

    def take(self, rows: Ints) -> Floats:
        """The vectors of some rows [N], float32 [N, D]; errors are those of `blocks`."""
        shard_N = np.searchsorted(self.starts, rows, side="right") - 1
        order_N = np.argsort(shard_N, kind="stable")
        edges = np.flatnonzero(np.diff(shard_N[order_N], prepend=-1, append=-1)).tolist() if len(rows) else []
        vectors_ND = np.empty((len(rows), self.manifest.width), dtype=np.float32)
        for begin, end in pairwise(edges):
            place_N, number = order_N[begin:end], int(shard_N[order_N[begin]])
            if number not in self.mapped:
                self.mapped[number] = self._map_shard(number)
            vectors_ND[place_N] = self.mapped[number].numpy()[rows[place_N] - self.starts[number]]
        return vectors_ND

    @cached_property
    def starts(self) -> Ints:
        """The first row of each shard, and the number of rows."""
        return np.cumsum([0, *self.manifest.shards])

    def _map_shard(self, number: int) -> torch.Tensor:
        """Map a shard without an open file, which numpy's maps keep: a process may have only so many."""
        block, path = self._shard(number), self.folder / shard_name(number)
        size = path.stat().st_size
        numbers = torch.from_file(str(path), size=size, dtype=torch.uint8)[size - block.nbytes :]
        return numbers.view(torch.float16 if block.dtype == np.float16 else torch.float32).view(block.shape)

    def _shard(self, number: int) -> Block:
        path, shape = self.folder / shard_name(number), (self.manifest.shards[number], self.manifest.width)
        try:
            block: Block = np.load(path, mmap_mode="r", allow_pickle=False)
            if number not in self.checked and file_digest(path) != self.manifest.digests[number]:
                raise ValueError("its digest differs from the manifest's")
            self.checked.add(number)
        except (OSError, ValueError, EOFError) as error:
            raise UserError(f"{path}: unreadable shard ({error}); remove {self.folder} and run encode again") from None
        if block.shape != shape or str(block.dtype) != self.manifest.dtype:
            raise UserError(f"{path}: found {block.shape} {block.dtype}, expected {shape} {self.manifest.dtype}; run encode again")
        return block

    def owners(self) -> npt.NDArray[np.int32]:
        """The document ordinal of every row, [R], mapped."""
        path = self.folder / "owners.npy"
        try:
            owners: npt.NDArray[np.int32] = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise UserError(f"{path}: unreadable ({error}); remove {self.folder} and run encode again") from None
        if len(owners) != self.manifest.rows:
            raise UserError(f"{path}: found {len(owners)} rows, expected {self.manifest.rows}; run encode again")
        return owners

    def ids(self) -> pa.Array:
        """The id of every document."""
        return read_ids(self.folder / "ids.parquet")


def shard_name(number: int) -> str:
    """The file name of shard `number`."""
    return f"{number:05d}.npy"


def write_manifest(folder: Path, manifest: Manifest, tokens: Path) -> None:
    """Finish an embedding folder: the owners of its rows, then the manifest with the shards' digests."""
    for name in ("owners.npy", "ids.parquet"):
        shutil.copyfile(tokens / name, folder / name)
    digests = [file_digest(folder / shard_name(number)) for number in range(len(manifest.shards))]
    write_json(folder / "manifest.json", asdict(replace(manifest, digests=digests)))


def open_embeddings(folder: Path) -> Embeddings:
    """Open an embedding folder; UserError if its manifest is missing or inconsistent."""
    path = folder / "manifest.json"
    try:
        manifest = Manifest(**read_json(path))
        rows = sum(manifest.shards)
    except TypeError as error:
        raise UserError(f"{path}: invalid manifest ({error}); remove {folder} and run encode again") from None
    if len(manifest.digests) != len(manifest.shards):
        raise UserError(f"{path}: {len(manifest.shards)} shards, {len(manifest.digests)} digests; remove {folder} and run encode again")
    if rows != manifest.rows:
        raise UserError(f"{path}: shards have {rows} rows, expected {manifest.rows}; run encode again")
    return Embeddings(folder, manifest)
