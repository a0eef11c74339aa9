"""How hard negatives are drawn: each way against its own definition by plain Python; scores travel with their documents."""

import itertools
import math
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tasks.core.errors import UserError
from tasks.core.tables.judgments import lists_of
from tasks.core.tables.parquet import write_table
from tasks.core.tables.schemas import QRELS, RANKED
from tasks.core.tables.weights import WEIGHTS
from tasks.train.batches import TrainingSet, check_training_set, draw_batch, read_training_set, schedule_of, seen_before, with_weights
from tasks.train.params import Round
from tests.train.test_batches import write_token_folder

DOCUMENTS = 500
SCORES = {10: 0.9, 11: 0.7, 12: 0.4, 13: 0.1, 20: 3.0}  # of negatives; query 0 has 10 to 13, query 1 only 20, query 2 none
POSITIVES = {0: {1: 0.8}, 1: {2: 2.0, 3: math.nan}, 2: {4: 0.5}}


@pytest.fixture
def data() -> TrainingSet:
    judged = [(q, d, s) for q, own in POSITIVES.items() for d, s in own.items()]
    positives = lists_of(
        *(np.array(c) for c in list(zip(*judged, strict=True))[:2]), 3, np.array([s for *_, s in judged], dtype=np.float32)
    )
    queries, documents = np.array([0, 0, 1, 0, 0]), np.array([10, 11, 20, 12, 13])  # best first within a query
    scores = np.array([SCORES[d] for d in documents.tolist()], dtype=np.float32)
    return TrainingSet(np.arange(3), positives, lists_of(queries, documents, 3, scores), DOCUMENTS, positives)


def round_of(**values: object) -> Round:
    return Round.model_validate({"init": "base", "negatives": "m", "batch_queries": 3, "hard_negatives": 2, **values})


def draw_negatives(data: TrainingSet, params: Round, steps: int) -> dict[int, list[tuple[int, ...]]]:
    """Hard negatives of each query at each step."""
    draws: dict[int, list[tuple[int, ...]]] = {0: [], 1: [], 2: []}
    for step in range(steps):
        batch = draw_batch(data, params, step)
        candidates = batch.documents[batch.slots]
        for row, query in enumerate(batch.queries.tolist()):
            draws[query].append(tuple(candidates[batch.own[row]].tolist()))
    return draws


@pytest.mark.parametrize(("a", "b"), [(1.0, 0.0), (8.0, 0.0), (8.0, -0.5), (0.0, 0.0), (500.0, 0.1)])
def test_simans_draws_by_its_weights_without_repetition(data: TrainingSet, a: float, b: float) -> None:
    """Each ordered pair (first, second) comes with p(first) p(second) / (1 - p(first)); s+ is 0.8."""
    weight = {d: math.exp(-a * (SCORES[d] - 0.8 - b) ** 2) for d in (10, 11, 12, 13)}
    total = sum(weight.values())
    steps = 3000
    pairs = draw_negatives(data, round_of(sampling="simans", simans_a=a, simans_b=b), steps)[0]
    for first, second in itertools.permutations(weight, 2):
        p = weight[first] / total * weight[second] / (total - weight[first])
        assert abs(pairs.count((first, second)) / steps - p) < 4 * math.sqrt(p * (1 - p) / steps) + 0.002


def test_simans_without_a_score_of_the_positive_is_uniform(data: TrainingSet) -> None:
    batch = next(b for b in (draw_batch(data, round_of(sampling="simans"), step) for step in range(50)) if 3 in b.documents[b.slots[:3]])
    row = batch.queries.tolist().index(1)
    assert math.isnan(batch.scores[row, 0])
    assert batch.documents[batch.slots][batch.own[row]].tolist() == [20, 20], "too few repeat"


def test_top_uses_the_same_best_negatives_at_every_step(data: TrainingSet) -> None:
    draws = draw_negatives(data, round_of(sampling="top"), 20)
    assert set(draws[0]) == {(10, 11)}
    assert set(draws[1]) == {(20, 20)}
    assert set(draw_negatives(data, round_of(sampling="top", hard_negatives=6), 3)[0]) == {(10, 11, 12, 13, 10, 11)}


def test_random_and_none(data: TrainingSet) -> None:
    draws = draw_negatives(data, round_of(negatives="random"), 400)
    for query in range(3):
        counts = np.bincount([d for pair in draws[query] for d in pair], minlength=DOCUMENTS)
        assert (counts > 0).mean() > 0.7, "the whole corpus"
        assert counts.max() < 12
    batch = draw_batch(data, round_of(negatives="none"), 0)
    assert (len(batch.slots), batch.scores.shape, batch.own.any()) == (3, (3, 1), np.False_)


