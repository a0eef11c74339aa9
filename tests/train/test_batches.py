"""What a step trains on: masks, order, draws; each against plain Python over dictionaries."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from tasks.core.errors import UserError
from tasks.core.tables.ids import IDS
from tasks.core.tables.judgments import DocumentLists, lists_of
from tasks.core.tables.parquet import write_table
from tasks.core.tables.schemas import QRELS, RANKED
from tasks.core.tokens.folder import Tokens
from tasks.core.training.compute import Compute
from tasks.train.batches import TrainingSet, among_positives, check_training_set, draw_batch, read_training_set, sampled_queries, steps_of
from tasks.train.params import Round
from tasks.train.step import batch_loss, best_passage, every_nth, make_step

DOCUMENTS = 40
POSITIVES = {0: [3, 7], 1: [7], 2: [1], 4: [2, 5, 9], 5: [11], 6: [12]}  # query 3 has none
NEGATIVES = {0: [8, 9, 1], 1: [3, 20, 21, 22], 2: [7, 30], 4: [31], 5: []}


def pair_columns(lists: dict[int, list[int]]) -> tuple[np.ndarray, np.ndarray]:
    flat = [(q, d) for q, ds in lists.items() for d in ds]
    return np.array([q for q, _ in flat]), np.array([d for _, d in flat])


@pytest.fixture
def data() -> TrainingSet:
    positives = lists_of(*pair_columns(POSITIVES), 7)
    return TrainingSet(np.flatnonzero(positives.counts), positives, lists_of(*pair_columns(NEGATIVES), 7), DOCUMENTS, positives)


def round_of(**values: object) -> Round:
    return Round.model_validate({"init": "base", "negatives": "bm25", "batch_queries": 4, "hard_negatives": 2, **values})


@pytest.mark.parametrize("step", range(25))
def test_every_known_positive_is_masked(data: TrainingSet, step: int) -> None:
    """Also where it is another query's positive, or another query's hard negative (document 3 is both)."""
    batch = draw_batch(data, round_of(), step)
    candidates = batch.documents[batch.slots]
    for row, query in enumerate(batch.queries.tolist()):
        assert candidates[row] in POSITIVES[query]
        for slot, document in enumerate(candidates.tolist()):
            assert batch.positive[row, slot] == (document in POSITIVES[query])
            assert batch.own[row, slot] == (4 + 2 * row <= slot < 4 + 2 * row + 2)


def test_the_gradient_never_pushes_a_copy_of_a_positive_away(tmp_path: Path) -> None:
    """Queries a and b ask the same; documents x and y hold the same; z is a's positive, x is b's. Nothing is a negative of either."""
    texts = {"q": [[5, 6], [5, 6], [8, 9]], "d": [[1, 2], [1, 2], [3, 4], [7, 7]]}
    ids = {"q": ["a", "b", "c"], "d": ["x", "y", "z", "w"]}
    folders = {}
    for kind, rows in texts.items():
        write_token_folder(tmp_path / kind, ids[kind])
        flat, offsets = np.array(rows, dtype=np.uint16).ravel(), np.arange(len(rows) + 1) * 2
        folders[kind] = Tokens(flat, offsets, np.arange(len(rows), dtype=np.int32), tmp_path / kind, 0, 8, "", "")
    qrels, negatives = tmp_path / "qrels.parquet", tmp_path / "train.parquet"
    rows = [("a", "z", 1), ("b", "x", 1), ("c", "w", 1)]
    write_table(qrels, QRELS, [pa.table([list(c) for c in zip(*rows, strict=True)], schema=QRELS)])
    mined = [("a", "y", 1, 1.0), ("b", "y", 1, 1.0), ("c", "y", 1, 1.0)]
    write_table(negatives, RANKED, [pa.table([list(c) for c in zip(*mined, strict=True)], schema=RANKED)])
    data = read_training_set(folders["q"], folders["d"], qrels, negatives, round_of(window=(1, 9)), tmp_path)
    params = round_of(batch_queries=3, hard_negatives=1)
    batch = draw_batch(data, params, 0)
    scores = torch.zeros(3, len(batch.documents), requires_grad=True)
    batch_loss(scores, batch, params)[0].backward()
    assert scores.grad is not None
    pushed = {
        (ids["q"][query], ids["d"][batch.documents[place]])
        for row, query in enumerate(batch.queries.tolist())
        for place in np.flatnonzero(scores.grad[row] > 0)
    }
    assert pushed == {("a", "w"), ("b", "w"), ("c", "x"), ("c", "y"), ("c", "z")}
    assert "4 pairs masked for having the texts of known positives" in check_training_set(data, params)


def test_a_step_does_no_work_over_all_queries(data: TrainingSet, monkeypatch: pytest.MonkeyPatch) -> None:
    """A difference over every query for each query of a batch was most of a step on half a million."""

    def refuse_all_queries(_: DocumentLists) -> np.ndarray:
        raise AssertionError("the counts of all queries were asked for")

    monkeypatch.setattr(DocumentLists, "counts", property(refuse_all_queries))
    assert len(draw_batch(data, round_of(), 0).queries) == 4


def test_train_queries_are_sampled_by_split_seed(data: TrainingSet) -> None:
    """COSTA, section 5.5: each query is as likely as any other, fewer are among more, and no other seed has a say."""
    assert sampled_queries(data, round_of()) is data
    drawn = {
        (n, seed): sampled_queries(data, round_of(train_queries=n, split_seed=seed)).queries.tolist()
        for n in (1, 2, 5, 6)
        for seed in range(300)
    }
    for (n, seed), queries in drawn.items():
        assert queries == sorted(set(queries))
        assert len(queries) == n
        assert set(queries) <= set(POSITIVES), "query 3 has no relevant document"
        assert set(drawn[1, seed]) <= set(queries)
    for query in POSITIVES:  # 300 draws of 2 of 6: 100 expected, standard deviation 8
        assert 65 < sum(query in drawn[2, seed] for seed in range(300)) < 135
    params = round_of(train_queries=2, split_seed=7, batch_queries=2, epochs=3)
    sample = sampled_queries(data, params)
    assert sample.queries.tolist() == sampled_queries(data, params.model_copy(update={"seed": 1})).queries.tolist()
    assert steps_of(sample, params) == 3
    for step in range(3):
        assert sorted(draw_batch(sample, params, step).queries.tolist()) == drawn[2, 7], "every epoch has all of them and no other"
    with pytest.raises(UserError, match="train_queries 7: found 6 training queries"):
        sampled_queries(data, round_of(train_queries=7))


@pytest.mark.parametrize(("share", "count"), [(0.01, 1), (0.5, 3), (0.6, 4), (0.99, 6)])
def test_a_share_of_the_queries_is_the_sample_of_that_many(data: TrainingSet, share: float, count: int) -> None:
    """Of six queries, rounded by hand; so samples are nested, whether a share or a number says how large they are."""
    for seed in range(20):
        part = sampled_queries(data, round_of(train_share=share, split_seed=seed)).queries.tolist()
        assert part == sampled_queries(data, round_of(train_queries=count, split_seed=seed)).queries.tolist()
        assert len(part) == count
    assert sampled_queries(data, round_of(train_share=1.0)) is data
    with pytest.raises(ValueError, match="train_queries and train_share both say"):
        round_of(train_share=share, train_queries=2)


@pytest.mark.parametrize("step", range(10))
@pytest.mark.parametrize("loss", ["nll", "ranknet"])
@pytest.mark.parametrize("in_batch", [True, False])
def test_loss_never_pushes_a_known_positive_away(data: TrainingSet, step: int, loss: str, in_batch: bool) -> None:
    params = round_of(loss=loss, in_batch=in_batch, temperature=1.0)
    batch = draw_batch(data, params, step)
    queries = torch.eye(4, requires_grad=True)
    documents = torch.randn(len(batch.documents), 4, requires_grad=True)
    batch_loss(queries @ documents.T, batch, params)[0].backward()
    assert documents.grad is not None
    for row, query in enumerate(batch.queries.tolist()):  # query `row` is axis `row`: the gradient there is its own
        for place, document in enumerate(batch.documents.tolist()):
            if document in POSITIVES[query]:
                assert documents.grad[place, row] <= 0


def test_epoch_uses_every_query_once(data: TrainingSet) -> None:
    queries = np.concatenate([draw_batch(data, round_of(batch_queries=2), step).queries for step in range(6)])
    assert sorted(queries[:6]) == sorted(queries[6:]) == sorted(POSITIVES)
    assert queries[:6].tolist() != queries[6:].tolist()


def test_draws_depend_only_on_seed_and_step(data: TrainingSet) -> None:
    def are_equal(a: object, b: object) -> bool:
        pairs = [pair for pair in zip(vars(a).values(), vars(b).values(), strict=True) if pair[0] is not None]  # no weights
        return all(np.array_equal(x, y, equal_nan=x.dtype.kind == "f") for x, y in pairs)

    assert are_equal(draw_batch(data, round_of(), 5), draw_batch(data, round_of(), 5))
    assert not are_equal(draw_batch(data, round_of(), 5), draw_batch(data, round_of(), 6))
    assert not are_equal(draw_batch(data, round_of(), 5), draw_batch(data, round_of(seed=43), 5))


def test_positives_and_negatives_are_drawn_uniformly(data: TrainingSet) -> None:
    positives: dict[int, int] = {}
    negatives: dict[int, int] = {}
    draws = 0
    for step in range(1500):
        batch = draw_batch(data, round_of(), step)
        candidates = batch.documents[batch.slots]
        for row in np.flatnonzero(batch.queries == 4):
            positives[candidates[row]] = positives.get(candidates[row], 0) + 1
        for row in np.flatnonzero(batch.queries == 1):
            draws += 1
            own = candidates[batch.own[row]].tolist()
            assert len(set(own)) == 2, "no repetition where there are enough"
            for document in own:
                negatives[document] = negatives.get(document, 0) + 1
    assert set(positives) == {2, 5, 9}
    assert all(abs(n / sum(positives.values()) - 1 / 3) < 0.05 for n in positives.values())
    assert set(negatives) == set(NEGATIVES[1])
    assert all(abs(n / draws - 1 / 2) < 0.06 for n in negatives.values())


def test_too_few_negatives_repeat_and_none_become_random(data: TrainingSet) -> None:
    seen = set()
    for step in range(200):
        batch = draw_batch(data, round_of(), step)
        candidates = batch.documents[batch.slots]
        for row in np.flatnonzero(batch.queries == 4):
            assert candidates[batch.own[row]].tolist() == [31, 31]
        for row in np.flatnonzero(batch.queries == 5):
            seen |= set(candidates[batch.own[row]].tolist())
    assert len(seen) > DOCUMENTS * 0.8


def test_steps(data: TrainingSet) -> None:
    assert steps_of(data, round_of(batch_queries=4, epochs=2)) == 3
    assert steps_of(data, round_of(steps=17)) == 17
    assert steps_of(data, round_of(batch_queries=64, epochs=5)) == 5, "fewer queries than a batch asks for: a step is an epoch"


def write_token_folder(folder: Path, ids: list[str]) -> Tokens:
    write_table(folder / "ids.parquet", IDS, [pa.table([ids], schema=IDS)])
    rows = np.arange(len(ids) + 1)
    return Tokens(rows[:-1], rows, rows[:-1].astype(np.int32), folder, 0, 8, "", "")


def test_read_by_id_within_the_window(tmp_path: Path) -> None:
    queries, documents = write_token_folder(tmp_path / "q", ["b", "a", "c"]), write_token_folder(tmp_path / "d", ["x", "y", "z", "w"])
    qrels, negatives = tmp_path / "qrels.parquet", tmp_path / "negatives.parquet"
    rows = [("a", "z", 1), ("a", "x", 0), ("b", "w", 2), ("c", "gone", 1), ("a", "w", 1)]
    write_table(qrels, QRELS, [pa.table([list(c) for c in zip(*rows, strict=True)], schema=QRELS)])
    rows = [("b", "x", 3, 1.0), ("b", "y", 4, 0.5), ("gone", "x", 2, 1.0), ("a", "x", 1, 3.0), ("a", "y", 2, 2.0), ("a", "gone", 3, 1.0)]
    write_table(negatives, RANKED, [pa.table([list(c) for c in zip(*rows, strict=True)], schema=RANKED)])
    data = read_training_set(queries, documents, qrels, negatives, round_of(window=(2, 3)), tmp_path)
    assert data.queries.tolist() == [0, 1]
    assert (data.positives.offsets.tolist(), data.positives.values.tolist()) == ([0, 1, 3, 3], [3, 2, 3])
    assert (data.negatives.offsets.tolist(), data.negatives.values.tolist()) == ([0, 1, 2, 2], [0, 1])


def test_hard_negatives_from_positives(tmp_path: Path) -> None:
    """x and z are positives of b and a; y and w are nobody's, as the documents of held-out queries are."""
    queries, documents = write_token_folder(tmp_path / "q", ["a", "b"]), write_token_folder(tmp_path / "d", ["x", "y", "z", "w"])
    qrels, negatives = tmp_path / "qrels.parquet", tmp_path / "train.parquet"
    rows = [("a", "z", 1), ("b", "x", 1), ("b", "y", 0)]
    write_table(qrels, QRELS, [pa.table([list(c) for c in zip(*rows, strict=True)], schema=QRELS)])
    mined = [("a", "w", 1, 4.0), ("a", "x", 2, 3.0), ("a", "y", 3, 2.0), ("b", "w", 1, 1.0)]
    write_table(negatives, RANKED, [pa.table([list(c) for c in zip(*mined, strict=True)], schema=RANKED)])
    params = round_of(window=(1, 9), hard_negatives_from="positives")
    judged = read_training_set(queries, documents, qrels, negatives, params, tmp_path)
    data = among_positives(judged, queries, documents, negatives=negatives, params=params, scratch=tmp_path)
    assert (data.negatives.offsets.tolist(), data.negatives.values.tolist()) == ([0, 1, 1], [0])
    assert data.negatives.scores is not None and data.negatives.scores.tolist() == [3.0]
    for negative in ("bm25", "random"):
        params = round_of(batch_queries=2, hard_negatives=2, negatives=negative)
        drawn = {int(d) for step in range(20) for d in draw_batch(data, params, step).documents}
        assert drawn == {0, 2}, "a query without a hard negative draws among positives too"
    everything = round_of(window=(1, 9))
    assert among_positives(judged, queries, documents, negatives=negatives, params=everything, scratch=tmp_path) is judged


