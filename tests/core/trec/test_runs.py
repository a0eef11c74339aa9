"""Runs are read one query at a time; reordered runs are in trec_eval's order."""

import random
from pathlib import Path

import pyarrow as pa
import pytest

from tasks.core.errors import UserError
from tasks.core.tables.schemas import RANKED
from tasks.core.trec.runs import best_first, first_results, ranked_batch, read_run, without_identical_ids, write_run


def test_read_run_gives_the_best_documents_per_query(tmp_path: Path) -> None:
    lines = [f"{q} Q0 {q}d{rank} {rank} {-rank} x" for q in ("b", "a") for rank in (1, 2, 3)]
    (tmp_path / "r.trec").write_text("\n".join(lines) + "\n")
    assert list(read_run(tmp_path / "r.trec", 2)) == [("b", ["bd1", "bd2"]), ("a", ["ad1", "ad2"])]
    (tmp_path / "e.trec").write_text("")
    assert list(read_run(tmp_path / "e.trec", 2)) == []
    (tmp_path / "bad.trec").write_text(lines[0] + "\nb Q0 d\n")
    with pytest.raises(UserError, match=r"bad.trec:2: found 3 fields, expected 6"):
        list(read_run(tmp_path / "bad.trec", 2))
    with pytest.raises(UserError, match="not found"):
        list(read_run(tmp_path / "none.trec", 2))
    (tmp_path / "wide.trec").write_text("q\u3000 Q0 Café\u00a0noir\x85 1 0.5 x\n", encoding="utf-8")
    assert list(read_run(tmp_path / "wide.trec", 2)) == [("q\u3000", ["Café\u00a0noir\x85"])], "only ASCII blanks separate TREC fields"


def test_first_document_and_first_relevant_rank(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a Q0 x 1 3 t\na Q0 y 2 2 t\na Q0 z 3 1 t\nb Q0 x 1 1 t\nc Q0 x 1 1 t\n")
    firsts = first_results(tmp_path / "run", {"a": ["z", "y"], "b": ["y"], "d": ["x"]})
    assert firsts == {"a": ("x", 2), "b": ("x", None)}
    (tmp_path / "wide").write_text("q\u00a0 Q0 d\u3000 1 3 t\n", encoding="utf-8")
    assert first_results(tmp_path / "wide", {"q\u00a0": ["d\u3000"]}) == {"q\u00a0": ("d\u3000", 1)}
    (tmp_path / "escaped").write_text("%00query%201 Q0 %00doc%201 1 3 t\n")
    assert first_results(tmp_path / "escaped", {"query 1": ["doc 1"]}) == {"query 1": ("doc 1", 1)}, "ids with white space"


def test_ties_are_ordered_by_descending_id() -> None:
    order = best_first(["a", "c", "b", "d"], [1.0, 1.0, 2.0, 0.5])
    assert order == [("b", 2.0), ("c", 1.0), ("a", 1.0), ("d", 0.5)]
    batch = ranked_batch([("q", order), ("r", [("z", -1.0)])])
    assert (batch["doc"].to_pylist(), batch["rank"].to_pylist()) == (["b", "c", "a", "d", "z"], [1, 2, 3, 4, 1])
    assert ranked_batch([]).num_rows == 0


@pytest.mark.parametrize("batch", [1, 2, 3, 7, 1000])
def test_documents_with_their_querys_id_are_excluded(batch: int, tmp_path: Path) -> None:
    rng = random.Random(batch)
    rows = []
    for query in map(str, range(60)):
        docs = [str(doc) for doc in rng.sample(range(60), rng.randint(1, 9))]
        if rng.random() < 0.5 and query not in docs:
            docs.insert(rng.randint(0, len(docs)), query)
        rows += [(query, doc, rank, -float(rank)) for rank, doc in enumerate(docs, 1)]
    expected, ranks = [], dict.fromkeys(map(str, range(60)), 0)
    for query, doc, _, score in rows:
        if query != doc:
            ranks[query] += 1
            expected.append((query, doc, ranks[query], score))
    table = pa.table([list(column) for column in zip(*rows, strict=True)], schema=RANKED)
    batches = [table.to_batches()[0][:0], *table.to_batches(batch)]
    filtered = pa.Table.from_batches(without_identical_ids(batches), RANKED)
    assert [tuple(row.values()) for row in filtered.to_pylist()] == expected
    assert write_run(tmp_path / "run.trec", without_identical_ids(batches), "me") == len(expected)
    assert [(query, doc) for query, docs in read_run(tmp_path / "run.trec") for doc in docs] == [row[:2] for row in expected]
    cut = pa.Table.from_batches(without_identical_ids(batches, 4), RANKED)
    assert [tuple(row.values()) for row in cut.to_pylist()] == [row for row in expected if row[2] <= 4]
    assert 20 < len(rows) - len(expected) < 50


def test_an_empty_id_is_refused_and_leaves_no_file(tmp_path: Path) -> None:
    table = pa.table([["q"], [""], [1], [1.0]], schema=RANKED)
    with pytest.raises(UserError, match="found an empty id"):
        write_run(tmp_path / "run.trec", table.to_batches(), "me")
    assert not list(tmp_path.iterdir())


def test_ids_with_white_space_round_trip(tmp_path: Path) -> None:
    lists = [("query 1", ["doc 1", "doc%201", "d"]), ("query\t2", ["%00d", "two\nlines", "d"]), ("q3", ["a%20b"])]
    batch = ranked_batch([(query, [(doc, 1.0 / rank) for rank, doc in enumerate(docs, 1)]) for query, docs in lists])
    run = tmp_path / "run.trec"
    assert write_run(run, [batch], "me") == 7
    assert all(len(line.split()) == 6 for line in run.read_text().splitlines())
    assert list(read_run(run)) == lists
    assert "q3 Q0 a%20b 1 1 me\n" in run.read_text(), "an id that needs no escaping is written unchanged"