@pytest.mark.parametrize("sampling", ["uniform", "top", "simans"])
def test_scores_go_with_their_documents(data: TrainingSet, sampling: str) -> None:
    for step in range(30):
        batch = draw_batch(data, round_of(sampling=sampling), step)
        candidates = batch.documents[batch.slots]
        for row, query in enumerate(batch.queries.tolist()):
            expected = [POSITIVES[query][candidates[row]], *(SCORES.get(d, math.nan) for d in candidates[batch.own[row]].tolist())]
            if query == 2:
                expected[1:] = [math.nan, math.nan]  # drawn from the corpus
            np.testing.assert_allclose(batch.scores[row], expected, rtol=1e-6)


def test_each_epoch_draws_differently_but_reproducibly(data: TrainingSet) -> None:
    pairs = draw_negatives(data, round_of(), 30)
    assert len(set(pairs[0])) > 5
    assert draw_negatives(data, round_of(), 30) == pairs
    assert draw_negatives(data, round_of(seed=1), 30) != pairs


def write_ranked(path: Path, rows: list[tuple[str, str, int, float]]) -> None:
    write_table(path, RANKED, [pa.table([list(c) for c in zip(*rows, strict=True)] or [[]] * 4, schema=RANKED)])


def test_read_with_scores(tmp_path: Path) -> None:
    queries, documents = write_token_folder(tmp_path / "q", ["a", "b"]), write_token_folder(tmp_path / "d", ["x", "y", "z"])
    rows = [("b", "x", 1), ("a", "y", 1), ("a", "z", 1)]
    write_table(tmp_path / "qrels.parquet", QRELS, [pa.table([list(c) for c in zip(*rows, strict=True)], schema=QRELS)])
    write_ranked(tmp_path / "train.parquet", [("a", "x", 1, 5.0), ("b", "z", 1, 4.0), ("b", "y", 2, 3.0)])
    write_ranked(tmp_path / "positives.parquet", [("b", "x", 1, 9.0), ("a", "z", 1, 8.0), ("gone", "z", 1, 7.0)])
    data = read_training_set(queries, documents, tmp_path / "qrels.parquet", tmp_path / "train.parquet", round_of(window=(1, 9)), tmp_path)
    assert data.positives.values.tolist() == [1, 2, 0]
    np.testing.assert_array_equal(data.positives.scores, [math.nan, 8.0, 9.0])
    assert (data.negatives.values.tolist(), data.negatives.scores.tolist()) == ([0, 2, 1], [5.0, 4.0, 3.0])
    assert "1.5 per query to draw from; 1 has fewer than 2 (repeated), 0 none" in check_training_set(data, round_of(loss="kl"))
    (tmp_path / "positives.parquet").unlink()
    data = read_training_set(queries, documents, tmp_path / "qrels.parquet", tmp_path / "train.parquet", round_of(window=(1, 9)), tmp_path)
    for values, setting in (({"loss": "margin_mse"}, "loss margin_mse"), ({"sampling": "simans"}, "sampling simans")):
        with pytest.raises(UserError, match=f"no scores of positives, which {setting} requires"):
            check_training_set(data, round_of(**values))
    data = read_training_set(queries, documents, tmp_path / "qrels.parquet", tmp_path / "train.parquet", round_of(window=(3, 9)), tmp_path)
    with pytest.raises(UserError, match="none of 2 queries has one at ranks 3 to 9"):
        check_training_set(data, round_of(window=(3, 9)))
    assert check_training_set(data, round_of(negatives="random", window=(3, 9))) == "2 queries, hard negatives: random"
    single = replace(data, queries=data.queries[:1])
    assert check_training_set(single, round_of(negatives="random")) == "1 query, hard negatives: random"
    with pytest.raises(UserError, match="found 1 training query and no hard_negatives, so there are no negatives; increase hard_negatives"):
        check_training_set(single, round_of(negatives="none", loss="nll"))


