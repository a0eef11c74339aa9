"""Where shards end, and the store of finished ones, against plain loops and with corrupted files."""

import hashlib
import os
import time
import zlib
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from tasks.core.files import partial_path
from tasks.core.tokens.folder import Tokens
from tasks.encode import shards
from tasks.encode import vectors as encoding
from tasks.encode.__main__ import _save
from tasks.encode.params import Encode
from tasks.encode.shards import ShardStore, boundaries, shard_digest
from tasks.encode.vectors import Arithmetic, DocumentTower, Piece, ShardEncoder

MEAN = 16


def shards_of(ids: list[str], passages: list[int] | None = None, mean: int = MEAN) -> list[tuple[str, ...]]:
    """The documents of every shard; a document's passages are never separated."""
    counts = [1] * len(ids) if passages is None else passages
    owners = np.repeat(np.arange(len(ids), dtype=np.int32), counts)
    cuts = boundaries(pa.array(ids, pa.string()), owners, mean)
    assert cuts[0] == 0 and cuts[-1] == len(owners) and (np.diff(cuts) > 0).all()
    parts = [owners[first:end] for first, end in pairwise(cuts)]
    documents_by_shard = [tuple(ids[owner] for owner in dict.fromkeys(part.tolist())) for part in parts]
    assert [document for part in documents_by_shard for document in part] == ids
    return documents_by_shard


def names(count: int, prefix: str = "d") -> list[str]:
    """Ids whose CRCs look random in a few bits, unlike those of d0, d1, d2."""
    return [hashlib.md5(f"{prefix}{n}".encode()).hexdigest()[:8] for n in range(count)]


def ends_shard(document: str, mean: int = MEAN) -> bool:
    return zlib.crc32(document.encode()) % mean == 0


def test_a_shard_ends_by_document_id_or_at_four_times_the_mean() -> None:
    expected: list[list[str]] = [[]]
    for document in names(3000):
        if len(expected[-1]) == 4 * MEAN:
            expected.append([])
        expected[-1].append(document)
        if ends_shard(document):
            expected.append([])
    assert shards_of(names(3000)) == [tuple(part) for part in expected if part]
    assert max(map(len, expected)) == 4 * MEAN  # the cap did apply


def test_chunk_size_does_not_change_the_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = shards_of(names(500))
    monkeypatch.setattr(shards, "CHUNK", 7)
    assert shards_of(names(500)) == expected


@pytest.mark.parametrize(("change", "touched"), [("append", 3), ("delete", 3), ("insert", 3), ("rename", 3)])
def test_a_change_touches_only_its_own_shards(change: str, touched: int) -> None:
    ids = names(4000)
    before = set(shards_of(ids))
    assert len(before) > 150
    for place in (0, 1, 777, 2500, 3999):
        changed = ids.copy()
        if change == "append":
            changed += names(place % 20, "new")
        elif change == "delete":
            del changed[place]
        elif change == "insert":
            changed.insert(place, "new")
        else:
            changed[place] = "new"
        # changed shards: what is between two ends, and the pieces that the cap makes of it
        assert len(set(shards_of(changed)) - before) <= touched


def test_passages_stay_together_and_a_document_beyond_the_cap_is_its_own_shard() -> None:
    draw = np.random.default_rng(0)
    passages = draw.integers(1, 5, size=800).tolist()
    for place in (5, 6, 300, 799):
        passages[place] = 5 * MEAN  # more than four times the mean
    parts = shards_of(names(800), passages)
    rows = dict(zip(names(800), passages, strict=True))
    for part in parts:
        assert sum(rows[document] for document in part) <= 4 * MEAN or len(part) == 1
        assert not any(ends_shard(document) for document in part[:-1])


@pytest.mark.parametrize("count", [0, 1, 2])
def test_tiny_corpora_have_valid_boundaries(count: int) -> None:
    owners = np.arange(count, dtype=np.int32)
    assert boundaries(pa.array(names(count), pa.string()), owners, 1 << 30).tolist() == sorted({0, count})


