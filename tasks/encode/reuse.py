"""Rows whose texts have not changed keep their vectors, though their shard was touched.

That a touched shard then has the bits that encoding the whole of it gives rests on the machine: a row's vector must not
depend on the batch it stands in. In fp32 on the CPUs tried it does not, once rows are padded to multiples of 16
(tasks.core.retrieval.encode); a GPU, or bf16, chooses other kernels for other shapes and is not asked. It is checked on every
touched shard: PROBES of its known rows, spread over the shard, are encoded again among the new ones, and where one bit
differs, the whole shard is encoded.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tasks.core.retrieval.embeddings import Block
from tasks.core.tables.ids import Ints
from tasks.core.text.tokens import Tokens
from tasks.encode.shards import ShardStore

PROBES = 32
Digests = npt.NDArray[np.uint64]  # [rows, 2]


def row_digests(tokens: Tokens, first: int, end: int) -> Digests:
    """128 bits of every row's tokens, [rows, 2]; that two of n rows share them has probability n^2 / 2^129."""
    offsets = (tokens.offsets[first : end + 1] - tokens.offsets[first]) * tokens.flat.itemsize
    flat = np.ascontiguousarray(tokens.flat[tokens.offsets[first] : tokens.offsets[end]]).tobytes()
    cuts = zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)
    digests = b"".join(hashlib.blake2b(flat[start:stop], digest_size=16).digest() for start, stop in cuts)
    return np.frombuffer(digests, dtype=np.uint64).reshape(-1, 2)


@dataclass(frozen=True)
class KnownRows:
    """Rows of kept shards by digest; 24 bytes each."""

    digests: Digests  # [K, 2], by their first half
    shard: npt.NDArray[np.int32]  # [K], place in `names`
    row: npt.NDArray[np.int32]  # [K], within the shard
    names: list[str]

    def find(self, wanted: Digests) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """Shard and row of every digest of `wanted`, -1 where it is not known."""
        if not len(self.digests):
            return np.full((2, len(wanted)), -1, dtype=np.int32)[0], np.full(len(wanted), -1, dtype=np.int32)
        place = np.minimum(np.searchsorted(self.digests[:, 0], wanted[:, 0]), len(self.digests) - 1)
        known = (self.digests[place] == wanted).all(axis=1)
        return np.where(known, self.shard[place], np.int32(-1)), np.where(known, self.row[place], np.int32(-1))


def known_rows(store: ShardStore, family: str) -> KnownRows:
    """The rows of every kept shard of `family`."""
    names: list[str] = []
    parts: list[Digests] = []
    for name, held in store.row_digests(family):
        names.append(name)
        parts.append(np.frombuffer(held[: len(held) // 16 * 16], dtype=np.uint64).reshape(-1, 2))
    digests = np.concatenate([np.empty((0, 2), dtype=np.uint64), *parts])
    shard = np.repeat(np.arange(len(names), dtype=np.int32), [len(part) for part in parts])
    row = np.concatenate([np.empty(0, dtype=np.int32), *(np.arange(len(part), dtype=np.int32) for part in parts)])
    order = np.argsort(digests[:, 0], kind="stable")
    return KnownRows(digests[order], shard[order], row[order], names)


def encode_touched(wanted: Digests, known: KnownRows, store: ShardStore, encode: Callable[[Ints], Block]) -> tuple[Block, int]:
    """Vectors of a shard's rows by their digests, and how many rows were encoded; `encode` gives those of some rows of it."""
    shard, row = known.find(wanted)
    everything = np.arange(len(wanted))
    taken: Block | None = None
    for number in np.unique(shard[shard >= 0]).tolist():
        block, here = store.read(known.names[number]), shard == number
        if block is None or row[here].max() >= len(block):
            shard[here] = -1
        else:
            taken = np.zeros((len(wanted), block.shape[1]), dtype=block.dtype) if taken is None else taken
            taken[here] = block[row[here]]
    held = np.flatnonzero(shard >= 0)
    if taken is None or len(held) <= PROBES:
        return encode(everything), len(wanted)
    probes = held[np.linspace(0, len(held) - 1, PROBES).astype(np.int64)]
    again = np.union1d(np.flatnonzero(shard < 0), probes)
    fresh = encode(again)
    if fresh[np.searchsorted(again, probes)].tobytes() != taken[probes].tobytes():
        return encode(everything), len(again) + len(wanted)
    taken[again] = fresh
    return taken, len(again)
