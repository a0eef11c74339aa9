"""Token folders as readers see them: opened whole or refused, ids found, rows padded and cut into batches."""

import heapq
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tasks.core.errors import UserError
from tasks.core.files import write_json
from tasks.core.tables.ids import IDS, StoredIds, ordinals
from tasks.core.tables.parquet import write_table
from tasks.core.tokens.folder import Tokens, cut_by_budget, cut_evenly, open_tokens


def write_token_folder(path: Path, rows: list[list[int]], owners: list[int] | None = None) -> Path:
    """A token folder of `rows`, written without the code under test."""
    path.mkdir(parents=True)
    (path / "tokens.bin").write_bytes(b"".join(int(token).to_bytes(2, "little") for row in rows for token in row))
    np.save(path / "offsets.npy", np.array([sum(map(len, rows[:n])) for n in range(len(rows) + 1)], dtype=np.int64))
    np.save(path / "owners.npy", np.array(range(len(rows)) if owners is None else owners, dtype=np.int32))
    count = len(rows) if owners is None else len(set(owners))
    write_table(path / "ids.parquet", IDS, [pa.table([[f"d{n}" for n in range(count)]], schema=IDS)])
    write_json(path / "meta.json", {"dtype": "uint16", "pad": 9, "max_length": 8, "prefix": "", "tokenizer": "t"})
    return path


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    return open_tokens(write_token_folder(tmp_path / "t", [[1, 2, 3], [60000], [4, 5], [6, 7, 8, 9]], [0, 0, 1, 2]))


def test_opened_folder_has_what_was_written(tokens: Tokens) -> None:
    assert len(tokens) == 4
    assert tokens.lengths.tolist() == [3, 1, 2, 4]
    assert tokens.owners.tolist() == [0, 0, 1, 2]
    assert tokens.ids().to_pylist() == ["d0", "d1", "d2"]
    assert (tokens.pad, tokens.max_length, tokens.prefix, tokens.tokenizer) == (9, 8, "", "t")


@pytest.mark.parametrize(
    ("rows", "ids", "mask"),
    [
        ([2, 1], [[4, 5], [60000, 9]], [[1, 1], [1, 0]]),
        ([3, 3, 0], [[6, 7, 8, 9], [6, 7, 8, 9], [1, 2, 3, 9]], [[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 0]]),
        ([1], [[60000]], [[1]]),
    ],
)
def test_rows_are_padded_at_the_end(tokens: Tokens, rows: list[int], ids: list[list[int]], mask: list[list[int]]) -> None:
    actual_ids, actual_mask = tokens.padded(np.array(rows))
    assert actual_ids.tolist() == ids and actual_mask.tolist() == mask
    assert str(actual_ids.dtype) == str(actual_mask.dtype) == "torch.int64"
    longer_ids, longer_mask = tokens.padded(np.array(rows), 5)
    assert longer_ids.tolist() == [row + [9] * (5 - len(row)) for row in ids]
    assert longer_mask.tolist() == [row + [0] * (5 - len(row)) for row in mask]


def truncate(name: str, size: int) -> Callable[[Path], None]:
    def truncate_file(path: Path) -> None:
        content = (path / name).read_bytes()
        (path / name).write_bytes(content[:size])

    return truncate_file


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (truncate("tokens.bin", 7), "tokens.bin: 7 bytes, expected 8"),
        (truncate("tokens.bin", 0), "tokens.bin: 0 bytes, expected 8"),
        (truncate("offsets.npy", 100), "incomplete token folder"),
        (truncate("owners.npy", 0), "incomplete token folder"),
        (lambda path: (path / "offsets.npy").unlink(), "incomplete token folder"),
        (lambda path: (path / "tokens.bin").unlink(), "incomplete token folder"),
        (lambda path: np.save(path / "owners.npy", np.zeros(3, dtype=np.int32)), "3 rows, expected 2"),
        (lambda path: (path / "meta.json").unlink(), "meta.json: not found"),
    ],
)
def test_incomplete_folder_is_refused_in_one_line(tmp_path: Path, harm: Callable[[Path], None], words: str) -> None:
    path = write_token_folder(tmp_path / "t", [[1, 2, 3], [4]])
    harm(path)
    with pytest.raises(UserError, match=words) as error:
        open_tokens(path)
    assert "\n" not in str(error.value)


def test_no_row_at_all(tmp_path: Path) -> None:
    tokens = open_tokens(write_token_folder(tmp_path / "t", []))
    assert len(tokens) == 0 and tokens.ids().to_pylist() == [] and tokens.lengths.tolist() == []
    assert cut_by_budget(tokens.lengths, 100) == cut_evenly(tokens.lengths, 100, 3) == []


@pytest.mark.parametrize(("count", "budget", "longest"), [(1, 512, 64), (1000, 512, 64), (1000, 64, 64), (500, 30, 64), (77, 10**6, 512)])
def test_every_row_is_in_one_batch_within_the_budget(count: int, budget: int, longest: int) -> None:
    lengths = np.random.default_rng(count).integers(1, longest + 1, size=count)
    batches = cut_by_budget(lengths, budget)
    assert sorted(row for batch in batches for row in batch.tolist()) == list(range(count))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * lengths[batch].max() <= budget
    for batch, following in pairwise(batches):
        assert lengths[batch].min() >= lengths[following].max()
        assert (len(batch) + 1) * lengths[batch].max() > budget  # none is cut short for nothing
    assert [batch.tolist() for batch in cut_by_budget(lengths.copy(), budget)] == [batch.tolist() for batch in batches]


