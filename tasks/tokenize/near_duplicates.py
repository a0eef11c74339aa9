"""Near-duplicate documents by MinHash: Broder, On the Resemblance and Containment of Documents (SEQUENCES 1997).

Two documents are near-duplicates if the Jaccard similarity of their sets of SHINGLE consecutive tokens is at least a threshold. The
tokens of tokenize.document_prefix do not count: those at the beginning of a row that the prefix alone has, too. In byte-level BPE and
SentencePiece, the space behind the prefix is a part of the text's first token, which counts.
Candidates are documents that agree on all values of a band (locality-sensitive hashing). Each pair is then compared by its hashed
shingles, so no pair below the threshold is linked. A pair at the threshold (0.05 or more) is a candidate with a probability of at least
FOUND, unless more than COMPARED documents stand between the two in their group. Bands are made one at a time from the tokens on disk,
so memory is 8 bytes per document and value of a band.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tasks.core.tables.ids import Ints, concat_ranges
from tasks.core.tables.parquet import count_rows
from tasks.core.tokens.folder import Tokens
from tasks.core.tokens.same_texts import HASHED_ROWS, first_of_same

Hashes = npt.NDArray[np.uint64]
SHINGLE = 3  # tokens
VALUES = 64  # MinHash values of a document, in all bands together
FOUND = 0.95
COMPARED = 64  # a document is compared with at most this many before it in its band's group
NONE = np.uint64(2**64 - 1)


class Texts(NamedTuple):
    """Tokens, and those at the beginning of a row that do not count."""

    tokens: Tokens
    prompt: Ints


def bands_of(threshold: float) -> tuple[int, int]:
    """The number of bands, and of values in each: the most values that find a pair at the threshold with a probability of FOUND.

    A pair agrees on a band with probability t^values, so on at least one of `bands` with 1 - (1 - t^values)^bands.
    """
    for values in range(VALUES, 1, -1):
        if 1 - (1 - threshold**values) ** (VALUES // values) >= FOUND:
            return VALUES // values, values
    return VALUES, 1


def first_of_near(tokens: Tokens, threshold: float, prompt: Sequence[int] = ()) -> Ints:
    """For each document, the first document of its group, [O]. Groups are linked by near-duplicates and by equal texts.

    `prompt`: the tokens of the prefix alone, with the special ones before; none without a prefix.
    """
    texts = Texts(tokens, np.asarray(prompt, dtype=np.int64))
    first = first_of_same(tokens)
    owners = count_rows(tokens.folder / "ids.parquet")
    bands, values = bands_of(threshold)
    draw = np.random.default_rng(0)
    for _ in range(bands):
        for group in _groups(_band(texts, owners, draw.integers(2**64, size=(values, 2), dtype=np.uint64))):
            for place, owner in enumerate(group):
                for earlier in group[max(0, place - COMPARED) : place]:
                    roots = sorted((_root(first, owner), _root(first, earlier)))
                    if roots[0] != roots[1] and _jaccard(texts, owner, earlier) >= threshold:
                        first[roots[1]] = roots[0]
    return np.array([_root(first, owner) for owner in range(owners)], dtype=np.int64)


def _groups(keys_O: Hashes) -> Iterator[list[int]]:
    """Groups of two or more owners with the same key, each in order. Owners without tokens (NONE) are left out."""
    order = np.argsort(keys_O, kind="stable")
    begins = np.flatnonzero(np.append(True, np.diff(keys_O[order]) != 0)) if len(order) else order
    ends = np.append(begins[1:], len(order))
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        if end - begin > 1 and keys_O[order[begin]] != NONE:
            yield order[begin:end].tolist()


def _root(first: Ints, owner: int) -> int:
    while first[owner] != owner:
        first[owner] = first[first[owner]]
        owner = int(first[owner])
    return owner


def _band(texts: Texts, owners: int, draws_V2: Hashes) -> Hashes:
    """One key per owner, [O]; owners with equal sets of shingles have equal keys. NONE for an owner without tokens."""
    tokens = texts.tokens
    least_VO = np.full((len(draws_V2), owners), NONE)
    for start in range(0, len(tokens), HASHED_ROWS):
        hashes, rows = _shingles(texts, start, min(start + HASHED_ROWS, len(tokens)))
        begins = np.flatnonzero(np.diff(rows, prepend=-1))
        of_owner = tokens.owners[rows[begins]]
        for least_O, (times, plus) in zip(least_VO, draws_V2, strict=True):
            mixed = hashes * (times | np.uint64(1)) + plus
            np.minimum.at(least_O, of_owner, np.minimum.reduceat(mixed ^ (mixed >> np.uint64(31)), begins))
    key_O = np.zeros(owners, dtype=np.uint64)
    for least_O in least_VO:
        key_O = (key_O ^ least_O) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(1)
    key_O[least_VO[0] == NONE] = NONE
    return key_O


def _shingles(texts: Texts, start: int, end: int) -> tuple[Hashes, Ints]:
    """Hashes of all shingles of rows `start` to `end` - 1, and the row of each, in order. A row shorter than a shingle is one shingle.

    The prefix's tokens are excluded; a row without any others keeps its last.
    """
    tokens, prompt = texts
    offsets = np.asarray(tokens.offsets[start : end + 1])
    lengths, flat = np.diff(offsets), np.asarray(tokens.flat[offsets[0] : offsets[-1]])
    if len(prompt):
        begins = offsets[:-1] - offsets[0]
        place_RP = begins[:, None] + np.arange(len(prompt))
        excludable_RP = place_RP < (begins + lengths - 1)[:, None]
        equal_RP = flat[np.where(excludable_RP, place_RP, 0)] == prompt
        skipped = np.logical_and.accumulate(excludable_RP & equal_RP, axis=1).sum(axis=1)
        lengths = lengths - skipped
        flat = flat[concat_ranges(begins + skipped, lengths)]
    flat = flat.astype(np.uint64) + np.uint64(1)
    row = np.repeat(np.arange(start, end), lengths)
    hashes = np.zeros(len(flat), dtype=np.uint64)
    for step in range(SHINGLE):  # add the token `step` places ahead, if the row has it
        in_row = np.zeros(len(flat), dtype=bool)
        in_row[: len(flat) - step] = row[step:] == row[: len(flat) - step]
        shifted = np.zeros(len(flat), dtype=np.uint64)
        shifted[: len(flat) - step] = flat[step:]
        hashes = (hashes ^ np.where(in_row, shifted, np.uint64(0))) * np.uint64(0xBF58476D1CE4E5B9)
        hashes ^= hashes >> np.uint64(29)
    place = concat_ranges(0, lengths)
    is_shingle = (place + SHINGLE <= np.repeat(lengths, lengths)) | (place == 0)
    return hashes[is_shingle], row[is_shingle]


def _jaccard(texts: Texts, first: int, second: int) -> float:
    first_set, second_set = _set(texts, first), _set(texts, second)
    common = int(np.isin(first_set, second_set).sum())
    return common / (len(first_set) + len(second_set) - common)


def _set(texts: Texts, owner: int) -> Hashes:
    start, end = (int(np.searchsorted(texts.tokens.owners, np.int32(owner), side)) for side in ("left", "right"))
    return np.unique(_shingles(texts, start, end)[0])