def test_a_shard_digest_depends_on_tokens_row_boundaries_and_maker() -> None:
    def tokens(*rows: list[int]) -> Tokens:
        offsets = np.cumsum([0, *map(len, rows)])
        return Tokens(np.concatenate(rows).astype(np.uint16), offsets, np.arange(len(rows), dtype=np.int32), Path(), 0, 8, "", "")

    digest = shard_digest(tokens([1, 2], [3, 4], [5]), 0, 2, "a")
    assert shard_digest(tokens([9], [1, 2], [3, 4]), 1, 3, "a") == digest  # at any position
    others = [
        shard_digest(tokens([1, 2], [3, 4], [5]), 0, 2, "b"),
        shard_digest(tokens([1], [2, 3, 4]), 0, 2, "a"),
        shard_digest(tokens([1, 2], [3, 5]), 0, 2, "a"),
        shard_digest(tokens([1, 2], [3, 4], [5]), 0, 3, "a"),
    ]
    assert digest not in others and len(set(others)) == 4


def vectors(value: int, rows: int = 100) -> np.ndarray:
    return np.full((rows, 10), value, dtype=np.float32)  # 4000 bytes


def fetch(store: ShardStore, digest: str, folder: Path) -> np.ndarray | None:
    (folder / "to").unlink(missing_ok=True)
    if not store.fetch(digest, folder / "to"):
        assert not (folder / "to").exists()
        return None
    return np.load(folder / "to")


def test_kept_shards_can_be_fetched(tmp_path: Path) -> None:
    store = ShardStore(tmp_path / "store", 10**6)
    assert fetch(store, "a", tmp_path) is None
    store.keep("a", vectors(1))
    store.keep("a", vectors(1))
    assert np.array_equal(fetch(store, "a", tmp_path), vectors(1))
    assert np.array_equal(fetch(ShardStore(tmp_path / "store", 10**6), "a", tmp_path), vectors(1))
    assert sorted(file.name for file in (tmp_path / "store").iterdir()) == ["a.npy", "a.sha256"]


@pytest.mark.parametrize("harm", ["flip", "cut", "empty", "no sum", "half a sum", "bytes for a sum"])
def test_a_corrupt_shard_is_not_used_and_can_be_kept_again(harm: str, tmp_path: Path) -> None:
    store = ShardStore(tmp_path / "store", 10**6)
    store.keep("a", vectors(1))
    shard, total = tmp_path / "store" / "a.npy", tmp_path / "store" / "a.sha256"
    content = bytearray(shard.read_bytes())
    if harm == "flip":
        content[2000] ^= 1
        shard.write_bytes(content)
    elif harm in ("cut", "empty"):
        shard.write_bytes(content[: 1000 * (harm == "cut")])
    elif harm == "no sum":
        total.unlink()
    else:
        total.write_bytes(total.read_bytes()[:30] if harm == "half a sum" else b"\xff\xfe")
    assert fetch(store, "a", tmp_path) is None
    store.keep("a", vectors(1))
    assert np.array_equal(fetch(store, "a", tmp_path), vectors(1))


def set_ages(store: ShardStore, **days: int) -> None:
    for digest, age in days.items():
        os.utime(store.folder / f"{digest}.npy", (10**9 - age * 86400,) * 2)


def stored_names(store: ShardStore) -> set[str]:
    assert {file.stem for file in store.folder.glob("*.npy")} == {file.stem for file in store.folder.glob("*.sha256")}
    return {file.stem for file in store.folder.glob("*.npy")}


def test_least_recently_used_shards_of_other_encodes_make_room(tmp_path: Path) -> None:
    earlier = ShardStore(tmp_path / "store", 10**6)
    for digest in "abcd":
        earlier.keep(digest, vectors(1))
    set_ages(earlier, a=1, b=4, c=3, d=2)
    store = ShardStore(tmp_path / "store", 17_000)  # four shards with their headers
    store.keep("e", vectors(2))
    assert stored_names(store) == {"a", "c", "d", "e"}
    assert fetch(store, "c", tmp_path) is not None  # used, so it is the newest
    store.keep("f", vectors(2))
    assert stored_names(store) == {"a", "c", "e", "f"}
    assert sum(file.stat().st_size for file in store.folder.glob("*.npy")) <= 17_000