def test_nothing_to_train_on_is_one_line(tmp_path: Path) -> None:
    queries, documents = write_token_folder(tmp_path / "q", []), write_token_folder(tmp_path / "d", ["x"])
    for name, schema in (("qrels", QRELS), ("negatives", RANKED)):
        write_table(tmp_path / f"{name}.parquet", schema, [])
    with pytest.raises(UserError, match="no training query has a relevant document"):
        read_training_set(queries, documents, tmp_path / "qrels.parquet", tmp_path / "negatives.parquet", round_of(), tmp_path)


@pytest.mark.parametrize("seed", range(5))
def test_a_document_scores_as_its_best_passage_and_only_that_one_learns(seed: int, tmp_path: Path) -> None:
    draw = np.random.default_rng(seed)
    owners = np.repeat(np.arange(9), draw.integers(1, 5, size=9)).astype(np.int32)
    tokens = Tokens(np.zeros(0, np.uint16), np.zeros(len(owners) + 1, np.int64), owners, tmp_path, 0, 8, "", "")
    documents = np.array([1, 4, 5, 8])
    rows_UP = tokens.rows_of(documents)
    assert [[row for row in rows if row >= 0] for rows in rows_UP.tolist()] == [np.flatnonzero(owners == d).tolist() for d in documents]
    flat_rows = rows_UP[rows_UP >= 0]
    scores = torch.tensor(draw.normal(size=(3, len(flat_rows))), requires_grad=True)
    document_scores = best_passage(scores, torch.from_numpy(rows_UP >= 0))
    weights = torch.tensor(draw.normal(size=document_scores.shape))
    (document_scores * weights).sum().backward()
    assert scores.grad is not None
    for q in range(3):
        for u, document in enumerate(documents):
            own = [place for place, row in enumerate(flat_rows) if owners[row] == document]
            best = max(own, key=lambda place: float(scores[q, place].detach()))
            assert document_scores[q, u] == scores[q, best]
            assert [float(scores.grad[q, place]) for place in own] == [float(weights[q, u]) if place == best else 0.0 for place in own]


