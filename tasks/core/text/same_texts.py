"""Documents, or queries, with the same text as given ones: the corpus is read a part at a time, and only those found are kept.

Two texts are the same if a model cannot tell them apart: it sees their tokens, truncated to its length. Tokens are compared by a
multilinear hash of 64 bits. Two texts that differ collide with probability 2^-64, or 2^-34 at worst: a difference of two token ids
below 2^31 ends in at most 30 zero bits, which a multiplication keeps.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tasks.core.stage.errors import Corrupt
from tasks.core.tables.ids import Ints
from tasks.core.tables.judgments import SameTexts
from tasks.core.tables.parquet import count_rows
from tasks.core.text.tokens import Tokens

Hashes = npt.NDArray[np.uint64]
SAME = "same.npy"
HASHED_ROWS = 1 << 13  # texts that are hashed at a time; an owner's are never parted
END, PASSAGES = 2**62, 2**63  # numbers of multipliers: of a row's end, and from there on of a passage's place in its document


def same_texts(tokens: Tokens, of: Ints) -> SameTexts:
    """All owners with the tokens of one of `of`. same.npy in the folder, if tokenize wrote it (tokenize.near_duplicates), also has
    those with nearly the same.
    """
    owners, near = count_rows(tokens.folder / "ids.parquet"), tokens.folder / SAME
    of = np.unique(of)
    if not len(of):
        return SameTexts(of, of)
    groups = _read_groups(near, owners) if near.exists() else None
    if groups is None:
        wanted, parts = np.concatenate([*_hashes_of(tokens, of)]), _all_hashes(tokens, owners)
    else:
        wanted, parts = groups[of], (groups[start : start + HASHED_ROWS] for start in range(0, owners, HASHED_ROWS))
    wanted = np.unique(wanted)
    members, keys, start = list[Ints](), list[Hashes](), 0
    for part in parts:
        place = np.searchsorted(wanted, part).clip(max=len(wanted) - 1)  # np.isin would sort all of `wanted` for each part
        found = np.flatnonzero(wanted[place] == part)
        members.append(found + start)
        keys.append(part[found])
        start += len(part)
    member = np.concatenate(members)
    _, first, group = np.unique(np.concatenate(keys), return_index=True, return_inverse=True)
    return SameTexts(member, member[first[group]])


def first_of_same(tokens: Tokens) -> Ints:
    """For each owner, the first one with the same text, [O]: itself if none comes before it. Memory grows with the owners."""
    owners, near = count_rows(tokens.folder / "ids.parquet"), tokens.folder / SAME
    keys = _read_groups(near, owners) if near.exists() else np.concatenate([np.empty(0, np.uint64), *_all_hashes(tokens, owners)])
    _, first, group = np.unique(keys, return_index=True, return_inverse=True)
    same: Ints = first[group]
    return same


def _read_groups(path: Path, owners: int) -> Hashes:
    try:
        groups: Hashes = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise Corrupt(f"{path}: unreadable ({error}); run tokenize again") from None
    if groups.shape != (owners,):
        raise Corrupt(f"{path}: found shape {groups.shape}, expected ({owners},); run tokenize again")
    return groups.view(np.uint64)


def _all_hashes(tokens: Tokens, owners: int) -> Iterator[Hashes]:
    """The hash of every owner, in order, in parts."""
    begin = row = 0
    while begin < owners:
        end = row + HASHED_ROWS
        following = owners
        if end < len(tokens):  # an owner that reaches beyond is of the next part, unless it is the only one
            following = max(int(tokens.owners[end]), begin + 1)
            end = int(np.searchsorted(tokens.owners, np.int32(following)))
        end = min(end, len(tokens))
        yield _hashes(tokens, np.arange(row, end), np.arange(begin, following))
        begin, row = following, end


def _hashes_of(tokens: Tokens, of: Ints) -> Iterator[Hashes]:
    """The hashes of the owners `of`, sorted and distinct, in parts."""
    first, end = (np.searchsorted(tokens.owners, of.astype(tokens.owners.dtype), side) for side in ("left", "right"))
    rows = (end - first).cumsum()
    start = 0
    while start < len(of):  # as many owners as have HASHED_ROWS rows together, one at least
        before = rows[start] - (end[start] - first[start])
        stop = max(int(np.searchsorted(rows, before + HASHED_ROWS, "right")), start + 1)
        counts = end[start:stop] - first[start:stop]
        within = np.arange(counts.sum()) - np.repeat(counts.cumsum() - counts, counts)
        yield _hashes(tokens, np.repeat(first[start:stop], counts) + within, of[start:stop])
        start = stop


def _hashes(tokens: Tokens, rows: Ints, owners: Ints) -> Hashes:
    """The hash of each of `owners`, sorted and distinct, whose rows are `rows`, in order; modulo 2^64, as all sums."""
    starts = tokens.offsets[rows]
    lengths = tokens.offsets[rows + 1] - starts
    ends = lengths.cumsum()
    place = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - lengths, lengths)
    flat = tokens.flat[np.repeat(starts, lengths) + place].astype(np.uint64) + np.uint64(1)
    sums = np.append(np.uint64(0), np.cumsum(flat * _multipliers(0, int(lengths.max(initial=0)))[place], dtype=np.uint64))
    of_row = sums[ends] - sums[ends - lengths] + _multipliers(END, 1)
    owner = tokens.owners[rows]
    passage = np.arange(len(rows)) - np.searchsorted(owner, owner)
    found = np.zeros(len(owners), dtype=np.uint64)
    np.add.at(
        found, np.searchsorted(owners, owner), of_row * (_multipliers(PASSAGES, int(passage.max(initial=-1)) + 1) | np.uint64(1))[passage]
    )
    return found


def _multipliers(first: int, count: int) -> Hashes:
    """The numbers `first` to `first + count - 1` of SplitMix64 (Steele et al., OOPSLA 2014): each is known without those before."""
    x = (np.arange(count, dtype=np.uint64) + np.uint64(first + 1)) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
