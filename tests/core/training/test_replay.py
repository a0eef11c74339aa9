"""Which queries are trained on again: against plain Python over sets, and as parts of each other."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tasks.core.errors import UserError
from tasks.core.stage.draws import HELD_OUT, draw_seed
from tasks.core.tables.ids import IDS
from tasks.core.tables.parquet import write_table
from tasks.core.training.companions import KNOWN
from tasks.core.training.replay import replayed, replayed_from

QUERIES = np.array([1, 2, 3, 5, 8, 13, 21, 34, 55, 89])
OLD = {2, 3, 8, 21, 55, 89, 144}  # 144 asks nothing any more


@pytest.mark.parametrize(("share", "count"), [(0.0, 0), (0.25, 2), (0.5, 3), (0.9, 5), (1.0, 6)])
def test_all_new_queries_and_a_share_of_the_old(share: float, count: int) -> None:
    queries = replayed(QUERIES, np.array(sorted(OLD)), share=share, seed=7).tolist()
    assert queries == [query for query in QUERIES.tolist() if query in queries], "in their order"
    assert {query for query in queries if query not in OLD} == {1, 5, 13, 34}
    assert len([query for query in queries if query in OLD]) == count


def test_a_draw_is_a_function_of_its_seed_and_a_smaller_share_is_part_of_a_larger() -> None:
    queries, known = np.arange(1000), np.arange(0, 1000, 2)
    drawn = {share: set(replayed(queries, known, share=share, seed=3).tolist()) for share in (0.1, 0.3, 0.6)}
    assert drawn[0.1] < drawn[0.3] < drawn[0.6]
    assert drawn[0.3] == set(replayed(queries, known, share=0.3, seed=3).tolist())
    assert drawn[0.3] != set(replayed(queries, known, share=0.3, seed=4).tolist())
    counts = np.zeros(1000)
    for seed in range(400):
        counts[replayed(queries, known, share=0.3, seed=seed)] += 1
    assert (counts[1::2] == 400).all()
    assert abs(counts[::2] / 400 - 0.3).max() < 0.15, "each old query as often as any other (standard deviation .023)"


def test_replayed_queries_and_held_out_documents_are_drawn_apart() -> None:
    """Both are a permutation by the round's split_seed: with one stream, of as many documents the same places would be held out."""
    queries = set(replayed(np.arange(100), np.arange(100), share=0.5, seed=3).tolist())
    held_out = set(np.random.default_rng(draw_seed(3, HELD_OUT)).permutation(100)[:50].tolist())
    assert len(queries) == 50 and 10 < len(queries & held_out) < 40


@pytest.fixture
def id_file(tmp_path: Path) -> Path:
    path = tmp_path / "ids.parquet"
    write_table(path, IDS, [pa.table([[f"q{n}" for n in range(90)]], schema=IDS)])
    return path


def test_a_state_lists_what_its_weights_know(tmp_path: Path, id_file: Path) -> None:
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / KNOWN).write_text(json.dumps(["q2", "q3", "gone", "q8", "q4"]))  # q4 is known, and no longer asked
    queries, line = replayed_from(tmp_path / "first", QUERIES, id_file, share=0.34, seed=1, key="rounds.a")
    assert len(queries) == 8 and {1, 5, 13, 21, 34, 55, 89} < set(queries.tolist())
    assert line == "7 new queries, and 1 of 3 known ones (replay 0.34)"
    assert replayed_from(None, QUERIES, id_file, share=1, seed=1, key="rounds.a") == (pytest.approx(QUERIES), "")


def test_a_share_of_what_nobody_knows_is_refused(tmp_path: Path, id_file: Path) -> None:
    for state in (None, tmp_path):
        with pytest.raises(UserError, match=r"^params.yaml: rounds.a.replay: found 0.5, but its first weights do not say which queries"):
            replayed_from(state, QUERIES, id_file, share=0.5, seed=1, key="rounds.a")
    (tmp_path / KNOWN).write_text(json.dumps([f"q{query}" for query in QUERIES]))
    with pytest.raises(UserError, match=r"^params.yaml: adore.b.replay: found 0, and no training query is new, so none is left; raise it$"):
        replayed_from(tmp_path, QUERIES, id_file, share=0, seed=1, key="adore.b")
