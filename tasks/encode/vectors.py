"""The vectors of a shard, as each worker computes them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from tasks.core.encoding.encode import encode
from tasks.core.encoding.packed import Layers, quantized_layers
from tasks.core.errors import UserError
from tasks.core.files import new_file
from tasks.core.machine.devices import best_batch_tokens, choose_device, compute_dtype, hardware, move_module
from tasks.core.models.bi_encoder import Encoder, load_towers
from tasks.core.params.runtime import Runtime
from tasks.core.retrieval.embeddings import Block
from tasks.core.tables.ids import Ints
from tasks.core.tokens.folder import Tokens, open_tokens
from tasks.core.tokens.tokenizer import load_tokenizer
from tasks.encode.params import Encode
from tasks.encode.reuse import KnownRows, encode_touched, known_rows, row_digests
from tasks.encode.shards import ShardStore


class Arithmetic(NamedTuple):
    """How a worker computes: everything but weights and texts that the bits of its vectors depend on."""

    device: str
    name: str  # int8 and the library that computes in it, or the floating-point type
    dtype: str
    hardware: str
    batch_tokens: int
    width: int

    @property
    def int8(self) -> bool:
        return self.name.startswith("int8")

    @property
    def by_row(self) -> bool:
        """Whether a row has the same bits in any batch (tasks.encode.reuse)."""
        return (self.device, self.name) == ("cpu", "float32")


class Piece(NamedTuple):
    """A shard to encode: its number, its rows `first` to `end` - 1, and its digest."""

    number: int
    first: int
    end: int
    digest: str


class Shard(NamedTuple):
    """An encoded shard: its vectors (or their file), the digests of its rows (empty: rows are not reused), and how many were encoded."""

    piece: Piece
    vectors: Block | Path
    rows: bytes
    encoded: int


@dataclass(frozen=True)
class DocumentTower:
    """The document tower of an encoder folder, loaded at first use."""

    encoder: Path
    params: Encode
    runtime: Runtime

    def arithmetic(self) -> Arithmetic:
        """How this process computes."""
        return self.loaded[3]

    @cached_property
    def loaded(self) -> tuple[Encoder, Layers | None, torch.device, Arithmetic]:
        """The tower, ready to encode; its quantized layers, or None; its device; and how it computes there."""
        device = choose_device(self.runtime)
        tower = load_towers(self.encoder).document
        int8 = quantized_layers(tower, load_tokenizer(self.encoder), device) if self.params.precision == "int8" else None
        compute = compute_dtype(device, "fp32" if int8 or self.params.precision == "fp32" else "bf16")
        name, layers = int8 or (str(compute).removeprefix("torch."), None)
        tokens = self.params.batch_tokens or best_batch_tokens(device, compute)
        arithmetic = Arithmetic(device.type, name, str(compute), hardware(device), tokens, tower.width)
        return move_module(tower, device, compute), layers, device, arithmetic


def _ignore(_: int) -> None:
    pass


@dataclass(frozen=True)
class ShardEncoder:
    """Encodes shards. With a `folder`, vectors are written there. `done` is called with the number of rows of each batch."""

    tower: DocumentTower
    tokens: Path
    store: ShardStore  # read only: the stage itself writes it
    family: str
    folder: Path | None = None
    done: Callable[[int], None] = _ignore

    @cached_property
    def _opened(self) -> tuple[Tokens, KnownRows]:
        return open_tokens(self.tokens), known_rows(self.store, self.family)

    def __call__(self, piece: Piece) -> Shard:
        """Encode a shard. UserError if a vector is not finite."""
        (tower, layers, device, arithmetic), (tokens, known) = self.tower.loaded, self._opened
        dtype = self.tower.params.dtype

        def vectors_of(rows: Ints) -> Block:
            vectors = encode(tower, tokens, piece.first + rows, arithmetic.batch_tokens, device, self.done, layers)
            with np.errstate(over="ignore"):  # values too large for float16 become infinite, and are refused below
                return vectors.astype(dtype)

        digests = row_digests(tokens, piece.first, piece.end)
        vectors, encoded = encode_touched(digests, known, self.store, vectors_of)
        if not np.isfinite(vectors).all():
            row = piece.first + int(np.argmin(np.isfinite(vectors).all(axis=1)))
            raise UserError(
                f"{self.tower.encoder}: document {tokens.ids()[int(tokens.owners[row])]} (row {row} of shard {piece.number}) gives NaN or "
                f"infinity as {dtype}, expected finite numbers; retrain that model"
            )
        rows = digests.tobytes() if arithmetic.by_row else b""
        if self.folder is None:
            return Shard(piece, vectors, rows, encoded)
        path = self.folder / f"{piece.number:05}-{piece.digest}.npy"  # two shards of the same texts have one digest
        with new_file(path) as temporary, temporary.open("wb") as handle:
            np.save(handle, vectors)
        return Shard(piece, path, rows, encoded)
