"""Runs are read a query at a time, in trec_eval's order when they are put in a new one."""

from pathlib import Path

import pytest

from tasks.core.stage.errors import UserError
from tasks.core.tables.trec import best_first, ranked_batch, read_run


def test_read_run(tmp_path: Path) -> None:
    lines = [f"{q} Q0 {q}d{rank} {rank} {-rank} x" for q in ("b", "a") for rank in (1, 2, 3)]
    (tmp_path / "r.trec").write_text("\n".join(lines) + "\n")
    assert list(read_run(tmp_path / "r.trec", 2)) == [("b", ["bd1", "bd2"]), ("a", ["ad1", "ad2"])]
    (tmp_path / "e.trec").write_text("")
    assert list(read_run(tmp_path / "e.trec", 2)) == []
    (tmp_path / "bad.trec").write_text(lines[0] + "\nb Q0 d\n")
    with pytest.raises(UserError, match=r"bad.trec:2: found 3 fields, expected 6"):
        list(read_run(tmp_path / "bad.trec", 2))
    with pytest.raises(UserError, match="not there"):
        list(read_run(tmp_path / "none.trec", 2))
    (tmp_path / "wide.trec").write_text("q\u3000 Q0 Café\u00a0noir\x85 1 0.5 x\n", encoding="utf-8")
    assert list(read_run(tmp_path / "wide.trec", 2)) == [("q\u3000", ["Café\u00a0noir\x85"])], "TREC's blank is ASCII's alone"


def test_ties_fall_by_id() -> None:
    order = best_first(["a", "c", "b", "d"], [1.0, 1.0, 2.0, 0.5])
    assert order == [("b", 2.0), ("c", 1.0), ("a", 1.0), ("d", 0.5)]
    batch = ranked_batch([("q", order), ("r", [("z", -1.0)])])
    assert (batch["doc"].to_pylist(), batch["rank"].to_pylist()) == (["b", "c", "a", "d", "z"], [1, 2, 3, 4, 1])
    assert ranked_batch([]).num_rows == 0
