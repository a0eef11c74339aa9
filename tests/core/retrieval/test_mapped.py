"""Kept vectors: the results of a search that has them in memory, and what is read for them."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tasks.core.retrieval.cpu import exact as cpu
from tasks.core.retrieval.cpu.exact import Rounded
from tasks.core.retrieval.cpu.mapped import keep

pytestmark = pytest.mark.usefixtures("one_thread")

DTYPES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])


@DTYPES
@pytest.mark.parametrize("width", [8, 7])
def test_the_results_are_those_of_vectors_in_memory(
    dtype: torch.dtype, width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    vectors, queries = (torch.from_numpy(rng.normal(size=(n, width)).astype(np.float32)) for n in (200, 3))
    blocks, taken_rows = [(first, vectors[first : first + 64]) for first in range(0, 200, 64)], list[int]()

    def take(rows: np.ndarray) -> np.ndarray:
        taken_rows.extend(rows.tolist())
        return vectors[rows].numpy()

    kept = keep(blocks, take, dtype, tmp_path)
    assert [first for first, _ in kept] == [0, 64, 128, 192] and [len(rows) for _, rows in kept] == [64, 64, 64, 8]
    assert not list(tmp_path.iterdir()) and not taken_rows, "a file without a name, and nothing read yet"
    for (_, rows), (_, block) in zip(kept, blocks, strict=True):
        assert torch.equal(rows.values_XD, block.to(dtype)) and rows.values_XD.dtype == dtype
    expected = cpu.search(queries, [(first, Rounded.of(rows, dtype, together=True)) for first, rows in blocks], 5, dtype)
    monkeypatch.setattr(
        Rounded, "of", lambda vectors_XD, *args, of=Rounded.of, **kwargs: of(vectors_XD, *args, **kwargs) if vectors_XD is queries else None
    )
    for _ in range(2):
        results = cpu.search(queries, kept, 5, dtype)
        np.testing.assert_array_equal(results[0], expected[0])
        np.testing.assert_array_equal(results[1], expected[1])
    if dtype == torch.float32:
        assert not taken_rows, "the file has the exact vectors"
    else:
        assert set(taken_rows) >= {row for row in expected[1].ravel().tolist() if row >= 64}
        assert min(taken_rows) >= 64, "the first block is in memory"


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="there is no /proc here")
@DTYPES
def test_only_the_first_block_is_in_memory(dtype: torch.dtype, tmp_path: Path) -> None:
    open_files = len(list(Path("/proc/self/fd").iterdir()))
    kept = keep([(first, torch.randn(64, 8)) for first in range(0, 192, 64)], lambda _: np.empty(0, np.float32), dtype, tmp_path)
    assert len(list(Path("/proc/self/fd").iterdir())) <= open_files + 1, "however many blocks there are"
    mapped = [line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines() if str(tmp_path) in line]
    for number, (_, rows) in enumerate(kept):
        address = rows.values_XD.data_ptr()
        assert any(int(low, 16) <= address < int(high, 16) for low, high in mapped) == (number > 0 or dtype == torch.float32)
        assert len(rows.exact_XD) == (64 if number == 0 or dtype == torch.float32 else 0)


def test_nothing(tmp_path: Path) -> None:
    assert keep([], lambda _: np.empty(0, np.float32), torch.bfloat16, tmp_path) == []
