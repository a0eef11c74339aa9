"""Documents, or queries, with the same text as given ones: the corpus is read a part at a time, and only those found are kept.

Two texts are the same if a model cannot tell them apart: it sees their tokens, truncated to its length. Tokens are compared by a
multilinear hash of 64 bits. Two texts that differ collide with probability 2^-64, or 2^-34 at worst: a difference of two token ids
below 2^31 ends in at most 30 zero bits, which a multiplication keeps.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tasks.core.errors import Corrupt
from tasks.core.tables.ids import Ints, concat_ranges
from tasks.core.tables.judgments import SameTexts
from tasks.core.tables.parquet import count_rows
from tasks.core.tokens.folder import Tokens

Hashes = npt.NDArray[np.uint64]
SAME = "same.npy"
HASHED_ROWS = 1 << 13  # rows that are hashed at a time; an owner's are never split
END, PASSAGES = 2**62, 2**63  # numbers of multipliers: for a row's end; for a passage's place in its document, from there on


def same_texts(tokens: Tokens, of: Ints) -> SameTexts:
    """All owners with the same tokens as one of the owners `of`.

    If tokenize looked for near-duplicates, those with nearly the same tokens are included.
    """
    owners, near = count_rows(tokens.folder / "ids.parquet"), near_duplicates(tokens.folder)
    found = near_texts(near[0], of, owners) if near else None
    return found or _same(lambda ordinals: _hashes_of(tokens, ordinals), of, owners)


def near_texts(path: Path, of: Ints, owners: int) -> SameTexts | None:
    """All near-duplicates of the owners `of`, and these, by tokenize's same.npy; None if it did not look for any: the file is empty."""
    groups = _read_groups(path, owners)
    return _same(lambda ordinals: groups[ordinals], of, owners) if len(groups) else None


def _same(keys_of: Callable[[Ints], Hashes], of: Ints, owners: int) -> SameTexts:
    """All owners with the key of one of the owners `of`. Keys are computed a part at a time."""
    of = np.unique(of)
    if not len(of):
        return SameTexts(of, of)
    wanted = np.unique(keys_of(of))
    members, keys = list[Ints](), list[Hashes]()
    for start in range(0, owners, HASHED_ROWS):
        part = keys_of(np.arange(start, min(start + HASHED_ROWS, owners)))
        place = np.searchsorted(wanted, part).clip(max=len(wanted) - 1)  # np.isin would sort all of `wanted` for each part
        matching = np.flatnonzero(wanted[place] == part)
        members.append(matching + start)
        keys.append(part[matching])
    member = np.concatenate(members)
    return SameTexts(member, member[_first_of(np.concatenate(keys))])


def near_duplicates(folder: Path) -> list[Path]:
    """The files that `same_texts` reads from a token folder, other than the tokens themselves."""
    path = folder / SAME
    return [path] if path.exists() else []


def first_of_same(tokens: Tokens) -> Ints:
    """For each owner, the first one with the same tokens, [O]: itself if none comes before it. Memory grows with the owners."""
    return _first_of(_hashes_of(tokens, np.arange(count_rows(tokens.folder / "ids.parquet"))))


def _first_of(keys: Hashes) -> Ints:
    """For each key, the place where it comes first."""
    _, first, group = np.unique(keys, return_index=True, return_inverse=True)
    places: Ints = first[group]
    return places


def _read_groups(path: Path, owners: int) -> Hashes:
    try:
        groups: Hashes = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise Corrupt(f"{path}: unreadable ({error}); run tokenize again") from None
    if groups.shape not in ((0,), (owners,)):
        raise Corrupt(f"{path}: found shape {groups.shape}, expected ({owners},); run tokenize again")
    return groups.view(np.uint64)


def _hashes_of(tokens: Tokens, of: Ints) -> Hashes:
    """The hash of each of the owners `of`; about HASHED_ROWS of their rows are read at a time."""
    first, end = (np.searchsorted(tokens.owners, of.astype(tokens.owners.dtype), side) for side in ("left", "right"))
    rows = np.append(0, (end - first).cumsum())
    hashes, start = np.empty(len(of), dtype=np.uint64), 0
    while start < len(of):
        stop = max(int(np.searchsorted(rows, rows[start] + HASHED_ROWS, "right")) - 1, start + 1)
        hashes[start:stop] = _hashes(tokens, first[start:stop], end[start:stop] - first[start:stop])
        start = stop
    return hashes


def _hashes(tokens: Tokens, first: Ints, counts: Ints) -> Hashes:
    """The hash of each owner, whose `counts` rows begin with row `first`. All sums are modulo 2^64."""
    rows, passages = concat_ranges(first, counts), concat_ranges(0, counts)
    starts = tokens.offsets[rows]
    lengths = tokens.offsets[rows + 1] - starts
    flat = tokens.flat[concat_ranges(starts, lengths)].astype(np.uint64) + np.uint64(1)
    of_rows = _sums(flat * _multipliers(0, lengths)[concat_ranges(0, lengths)], lengths) + _multipliers(END, np.array([1]))
    return _sums(of_rows * (_multipliers(PASSAGES, counts) | np.uint64(1))[passages], counts)


def _sums(values: Hashes, counts: Ints) -> Hashes:
    """The sum of the values of each run."""
    sums: Hashes = np.append(np.uint64(0), values.cumsum())
    ends: Ints = counts.cumsum()
    totals: Hashes = sums[ends] - sums[ends - counts]
    return totals


def _multipliers(first: int, counts: Ints) -> Hashes:
    """Numbers of SplitMix64 (Steele et al., OOPSLA 2014) from number `first` on, as many as the longest run needs."""
    x = (np.arange(int(counts.max(initial=0)), dtype=np.uint64) + np.uint64(first + 1)) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