@pytest.mark.parametrize("least", [2, 5, 8, 64])
@pytest.mark.parametrize(("count", "budget", "longest"), [(0, 512, 64), (1, 512, 64), (64, 16384, 128), (1000, 80, 64), (77, 10**6, 512)])
def test_there_are_as_many_batches_as_are_asked_for(count: int, budget: int, longest: int, least: int) -> None:
    """Of texts of similar length: so padding is not more than without."""
    lengths = np.random.default_rng(count).integers(1, longest + 1, size=count)
    batches = cut_by_budget(lengths, budget, least)
    plain = cut_by_budget(lengths, budget)
    assert [row for batch in batches for row in batch.tolist()] == [row for batch in plain for row in batch.tolist()]
    assert min(count, least) <= len(batches) <= max(len(plain), min(count, 2 * least))
    assert all(len(batch) == 1 or len(batch) * lengths[batch].max() <= budget for batch in batches)


@pytest.mark.parametrize("least", [1, 2, 5, 8])
@pytest.mark.parametrize(
    ("count", "budget", "longest"), [(1, 512, 64), (1000, 512, 64), (1000, 80, 64), (500, 30, 64), (77, 10**6, 512), (192, 512, 512)]
)
def test_batches_of_about_the_same_size(count: int, budget: int, longest: int, least: int) -> None:
    lengths = np.random.default_rng(count).integers(1, longest + 1, size=count)
    batches = cut_evenly(lengths, budget, least)
    assert sorted(row for batch in batches for row in batch.tolist()) == list(range(count)) and all(map(len, batches))
    sizes, most = [int(lengths[batch].sum()) for batch in batches], int(lengths.max())
    assert all(size <= budget or len(batch) == 1 for size, batch in zip(sizes, batches, strict=True))
    assert max(sizes) - min(sizes) <= most and len(batches) >= min(count, least)
    fewest = max(least, -(-int(lengths.sum()) // budget))
    if budget >= most:
        assert len(batches) <= min(count, 1 + fewest * 5 // 4), "few more than are needed"


@pytest.mark.parametrize(("shortest", "longest"), [(320, 320), (260, 320), (150, 200), (100, 600), (1, 512)])
@pytest.mark.parametrize("least", [1, 150])
def test_the_first_number_of_batches_that_fits_is_taken(shortest: int, longest: int, least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found without packing the rows for each number below, where most rows are longer than a half or a third of a batch."""
    budget, lengths = 512, np.random.default_rng(longest).integers(shortest, longest + 1, size=200)
    placed, real = list[int](), heapq.heapreplace
    monkeypatch.setattr(heapq, "heapreplace", lambda heap, item: (placed.append(1), real(heap, item))[1])
    batches = [batch.tolist() for batch in cut_evenly(lengths, budget, least)]
    assert len(placed) <= 25 * len(lengths)
    for count in range(least, len(lengths) + 1):
        rows, sizes = [list[int]() for _ in range(count)], [0] * count
        for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
            smallest = sizes.index(min(sizes))
            rows[smallest].append(row)
            sizes[smallest] += int(lengths[row])
        if all(size <= budget or len(batch) == 1 for size, batch in zip(sizes, rows, strict=True)):
            assert batches == rows
            return


@pytest.mark.parametrize("parts", [[], [["d5"]], [["d3", "none", "d3"], [], ["d699", "d0", ""]], [[f"d{n}" for n in range(699, -1, -7)]]])
def test_ordinals_equal_a_dictionary(tmp_path: Path, parts: list[list[str]]) -> None:
    names = [f"d{n}" for n in range(700)]
    write_table(tmp_path / "ids.parquet", IDS, (pa.table([names[n : n + 100]], schema=IDS) for n in range(0, 700, 100)))
    numbers = {name: n for n, name in enumerate(names)}
    ids = pa.chunked_array(parts, pa.string())
    assert ordinals(ids, tmp_path / "ids.parquet").tolist() == [numbers.get(name, -1) for name in ids.to_pylist()]


def test_ordinals_over_ids_read_in_several_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tasks.core.tables import ids as module

    monkeypatch.setattr(module, "ID_BATCH", (5, 64))
    test_ordinals_equal_a_dictionary(tmp_path, [["d0", "d63", "d64", "d65", "d640", "d699", "x"]])


def test_stored_ids_equal_those_of_the_file(tmp_path: Path) -> None:
    names = [f"id-{n * 7919 % 1009}" for n in range(300)]
    parts = [names[:1], [], names[1:90], names[90:200], names[200:]]  # a row group each
    write_table(tmp_path / "ids.parquet", IDS, [pa.table([part], schema=IDS) for part in parts])
    ids = StoredIds(tmp_path / "ids.parquet")
    assert len(ids) == 300
    for rows in ([], [0], [299, 0, 1, 299, 89, 90, 200, 199], np.random.default_rng(0).integers(0, 300, 1000).tolist()):
        assert ids.take(pa.array(rows, pa.int64())).to_pylist() == [names[place] for place in rows]
    for start, count in ((0, 300), (0, 0), (50, 100), (290, 100)):
        assert ids.slice(start, count).to_pylist() == names[start : start + count]
