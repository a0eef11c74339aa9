"""Reading and writing Parquet, a batch at a time."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.core.errors import UserError
from tasks.core.tables.parquet import BATCH_ROWS, count_groups, read_batches, read_table, refuse_damage, values_of, write_table
from tasks.core.tables.schemas import QRELS, QUERIES
from tasks.core.text.document import Text, document_text


def rows(start: int, count: int) -> pa.Table:
    ids = [str(i) for i in range(start, start + count)]
    return pa.table([ids, ids, list(range(count))], schema=QRELS)


def test_batches_come_back_in_order(tmp_path: Path) -> None:
    path = tmp_path / "t" / "qrels.parquet"
    assert write_table(path, QRELS, (rows(i * 5000, 5000) for i in range(5))) == 25_000
    batches = list(read_batches(path, QRELS))
    assert max(batch.num_rows for batch in batches) <= BATCH_ROWS
    assert read_table(path, QRELS, ["query"])["query"].to_pylist() == [str(i) for i in range(25_000)]


def test_a_row_group_is_read_by_itself(tmp_path: Path) -> None:
    path = tmp_path / "qrels.parquet"
    write_table(path, QRELS, [rows(0, 3), rows(3, BATCH_ROWS + 2), rows(BATCH_ROWS + 5, 1)])
    read = [[name for batch in read_batches(path, QRELS, ["query"], group=n) for name in batch["query"].to_pylist()] for n in range(3)]
    assert count_groups(path) == 3
    assert [len(group) for group in read] == [3, BATCH_ROWS + 2, 1]
    assert [name for group in read for name in group] == [str(n) for n in range(BATCH_ROWS + 6)]


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """Nothing that was read stays in memory: by default, Arrow would hold all compressed parts at the end."""
    rng, ids = np.random.default_rng(0), [str(i) for i in range(BATCH_ROWS)]
    parts = (pa.table([ids, [rng.bytes(300).hex() for _ in ids], [[]] * BATCH_ROWS], schema=QUERIES) for _ in range(12))
    write_table(tmp_path / "texts.parquet", QUERIES, parts)
    before = pa.total_allocated_bytes()
    bytes_held = [pa.total_allocated_bytes() - before for _ in read_batches(tmp_path / "texts.parquet", QUERIES)]
    assert len(bytes_held) == 12 and max(bytes_held) < (tmp_path / "texts.parquet").stat().st_size / 2


def test_an_empty_table_can_be_read(tmp_path: Path) -> None:
    assert write_table(tmp_path / "none.parquet", QRELS, []) == 0
    assert read_table(tmp_path / "none.parquet", QRELS).num_rows == 0


def test_a_failed_write_leaves_no_file(tmp_path: Path) -> None:
    def fail_after_rows() -> object:
        yield rows(0, 10)
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_table(tmp_path / "qrels.parquet", QRELS, fail_after_rows())  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_missing_invalid_and_other_tables_are_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not found; run the stage that makes it"):
        read_table(tmp_path / "gone.parquet", QRELS)
    (tmp_path / "text.parquet").write_text("query\tdoc\n")
    with pytest.raises(UserError, match="cannot be read as Parquet"):
        read_table(tmp_path / "text.parquet", QRELS)
    write_table(tmp_path / "qrels.parquet", QRELS, [rows(0, 1)])
    with pytest.raises(UserError, match=r"found columns \['query', 'doc', 'grade'\], expected \['id', 'text', 'answers'\]"):
        read_table(tmp_path / "qrels.parquet", QUERIES)


def test_values_of_one_measure(tmp_path: Path) -> None:
    path = tmp_path / "dev.parquet"
    schema = pa.schema([("query", pa.string()), ("R@5", pa.float64()), ("hits", pa.int32())])
    write_table(path, schema, [pa.table([["q2", "q1"], [0.5, 1.0], [1, 2]], schema=schema)])
    assert values_of(path, "R@5") == {"q2": 0.5, "q1": 1.0}
    for measure in ("RR@10", "hits"):
        with pytest.raises(UserError, match=rf"found columns \['query', 'R@5', 'hits'\], expected query and {measure}; re-run"):
            values_of(path, measure)
    with pytest.raises(UserError, match="not found; run the stage that makes it"):
        values_of(tmp_path / "gone.parquet", "R@5")


def test_corruption_that_arrow_reports_as_an_os_error_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "qrels.parquet"
    write_table(path, QRELS, [rows(0, 1000)])
    corrupt = bytearray(path.read_bytes())
    corrupt[4:300] = bytes(296)
    path.write_bytes(corrupt)
    with pytest.raises(OSError) as raw:
        pq.read_table(path)
    assert raw.value.errno is None
    with pytest.raises(UserError, match=r"qrels.parquet: cannot be read as Parquet \("):
        read_table(path, QRELS)
    for error in (IsADirectoryError(21, "the disk's"), pa.ArrowMemoryError("malloc failed")):
        with pytest.raises(type(error)):
            refuse_damage(error, "no damage")


def test_titles_precede_the_text_only_if_enabled() -> None:
    assert document_text("Title", "text", Text()) == "text"
    assert document_text("Title", "text", Text(titles=True)) == "Title text"
    assert document_text("Title", "text", Text(titles=True, separator=" </s> ")) == "Title </s> text"
    assert document_text("", "text", Text(titles=True)) == "text"
