"""Parts of the queries: whole blocks of the exact search, so that their size changes no bit of a result."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pyarrow as pa
import pytest
import torch

from tasks.core.params.runtime import Runtime
from tasks.core.retrieval import parts, ranked
from tasks.core.retrieval.exact import exact_search
from tasks.core.retrieval.parts import Parts, QuerySearch, search_all, searchers, shared_size
from tasks.core.retrieval.ranked import QUERY_BLOCK, ranked_tables
from tasks.core.tables.ids import IDS
from tasks.core.tables.parquet import write_table
from tasks.core.tables.schemas import RANKED


def test_size_of_the_parts_that_several_workers_share() -> None:
    assert shared_size(16 * QUERY_BLOCK, 5, 1) == 16 * QUERY_BLOCK, "one worker: as ever"
    assert shared_size(QUERY_BLOCK + 1, 5, 8) == QUERY_BLOCK + 1, "no whole blocks"
    assert shared_size(16 * QUERY_BLOCK, 10**6, 8) == 16 * QUERY_BLOCK, "memory is bounded"
    assert shared_size(16 * QUERY_BLOCK, 30 * QUERY_BLOCK, 8) == 2 * QUERY_BLOCK
    assert shared_size(16 * QUERY_BLOCK, 30 * QUERY_BLOCK + 1, 5) == 4 * QUERY_BLOCK
    assert shared_size(16 * QUERY_BLOCK, 5, 8) == QUERY_BLOCK
    assert shared_size(100, 10**6, 8) == 100, "less than a block: long lists"


@pytest.mark.parametrize("harm", ["", "truncated", "changed", "gone"])
def test_what_is_finished_is_made_once_unless_it_is_corrupt(harm: str, tmp_path: Path) -> None:
    """Queries of a table stay together; without a folder, everything is computed at every call."""
    calls, vectors = list[str](), np.arange(12, dtype=np.float32).reshape(4, 3)
    columns = ({"query": [q] * 3, "doc": ["a", "b", "c"], "rank": [1, 2, 3], "score": [3.0, 2.0, 1.0]} for q in "pq")
    expected = [pa.table(table_columns, schema=RANKED) for table_columns in columns]

    def array() -> np.ndarray:
        calls.append("array")
        return vectors

    def tables() -> Iterator[pa.Table]:
        calls.append("tables")
        yield from expected

    for store, count in ((Parts(None), 2), (Parts(tmp_path), 2 if harm else 1)):
        calls.clear()
        for _ in range(2):
            assert store.array("v", array).tolist() == vectors.tolist()
            results = list(store.tables(7, tables))
            assert [table.to_pydict() for table in results] == [table.to_pydict() for table in expected]
            for file in (tmp_path / "v.npy", tmp_path / f"{7:09}.parquet") if harm and store.folder else ():
                content = file.read_bytes()
                file.unlink() if harm == "gone" else file.write_bytes(content[:-1] if harm == "truncated" else content[:-1] + b"?")
        assert calls == ["array", "tables"] * count


@pytest.mark.parametrize("blocks", [1, 2])
def test_a_part_has_the_bits_of_the_whole(blocks: int) -> None:
    rng, device = np.random.default_rng(0), torch.device("cpu")
    query_vectors, rows = rng.normal(size=(2 * QUERY_BLOCK + 77, 48)).astype(np.float32), rng.normal(size=(500, 48)).astype(np.float32)
    shards = [(0, rows[:230]), (230, rows[230:])]
    whole_results = exact_search(query_vectors, shards, 10, device)
    size = blocks * QUERY_BLOCK
    parts = [exact_search(query_vectors[first : first + size], shards, 10, device) for first in range(0, len(query_vectors), size)]
    for column in (0, 1):
        assert np.concatenate([part[column] for part in parts]).tobytes() == whole_results[column].tobytes()


@pytest.mark.parametrize("size", [2, 3, 4, 8, 19])
def test_tables_of_parts_are_those_of_the_whole(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit where parts are whole blocks; each part has its own excluded pairs."""
    rng = np.random.default_rng(0)
    query_vectors, vectors = rng.normal(size=(19, 24)).astype(np.float32), rng.normal(size=(60, 24)).astype(np.float32)
    names, ids, owners = pa.array([f"q{n}" for n in range(19)]), pa.array([f"d{n}" for n in range(60)]), np.arange(60, dtype=np.int32)
    excluded = np.array([q * 60 + doc for q in range(19) for doc in rng.integers(0, 60, 20)])
    monkeypatch.setattr(ranked, "QUERY_BLOCK", 4)

    def best(part: np.ndarray, rows: int) -> tuple[np.ndarray, np.ndarray]:
        return exact_search(part, [(0, vectors[:31]), (31, vectors[31:])], rows, torch.device("cpu"))

    no_path = Path()
    search = QuerySearch(no_path, no_path, no_path, None, no_path, "fp32", 5, 3, size, Runtime(), Parts(None), excluded)
    vars(search).update(vectors=query_vectors, owners=owners, _ids=(names, ids), _best=best)
    tables = [table for first in range(0, 19, size) for table in search.part(first)]
    table = pa.concat_tables(tables).combine_chunks()
    whole_table = pa.concat_tables(ranked_tables(*best(query_vectors, 5), names, ids, owners, 3, excluded)).combine_chunks()
    if size >= ranked.QUERY_BLOCK and size % ranked.QUERY_BLOCK == 0:
        assert table.equals(whole_table)
    assert table.drop(["score"]).equals(whole_table.drop(["score"]))
    np.testing.assert_allclose(table["score"], whole_table["score"], rtol=1e-6)
    assert len(table) > 19


def test_one_process_searches_an_index_on_one_machine() -> None:
    assert searchers(Runtime(workers=4), indexed=True).workers == 1
    assert searchers(Runtime(workers=4), indexed=False).workers == 4
    assert searchers(Runtime(workers=4, engine="ray"), indexed=True).workers == 4


def test_short_lists_are_those_with_fewer_than_all_documents_can_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three documents of which one may be excluded: two make a list. A query without results has no row."""
    write_table(tmp_path / "ids.parquet", IDS, [pa.table({"id": ["a", "b", "c"]}, schema=IDS)])

    class Search:
        index, documents, queries = tmp_path / "index.faiss", tmp_path, Path("dev")
        depth, shown = 4, 3
        opened_index = faiss.index_factory(4, "IVF2,Flat", faiss.METRIC_INNER_PRODUCT)

    def output_of(queries: int, *lists: list[str]) -> str:
        searched: Any = lambda *_: iter([pa.table({"query": rows}) for rows in lists])  # noqa: E731
        monkeypatch.setattr(parts, "_searched", searched)
        any_search: Any = Search()
        assert [table["query"].to_pylist() for table in search_all(any_search, any_search, queries)] == list(lists)
        return capsys.readouterr().out

    assert output_of(2, ["q", "q"], ["r", "r", "r"]) == ""
    line = "search dev: the index found too few results for {}; raise index.nprobe (1 of 2 inverted lists probed)\n"
    assert output_of(3, ["q", "q"], ["r"], ["s", "s"]) == line.format("1 of 3 queries, 1 of 2 at worst")
    assert output_of(4, ["q", "q", "r", "r"], ["s"]) == line.format("2 of 4 queries, 0 of 2 at worst")