def test_a_corpus_larger_than_the_store_keeps_its_first_shards(tmp_path: Path) -> None:
    order = [f"s{n}" for n in range(12)]

    def encode_all(store: ShardStore) -> int:
        computed = 0
        for digest in order:
            if fetch(store, digest, tmp_path) is None:
                computed += 1
                store.keep(digest, vectors(1))
        return computed

    ShardStore(tmp_path / "store", 10**6).keep("old", vectors(1))
    assert encode_all(ShardStore(tmp_path / "store", 21_000)) == 12
    assert stored_names(ShardStore(tmp_path / "store", 0)) == set(order[:5])
    assert encode_all(ShardStore(tmp_path / "store", 21_000)) == 7  # the same number remains every time
    assert encode_all(ShardStore(tmp_path / "store", 21_000)) == 7


@pytest.mark.parametrize("limit", [0, 3999])
def test_a_store_without_room_keeps_nothing_new_and_removes_nothing(limit: int, tmp_path: Path) -> None:
    ShardStore(tmp_path / "store", 10**6).keep("small", vectors(1, rows=1))
    store = ShardStore(tmp_path / "store", limit)
    store.keep("a", vectors(1))
    assert stored_names(store) == {"small"}


def test_two_encodes_may_keep_the_same_shard_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other, save = ShardStore(tmp_path / "store", 10**6), np.save

    def save_while_another_keeps(handle: object, value: np.ndarray) -> None:
        save(handle, value)
        monkeypatch.setattr(np, "save", save)
        other.keep("a", vectors(1))  # removes the temporary file

    monkeypatch.setattr(np, "save", save_while_another_keeps)
    ShardStore(tmp_path / "store", 10**6).keep("a", vectors(1))
    assert np.array_equal(fetch(other, "a", tmp_path), vectors(1))


def test_forget_removes_unused_shards_of_the_family_and_old_ones_of_others(tmp_path: Path) -> None:
    store = ShardStore(tmp_path / "store", 10**6)
    for name in ("f-used", "f-left", "g-new", "g-old"):
        store.keep(name, vectors(1), b"rows")
    os.utime(store.folder / "g-old.npy", (time.time() - 101,) * 2)
    later = ShardStore(tmp_path / "store", 10**6)
    assert fetch(later, "f-used", tmp_path) is not None
    later.forget("f", 100)
    assert sorted(file.name for file in store.folder.iterdir()) == [
        f"{name}.{suffix}" for name in ("f-used", "g-new") for suffix in ("npy", "rows", "sha256")
    ]


def left_by_kills(store: ShardStore, family: str) -> dict[str, Path]:
    """What a kill may leave of a shard: its digests without vectors, and vectors under a temporary name, new or a day old."""
    store.keep(f"{family}-half", vectors(1), b"rows")
    (store.folder / f"{family}-half.npy").unlink()
    files = {suffix: store.folder / f"{family}-half.{suffix}" for suffix in ("sha256", "rows")}
    for age in (0, 86400):
        files[f"temporary {age}"] = partial_path(store.folder / f"{family}-{age}.npy")
        files[f"temporary {age}"].write_bytes(b"vectors")
        os.utime(files[f"temporary {age}"], (time.time() - age,) * 2)
    return files


def test_what_kills_left_is_removed_but_not_what_another_encode_may_be_writing(tmp_path: Path) -> None:
    store = ShardStore(tmp_path / "store", 10**6)
    own, others = left_by_kills(store, "f"), left_by_kills(store, "g")
    ShardStore(tmp_path / "store", 10**6).keep("g-whole", vectors(1), b"rows")
    (store.folder / "note.txt").touch()
    remaining = [
        own["temporary 0"],
        others["temporary 0"],
        store.folder / "note.txt",
        *(store.folder / f"g-whole.{suffix}" for suffix in ("npy", "rows", "sha256")),
    ]
    assert sorted(store.folder.iterdir()) == sorted(remaining), "by a listing of the store"
    others = left_by_kills(store, "g")
    store.forget("f", 86400)
    assert sorted(store.folder.iterdir()) == sorted(remaining[1:]), "of one's own family, nothing is left"


