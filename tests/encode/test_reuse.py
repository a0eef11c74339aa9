"""Rows of touched shards are reused only if the result equals a full encode of the shard, bit for bit."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tasks.core.tokens.folder import Tokens
from tasks.encode.reuse import PROBES, KnownRows, encode_touched, known_rows, row_digests
from tasks.encode.shards import ShardStore

ROWS = 200


def corpus(rows: list[list[int]]) -> Tokens:
    offsets = np.cumsum([0, *map(len, rows)])
    flat = np.array([token for row in rows for token in row], dtype=np.uint16)
    return Tokens(flat, offsets, np.arange(len(rows), dtype=np.int32), Path(), 0, 64, "", "")


def texts(count: int = ROWS, seed: int = 0) -> list[list[int]]:
    draw = np.random.default_rng(seed)
    return [draw.integers(0, 60000, size=draw.integers(1, 20)).tolist() for _ in range(count)]


def encoder(rows: list[list[int]], counts: list[int], noise: Callable[[int], float] = lambda _: 0.0) -> Callable[[np.ndarray], np.ndarray]:
    """An encoder by plain sums; `noise`, given the rows of a call, imitates a machine whose results depend on the batch."""

    def encode(numbers: np.ndarray) -> np.ndarray:
        counts.append(len(numbers))
        return np.array([[sum(rows[n]), len(rows[n]) + noise(len(numbers))] for n in numbers.tolist()], dtype=np.float32)

    return encode


def make_store(folder: Path, rows: list[list[int]], cut: int, family: str = "f") -> ShardStore:
    """A store with the rows before and after `cut`, as two shards, or one."""
    store = ShardStore(folder, 10**9)
    for name, first, end in (("1", 0, cut), ("2", cut, len(rows)))[: 1 + (cut < len(rows))]:
        vectors = encoder(rows, [])(np.arange(first, end))
        store.keep(f"{family}-{name}", vectors, row_digests(corpus(rows), first, end).tobytes())
    return store


def test_row_digests_depend_on_tokens_and_row_boundaries() -> None:
    digests = row_digests(corpus([[1, 2], [3], [1], [2, 3], [3], [1, 2]]), 0, 6)
    assert len({tuple(row) for row in digests.tolist()}) == 4
    assert digests[0].tolist() == digests[5].tolist() and digests[1].tolist() == digests[4].tolist()
    assert row_digests(corpus([[9], [1, 2], [7]]), 1, 2).tolist() == digests[:1].tolist()


@pytest.mark.parametrize("count", [0, 1, 6])
def test_a_row_is_found_by_both_halves_of_its_digest(count: int) -> None:
    """Against a dictionary, with digests that share halves, below the first and beyond the last."""
    draw = np.random.default_rng(count)
    firsts = np.sort(draw.permutation(12)[:count] + 1).astype(np.uint64)
    digests = np.stack([firsts, draw.integers(3, size=count, dtype=np.uint64)], axis=1)
    shard, row = (draw.integers(9, size=count, dtype=np.int32) for _ in range(2))
    lookups = np.array([(first, second) for first in range(14) for second in range(3)], dtype=np.uint64)
    known = {tuple(digest): (s, r) for digest, s, r in zip(digests.tolist(), shard.tolist(), row.tolist(), strict=True)}
    places = KnownRows(digests, shard, row, []).find(lookups)
    assert list(zip(*(part.tolist() for part in places), strict=True)) == [
        known.get(tuple(digest), (-1, -1)) for digest in lookups.tolist()
    ]
    assert all(part.dtype == np.int32 for part in places)


@pytest.mark.parametrize("change", ["append", "spread", "change", "delete", "shuffle"])
@pytest.mark.parametrize("cut", [90, ROWS])
def test_only_new_rows_are_encoded_and_the_shard_equals_a_full_encode(change: str, cut: int, tmp_path: Path) -> None:
    before, new = texts(), texts(3, seed=1)
    after = {
        "append": [*before, *new],
        "spread": [*before[:20], new[0], *before[20:100], new[1], *before[100:], new[2]],
        "change": [*before[:50], new[0], *before[51:]],
        "delete": [*before[:50], *before[53:]],
        "shuffle": [before[n] for n in np.random.default_rng(2).permutation(ROWS)],
    }[change]
    store, counts = make_store(tmp_path, before, cut), list[int]()
    vectors, encoded = encode_touched(row_digests(corpus(after), 0, len(after)), known_rows(store, "f-"), store, encoder(after, counts))
    np.testing.assert_array_equal(vectors, encoder(after, [])(np.arange(len(after))))
    assert counts == [encoded] == [PROBES + {"append": 3, "spread": 3, "change": 1}.get(change, 0)]


def test_the_whole_shard_is_encoded_if_results_depend_on_the_batch(tmp_path: Path) -> None:
    before = texts()
    after, counts = [*before, *texts(3, seed=1)], list[int]()
    store = make_store(tmp_path, before, 90)
    machine = encoder(after, counts, noise=lambda count: count * 1e-3)
    vectors, encoded = encode_touched(row_digests(corpus(after), 0, len(after)), known_rows(store, "f-"), store, machine)
    np.testing.assert_array_equal(vectors, machine(np.arange(len(after))))
    assert counts[:2] == [PROBES + 3, len(after)] and encoded == sum(counts[:2])


@pytest.mark.parametrize("harm", ["vectors", "rows", "half a row", "gone", "other family"])
def test_a_corrupt_store_is_not_used(harm: str, tmp_path: Path) -> None:
    before = texts()
    after = [*before, *texts(3, seed=1)]
    store = make_store(tmp_path, before, 90, "g" if harm == "other family" else "f")
    for file in tmp_path.glob("*.npy" if harm in ("vectors", "gone") else "*.rows"):
        content = bytearray(file.read_bytes())
        if harm == "gone":
            file.unlink()
        elif harm == "half a row":
            file.write_bytes(content[:7])
        elif harm == "rows":
            file.write_bytes(bytes(len(content)))
        elif harm == "vectors":
            content[-3] ^= 1
            file.write_bytes(content)
    counts = list[int]()
    vectors, _ = encode_touched(row_digests(corpus(after), 0, len(after)), known_rows(store, "f-"), store, encoder(after, counts))
    np.testing.assert_array_equal(vectors, encoder(after, [])(np.arange(len(after))))
    assert counts == [len(after)]


def test_of_a_truncated_file_the_whole_digests_are_used(tmp_path: Path) -> None:
    before = texts()
    after, counts = [*before, *texts(3, seed=1)], list[int]()
    store = make_store(tmp_path, before, 90)
    for file in tmp_path.glob("*.rows"):
        file.write_bytes(file.read_bytes()[:-7])
    vectors, _ = encode_touched(row_digests(corpus(after), 0, len(after)), known_rows(store, "f-"), store, encoder(after, counts))
    np.testing.assert_array_equal(vectors, encoder(after, [])(np.arange(len(after))))
    assert counts == [PROBES + 3 + 2], "the new rows, and the last one of each shard"


def test_a_shard_with_fewer_vectors_than_digests_is_not_used(tmp_path: Path) -> None:
    before = texts()
    after, counts = [*before, *texts(3, seed=1)], list[int]()
    store = make_store(tmp_path, before, 90)
    store.keep("f-2", encoder(before, [])(np.arange(90, ROWS - 1)), row_digests(corpus(before), 90, ROWS).tobytes())
    vectors, _ = encode_touched(row_digests(corpus(after), 0, len(after)), known_rows(store, "f-"), store, encoder(after, counts))
    np.testing.assert_array_equal(vectors, encoder(after, [])(np.arange(len(after))))
    assert counts == [PROBES + 3 + ROWS - 90]


def test_few_known_rows_are_encoded_without_a_check(tmp_path: Path) -> None:
    """Where results depend on the batch, they would be encoded twice."""
    before, counts = texts(PROBES), list[int]()
    store, machine = make_store(tmp_path, before, 10), encoder(before, counts, noise=lambda count: count * 1e-3)
    encode_touched(row_digests(corpus(before), 0, PROBES), known_rows(store, "f-"), store, machine)
    assert counts == [PROBES]


def test_what_is_checked_is_spread_over_the_shard_from_the_first_row_to_the_last(tmp_path: Path) -> None:
    before, checked = texts(), list[int]()
    store, machine = make_store(tmp_path, before, 90), encoder(before, [])

    def record_checked(numbers: np.ndarray) -> np.ndarray:
        checked.extend(numbers.tolist())
        return machine(numbers)

    encode_touched(row_digests(corpus(before), 0, ROWS), known_rows(store, "f-"), store, record_checked)
    assert (len(checked), checked[0], checked[-1]) == (PROBES, 0, ROWS - 1)
    assert set(np.diff(checked).tolist()) == {ROWS // PROBES, ROWS // PROBES + 1}
