"""Reuse the vectors of rows whose text has not changed, even if their shard was touched.

A touched shard must equal, bit for bit, a full encode of that shard. So a row's vector must not depend on its batch, and
whether it does depends on the machine. In fp32, on the CPUs tried, it does not once rows are padded to multiples of 16
(tasks.core.encoding.encode). A GPU, or bf16, chooses different kernels for different shapes, so rows are not reused there.
Every touched shard is checked: PROBES of its known rows, spread over the shard, are re-encoded along with the new ones. If
a single bit differs, the whole shard is encoded.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tasks.core.retrieval.embeddings import Block
from tasks.core.tables.ids import Ints
from tasks.core.tokens.folder import Tokens
from tasks.encode.shards import ShardStore

PROBES = 32
Digests = npt.NDArray[np.uint64]  # [rows, 2]


def row_digests(tokens: Tokens, first: int, end: int) -> Digests:
    """A 128-bit digest of every row's tokens, [rows, 2]. Among n rows, two share a digest with probability n^2 / 2^129."""
    offsets = (tokens.offsets[first : end + 1] - tokens.offsets[first]) * tokens.flat.itemsize
    flat = np.ascontiguousarray(tokens.flat[tokens.offsets[first] : tokens.offsets[end]]).tobytes()
    cuts = zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)
    digests = b"".join(hashlib.blake2b(flat[start:stop], digest_size=16).digest() for start, stop in cuts)
    return np.frombuffer(digests, dtype=np.uint64).reshape(-1, 2)


@dataclass(frozen=True)
class KnownRows:
    """The rows of kept shards, by the digest of their tokens: 24 bytes each."""

    digests: Digests  # [K, 2], sorted by their first half
    shard: npt.NDArray[np.int32]  # [K], place in `names`
    row: npt.NDArray[np.int32]  # [K], within the shard
    names: list[str]

    def find(self, wanted: Digests) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """The shard and the row of every digest in `wanted`, both -1 if it is unknown."""
        if not len(self.digests):
            return np.full(len(wanted), -1, dtype=np.int32), np.full(len(wanted), -1, dtype=np.int32)
        place = np.minimum(np.searchsorted(self.digests[:, 0], wanted[:, 0]), len(self.digests) - 1)
        known = (self.digests[place] == wanted).all(axis=1)
        return np.where(known, self.shard[place], np.int32(-1)), np.where(known, self.row[place], np.int32(-1))


def known_rows(store: ShardStore, family: str) -> KnownRows:
    """The rows of all kept shards of `family` that have row digests."""
    names: list[str] = []
    parts: list[Digests] = []
    for name, content in store.row_digests(family):
        names.append(name)
        parts.append(np.frombuffer(content[: len(content) // 16 * 16], dtype=np.uint64).reshape(-1, 2))
    digests = np.concatenate([np.empty((0, 2), dtype=np.uint64), *parts])
    shard = np.repeat(np.arange(len(names), dtype=np.int32), [len(part) for part in parts])
    row = np.concatenate([np.empty(0, dtype=np.int32), *(np.arange(len(part), dtype=np.int32) for part in parts)])
    order = np.argsort(digests[:, 0], kind="stable")
    return KnownRows(digests[order], shard[order], row[order], names)


def encode_touched(wanted: Digests, known: KnownRows, store: ShardStore, encode: Callable[[Ints], Block]) -> tuple[Block, int]:
    """The vectors of a shard, from known rows where possible, and how many rows were encoded.

    `wanted`: the digests of its rows. `encode` encodes a subset of them.
    """
    shard, row = known.find(wanted)
    all_rows = np.arange(len(wanted))
    vectors: Block | None = None
    for number in np.unique(shard[shard >= 0]).tolist():
        block, in_block = store.read(known.names[number]), shard == number
        if block is None or row[in_block].max() >= len(block):
            shard[in_block] = -1
        else:
            vectors = np.zeros((len(wanted), block.shape[1]), dtype=block.dtype) if vectors is None else vectors
            vectors[in_block] = block[row[in_block]]
    known_places = np.flatnonzero(shard >= 0)
    if vectors is None or len(known_places) <= PROBES:
        return encode(all_rows), len(wanted)
    probes = known_places[np.linspace(0, len(known_places) - 1, PROBES).astype(np.int64)]
    to_encode = np.union1d(np.flatnonzero(shard < 0), probes)
    fresh = encode(to_encode)
    if fresh[np.searchsorted(to_encode, probes)].tobytes() != vectors[probes].tobytes():
        return encode(all_rows), len(to_encode) + len(wanted)
    vectors[to_encode] = fresh
    return vectors, len(to_encode)