def test_a_killed_removal_is_finished_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ShardStore(tmp_path / "store", 10**6).keep("f-a", vectors(1), b"rows")
    unlink, count = Path.unlink, 0

    def killed(path: Path, missing_ok: bool = False) -> None:
        nonlocal count
        count += 1
        if count > 1:
            raise KeyboardInterrupt
        unlink(path, missing_ok)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "unlink", killed)
        ShardStore(tmp_path / "store", 10**6).forget("f", 100)
    assert (tmp_path / "store/f-a.npy").exists(), "by which it is found again"
    ShardStore(tmp_path / "store", 10**6).forget("f", 100)
    assert not list((tmp_path / "store").iterdir())


def test_the_store_is_listed_rarely_and_other_encodes_shards_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not listed for every shard; what another encode adds or removes counts from the next listing on."""
    monkeypatch.setattr(shards, "LISTED", 8)
    listings, genuine = [0], Path.glob

    def count_listings(folder: Path, pattern: str) -> Any:
        listings[0] += 1
        return genuine(folder, pattern)

    monkeypatch.setattr(Path, "glob", count_listings)
    earlier = ShardStore(tmp_path / "store", 10**6)
    for n in range(16):
        earlier.keep(f"old{n:02}", vectors(1))
        os.utime(tmp_path / "store" / f"old{n:02}.npy", (10**9 + n,) * 2)
    assert listings == [2]
    store, limit = ShardStore(tmp_path / "store", 16 * 4128), 16 * 4128
    store.keep("new0", vectors(2))  # takes the place of old00
    assert fetch(ShardStore(tmp_path / "store", limit), "old01", tmp_path) is not None  # another encode uses the next oldest
    (tmp_path / "store" / "old02.npy").unlink()  # and removes one
    (tmp_path / "store" / "old02.sha256").unlink()
    store.keep("new1", vectors(2))
    store.keep("new2", vectors(2))
    assert {file.stem for file in genuine(tmp_path / "store", "*.npy")} == {
        "new0", "new1", "new2", "old01", *(f"old{n:02}" for n in range(4, 16))
    }  # fmt: skip
    assert listings == [3]
    for n in range(40):  # another encode fills the store beyond its limit
        earlier.keep(f"other{n:02}", vectors(1))
    for n in range(3, 9):  # the ninth asks for a new listing
        store.keep(f"new{n}", vectors(2))
    assert sum(file.stat().st_size for file in genuine(tmp_path / "store", "*.npy")) <= limit
    assert all((tmp_path / "store" / f"new{n}.npy").exists() for n in range(9))


def test_shards_of_the_same_texts_have_files_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As single rows of one text: a worker writes both before the stage saves the first."""
    tokens = Tokens(np.array([5, 6, 5, 6], dtype=np.uint16), np.array([0, 2, 4]), np.arange(2, dtype=np.int32), tmp_path, 0, 8, "", "")
    arithmetic = Arithmetic("cpu", "float32", "torch.float32", "cpu", 64, 3)
    loaded = SimpleNamespace(loaded=(None, None, None, arithmetic), params=Encode(dtype="float32"), encoder=tmp_path)
    monkeypatch.setattr(encoding, "open_tokens", lambda _: tokens)
    monkeypatch.setattr(encoding, "encode", lambda _, __, rows, *___: np.ones((len(rows), 3), dtype=np.float32))
    store = ShardStore(tmp_path / "store", 10**9)
    encoder = ShardEncoder(cast(DocumentTower, loaded), tmp_path, store, "f", tmp_path)
    digest = shard_digest(tokens, 0, 1, "m")
    assert digest == shard_digest(tokens, 1, 2, "m")
    shards = [encoder(Piece(number, number, number + 1, f"f-{digest}")) for number in (0, 1)]
    for shard in shards:
        _save(shard.vectors, tmp_path / f"saved-{shard.piece.number}.npy", shard.piece, shard.rows, store)
        assert np.load(tmp_path / f"saved-{shard.piece.number}.npy").tolist() == [[1, 1, 1]]