@pytest.mark.parametrize("seed", range(4))
def test_tables_of_pairs_are_joined_by_their_ids(seed: int, tmp_path: Path) -> None:
    """Scores and weights of positives, in any order, with rows of others, and with no row for some; against a dictionary."""
    draw = random.Random(seed)
    names, query_ids = [f"d{i}" for i in range(9)], [f"q{i}" for i in range(6)]
    queries, documents = write_token_folder(tmp_path / "q", query_ids), write_token_folder(tmp_path / "d", names)
    pairs = draw.sample(list(itertools.product(query_ids, names)), 20)
    others = [(query, doc) for query, doc in itertools.product([*query_ids, "gone"], [*names, "gone"]) if (query, doc) not in pairs]
    qrels, tables = [(*pair, 1) for pair in pairs], {}
    for path, schema, rank in (("positives.parquet", RANKED, (1,)), ("weights.parquet", WEIGHTS, ())):
        rows = draw.sample([*draw.sample(pairs, 10), *draw.sample(others, 5)], 15)
        tables[path] = {pair: float(np.float32(draw.uniform(2, 9))) for pair in rows}
        columns = [list(column) for column in zip(*((*pair, *rank, value) for pair, value in tables[path].items()), strict=True)]
        write_table(tmp_path / path, schema, [pa.table(columns, schema=schema)])
    write_table(tmp_path / "qrels.parquet", QRELS, [pa.table([list(column) for column in zip(*qrels, strict=True)], schema=QRELS)])
    write_ranked(tmp_path / "train.parquet", [("q0", "d0", 1, 1.0)])
    data = read_training_set(queries, documents, tmp_path / "qrels.parquet", tmp_path / "train.parquet", round_of(), tmp_path)
    data = with_weights(data, queries, documents, tmp_path / "qrels.parquet", weights=tmp_path / "weights.parquet")
    joined = [(query_ids[q], names[d]) for q in range(6) for d in data.positives.of(q).tolist()]
    assert joined == sorted(pairs, key=lambda pair: pair[0])
    assert data.weights is not None
    assert data.weights.tolist() == [tables["weights.parquet"].get(pair, 1.0) for pair in joined]
    np.testing.assert_array_equal(data.positives.scores, [tables["positives.parquet"].get(pair, math.nan) for pair in joined])
    assert f"; weights of positives from {min(data.weights):.3g} to {max(data.weights):.3g}" in check_training_set(
        data, round_of(hard_negatives=1)
    )


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_the_first_ranks_as_positives(ranks: int, tmp_path: Path) -> None:
    """As in SPAR: the ranking with known positives where their scores place them, against plain sorting; no judgment is read."""
    draw = random.Random(ranks)
    names, query_ids = [f"d{i}" for i in range(30)], [f"q{i}" for i in range(8)]
    queries, documents = write_token_folder(tmp_path / "q", query_ids), write_token_folder(tmp_path / "d", names)
    negatives, known, expected = [], [], {}
    for number, query in enumerate(query_ids[:-1]):  # the last one finds nothing
        drawn_docs = draw.sample(names, 12)
        scores = sorted((draw.random() for _ in drawn_docs), reverse=True)
        judged = set(draw.sample(drawn_docs, number % 4))
        expected[query] = drawn_docs[:ranks]
        for table, rows in ((negatives, [pair for pair in zip(drawn_docs, scores, strict=True) if pair[0] not in judged]),
                            (known, [pair for pair in zip(drawn_docs, scores, strict=True) if pair[0] in judged])):  # fmt: skip
            table += [(query, doc, rank, score) for rank, (doc, score) in enumerate(rows, 1)]
    write_ranked(tmp_path / "train.parquet", negatives)
    write_ranked(tmp_path / "positives.parquet", known)
    params = round_of(positive_ranks=ranks, window=(8, 12), hard_negatives=1)
    data = read_training_set(queries, documents, tmp_path / "missing.parquet", tmp_path / "train.parquet", params, tmp_path)
    assert {query_ids[q]: {names[d] for d in data.positives.of(q)} for q in data.queries} == {q: set(docs) for q, docs in expected.items()}
    for query, doc, rank, score in negatives:
        if rank <= ranks and doc in expected[query]:
            place = data.positives.of(query_ids.index(query)).tolist().index(names.index(doc))
            assert data.positives.scores_of(query_ids.index(query))[place] == pytest.approx(score)
    assert f"positives: the first {ranks} ranks of m" in check_training_set(data, params)
    write_ranked(tmp_path / "train.parquet", [])
    write_ranked(tmp_path / "positives.parquet", [])
    with pytest.raises(UserError, match="no training query is listed by m"):
        read_training_set(queries, documents, tmp_path / "missing.parquet", tmp_path / "train.parquet", params, tmp_path)