@pytest.mark.parametrize("step", [1, 2, 3, 7])
def test_every_nth_passage_from_a_drawn_first_one(step: int) -> None:
    counts = [1, 2, 3, 6, 13]
    rows_UP = np.array([[100 * u + place if place < count else -1 for place in range(13)] for u, count in enumerate(counts)])
    seen: dict[int, set[int]] = {u: set() for u in range(len(counts))}
    for seed in range(60):
        for u, rows in enumerate(every_nth(rows_UP, step, np.random.default_rng(seed)).tolist()):
            passages = [row - 100 * u for row in rows if row >= 0]
            assert passages == list(range(passages[0], counts[u], step)) and passages[0] < min(step, counts[u])
            seen[u] |= {passages[0]}
    assert seen == {u: set(range(min(step, count))) for u, count in enumerate(counts)}


def test_a_step_encodes_every_nth_passage_and_none_twice(data: TrainingSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owners = np.repeat(np.arange(DOCUMENTS), 5).astype(np.int32)
    tokens = Tokens(np.zeros(0, np.uint16), np.zeros(len(owners) + 1, np.int64), owners, tmp_path, 0, 8, "", "")
    encoded: list[np.ndarray] = []
    monkeypatch.setattr("tasks.train.step.cached_backward", lambda sides, *_: encoded.append(sides[1].rows) or {})

    class Both:
        query = document = None

    def rows(n: int, step: int, seed: int = 1) -> list[int]:
        params = round_of(passage_step=n, seed=seed, batch_tokens=512)
        make_step(Both(), tokens, tokens, data, params, Compute(torch.device("cpu"), torch.float32))(step)
        return encoded[-1].tolist()

    documents = draw_batch(data, round_of(seed=1), 3).documents
    assert rows(1, 3) == [5 * document + place for document in documents for place in range(5)]
    half = rows(2, 3)
    assert sorted({row // 5 for row in half}) == documents.tolist() and set(half) < set(rows(1, 3)) and half == rows(2, 3)
    assert {row % 5 for row in half} == {0, 1, 2, 3, 4}, "each document has a first one of its own"
    assert half != rows(2, 3, seed=2)