def test_the_schedule_of_a_chain() -> None:
    plan = schedule_of(10, 20, round_of(schedule_steps=30))
    assert (plan.steps, plan.first, plan.total) == (10, 20, 30)
    with pytest.raises(UserError, match="21 steps done and 10 to do exceed schedule_steps 30"):
        schedule_of(10, 21, round_of(schedule_steps=30))
    assert schedule_of(10, 0, round_of()).total == 10


@pytest.mark.parametrize("values", [{"loss": "kl"}, {"loss": "margin_mse"}, {"sampling": "simans"}])
@pytest.mark.parametrize("negatives", ["random", "none"])
def test_distillation_refuses_negatives_without_scores(values: dict[str, str], negatives: str) -> None:
    """Random documents have no scores: every pair would be excluded, the loss 0, and the weights unchanged."""
    with pytest.raises(ValueError, match=f"negatives {negatives}|requires hard_negatives and a source of negatives with scores"):
        round_of(negatives=negatives, **values)


def test_more_negatives_than_any_query_has_are_refused(data: TrainingSet) -> None:
    assert "1 has fewer than 4 (repeated), 1 none" in check_training_set(data, round_of(hard_negatives=4))
    with pytest.raises(
        UserError, match=r"^negatives m: found at most 4 per query at ranks 1 to 200, expected hard_negatives .5. for at least"
    ):
        check_training_set(data, round_of(hard_negatives=5))


def test_what_is_advised_where_negatives_are_few_can_help(data: TrainingSet) -> None:
    """A corpus that is too small has no more negatives for any window, depth, or source."""
    small_set, params = replace(data, documents=6), round_of(hard_negatives=6)
    with pytest.raises(UserError, match=r"decrease hard_negatives to 4: the corpus has only 6 documents, known positives included$"):
        check_training_set(small_set, params)
    with pytest.raises(UserError, match=r"decrease hard_negatives to 4, or use a deeper or less filtered source$"):
        check_training_set(replace(data, documents=7), params)
    with pytest.raises(UserError, match=r"decrease hard_negatives to 4, or use a deeper or less filtered source or a wider window$"):
        check_training_set(data, params)
    no_negatives = replace(data, negatives=lists_of(np.array([], dtype=np.int64), np.array([], dtype=np.int64), 3), documents=6)
    with pytest.raises(UserError, match=r"at ranks 1 to 200 of 6 documents; choose other negatives \(random, none\)$"):
        check_training_set(no_negatives, round_of(negatives="bm25"))
    with pytest.raises(UserError, match=r"of 6 documents; choose other negatives \(random, bm25, none\) or a wider window$"):
        check_training_set(no_negatives, round_of(window=(3, 200)))
    with pytest.raises(UserError, match=r"or a wider window or hard_negatives_from: all$"):
        check_training_set(no_negatives, round_of(window=(1, 5), hard_negatives_from="positives"))


def test_random_half_of_a_mixture_is_resampled_at_each_step(data: TrainingSet) -> None:
    """Documents 12 and 13 have no score: of query 0, a draw of them is one from the whole corpus; 10 and 11 stay as they are."""
    assert data.negatives.scores is not None
    scores = np.where(np.isin(data.negatives.values, [12, 13]), np.nan, data.negatives.scores).astype(np.float32)
    mixed = replace(data, negatives=replace(data.negatives, scores=scores))
    draws = draw_negatives(mixed, round_of(hard_negatives=4), 400)[0]
    others = [d for step in draws for d in step if d not in (10, 11)]
    assert all({10, 11} <= set(step) for step in draws)
    assert len(others) > 780, "two a step, some of them 10 or 11 by chance"
    assert len(set(others)) > 300, "of 500 documents"
    assert draws == draw_negatives(mixed, round_of(hard_negatives=4), 400)[0]


@pytest.mark.parametrize(("drawn", "warned"), [(0, False), (1, True), (2, False), (3, False)])
def test_warns_if_a_round_starts_with_the_queries_of_its_initial_model(data: TrainingSet, drawn: int, warned: bool) -> None:
    assert len(data.queries) == 3
    expected = f"the first {drawn} of 3 queries are those that base was trained on (seed 42); set another seed" if warned else ""
    assert seen_before({"seed": 42, "queries": drawn, "of": 3}, data, round_of(batch_queries=2)) == expected
    assert seen_before({}, data, round_of(batch_queries=2)) == "", "a model that was not trained"
    for other in ({"seed": 7}, {"of": 4}):
        state = {"seed": 42, "queries": drawn, "of": 3} | other
        assert seen_before(state, data, round_of(batch_queries=2)) == "", "it was trained on an order of its own"
