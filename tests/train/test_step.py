"""A step's loss, accuracy, and keys of its draws, against plain loops over documents and passages."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tasks.core.models.bi_encoder import Towers, load_towers
from tasks.core.models.folder import Shape
from tasks.core.stage.draws import draw_seed
from tasks.core.tables.judgments import lists_of
from tasks.core.tokens.folder import Tokens
from tasks.core.training.compute import Compute
from tasks.core.training.figures import read_figures
from tasks.core.training.unpadded import best_training_tokens
from tasks.train import step as module
from tasks.train.batches import Batch, TrainingSet, draw_batch
from tasks.train.losses import hinge, nll, ranknet, star
from tasks.train.params import Round
from tasks.train.step import batch_loss, best_passage, every_nth, make_step

CPU = torch.device("cpu")
QUERIES, DOCUMENTS = 5, 12


def round_of(**values: object) -> Round:
    return Round.model_validate({"init": "base", "negatives": "t", "hard_negatives": 2, "temperature": 0.5, **values})


def batch_of(weights: list[float] | None = None) -> Batch:
    """Two queries, documents 0 to 3: positives 0 and 1; query 0 has 2 and 3, query 1 has 0 (a positive of it) and 2."""
    slots = np.array([0, 1, 2, 3, 0, 2])
    positive = np.array([[True, False, False, False, True, False], [True, True, False, False, True, False]])
    own = np.array([[False, False, True, True, False, False], [False, False, False, False, True, True]])
    weighted = None if weights is None else np.array(weights, dtype=np.float32)
    return Batch(np.arange(2), np.arange(4), slots, positive, own, np.zeros((2, 3), dtype=np.float32), weighted)


@pytest.mark.parametrize(
    ("scores", "values", "accuracy"),
    [
        ([[3.0, 1.0, 2.0, 0.0], [9.0, 3.0, 2.0, 1.0]], {}, 1.0),  # document 0 is a positive of query 1
        ([[3.0, 4.0, 2.0, 0.0], [9.0, 3.0, 2.0, 1.0]], {}, 0.5),  # query 1's positive is a negative of query 0
        ([[3.0, 4.0, 2.0, 0.0], [9.0, 3.0, 2.0, 4.0]], {}, 0.0),
        ([[3.0, 4.0, 2.0, 0.0], [9.0, 3.0, 2.0, 4.0]], {"in_batch": False}, 1.0),  # only the queries' own hard negatives count
        ([[3.0, 1.0, 3.0, 0.0], [9.0, 3.0, 2.0, 1.0]], {}, 0.5),  # as high is not above
        ([[-3.0, -4.0, -5.0, -6.0], [-9.0, -3.0, -4.0, -5.0]], {"hardest": True}, 1.0),
    ],
)
def test_accuracy_is_the_fraction_of_queries_whose_positive_beats_all_negatives(
    scores: list[list[float]], values: dict[str, Any], accuracy: float
) -> None:
    figures = batch_loss(torch.tensor(scores, requires_grad=True), batch_of(), round_of(loss="nll", **values))[1]
    assert float(figures["accuracy"]) == accuracy and not figures["accuracy"].requires_grad


@pytest.mark.parametrize("weights", [None, [1.0, 3.0]])
def test_the_loss_gets_its_parameters_and_the_weights_of_queries(weights: list[float] | None) -> None:
    scores, batch = torch.randn(2, 4, generator=torch.Generator().manual_seed(4)), batch_of(weights)
    scaled, weight_B = scores[:, batch.slots] / 0.5, None if weights is None else torch.tensor(weights)
    negative, own = torch.from_numpy(~batch.positive), torch.from_numpy(batch.own)
    expected = {
        "nll": nll(scaled, negative, weight_B),
        "hinge": hinge(scaled, negative, 2.0, weight_B),
        "pairwise": ranknet(scaled, negative, weight_B),
    }
    for loss, value in expected.items():
        assert float(batch_loss(scores, batch, round_of(loss=loss, margin=2.0))[0]) == pytest.approx(float(value)), loss
    published = float(star(scaled, negative, own, 0.25, weight_B))
    assert float(batch_loss(scores, batch, round_of(loss="ranknet", alpha=0.25))[0]) == pytest.approx(published)
    assert published != pytest.approx(float(expected["pairwise"]))


@pytest.mark.parametrize("most", [1, 2, 3])
def test_the_best_of_one_two_or_three_passages(most: int) -> None:
    counts = [min(most, count) for count in (2, 1, 3)]
    held_UP = torch.tensor([[place < count for place in range(most)] for count in counts])
    scores = torch.randn(4, sum(counts), generator=torch.Generator().manual_seed(1)) - 5
    ends = np.cumsum([0, *counts])
    for query, best_scores in enumerate(best_passage(scores, held_UP).tolist()):
        assert best_scores == [max(scores[query, ends[u] : ends[u + 1]].tolist()) for u in range(3)]


def tokens_of(lengths: list[int], owners: list[int], seed: int) -> Tokens:
    flat = np.random.default_rng(seed).integers(5, 1000, size=sum(lengths)).astype(np.int32)
    return Tokens(flat, np.cumsum([0, *lengths]), np.array(owners, dtype=np.int32), Path(), 0, 64, "", "")


OWNERS = np.repeat(np.arange(DOCUMENTS), [1, 3, 2] * 4).tolist()
TEXTS = tokens_of([3, 7, 4, 6, 2], list(range(QUERIES)), 1), tokens_of([3 + 5 * row % 11 for row in range(len(OWNERS))], OWNERS, 2)


def training_set() -> TrainingSet:
    positives = lists_of(np.arange(QUERIES), np.arange(QUERIES), QUERIES)
    negatives = lists_of(np.repeat(np.arange(QUERIES), 4), np.tile([7, 8, 10, 11], QUERIES), QUERIES)
    return TrainingSet(np.arange(QUERIES), positives, negatives, DOCUMENTS, positives)


@pytest.mark.parametrize("passage_step", [1, 2])
@pytest.mark.parametrize("behind", [0, 3])
def test_a_step_of_a_chain_is_that_of_its_place_in_the_chain(behind: int, passage_step: int, tiny_encoder: Path) -> None:
    """Step 2 after `behind` others: batch, passages, guide, loss, and gradient, against the same sums over single texts."""
    encoders = [load_towers(tiny_encoder, Shape(pooling="mean", similarity="dot")).document.eval() for _ in range(2)]
    towers, data = Towers(*encoders), training_set()
    params = round_of(loss="nll", batch_queries=3, temperature=20.0, passage_step=passage_step, seed=9, batch_tokens=512)

    def guide(batch: Batch) -> Batch:
        positive = batch.positive.copy()
        positive[0, 3] = True  # the first query's first hard negative
        return replace(batch, positive=positive)

    batch, (queries, documents) = draw_batch(data, params, behind + 2), TEXTS
    rows_UP = documents.rows_of(batch.documents)
    if passage_step > 1:
        rows_UP = every_nth(rows_UP, passage_step, np.random.default_rng(draw_seed(9, 6, behind + 2)))

    def vector(side: int, tokens: Tokens, row: int) -> torch.Tensor:
        ids = torch.from_numpy(tokens.flat[tokens.offsets[row] : tokens.offsets[row + 1]].astype(np.int64))[None]
        return encoders[side](ids, torch.ones_like(ids))[0]

    losses, right = [], 0
    passages = [[vector(1, documents, row) for row in rows if row >= 0] for rows in rows_UP.tolist()]
    for place, query in enumerate(batch.queries.tolist()):
        query_vector = vector(0, queries, query)
        best = [torch.stack([query_vector @ passage for passage in own]).max() / 20 for own in passages]
        rivals = [slot for slot in range(9) if not batch.positive[place, slot] and (place, slot) != (0, 3)]
        scores = torch.stack([best[batch.slots[slot]] for slot in (place, *rivals)])
        losses.append(-torch.log_softmax(scores, 0)[0])
        right += bool(scores[0] > scores[1:].max())
    expected_loss = torch.stack(losses).mean()
    expected_loss.backward()
    plain = [{name: p.grad for name, p in each.named_parameters() if p.grad is not None} for each in encoders]
    for each in encoders:
        each.zero_grad(set_to_none=True)
    figures = read_figures(make_step(towers, queries, documents, data, params, Compute(CPU, torch.float32), behind, guide)(2))
    assert figures == {"loss": pytest.approx(float(expected_loss.detach()), rel=1e-4), "accuracy": pytest.approx(right / 3)}
    for each, gradients in zip(encoders, plain, strict=True):
        for name, parameter in each.named_parameters():
            if name in gradients:
                torch.testing.assert_close(parameter.grad, gradients[name], rtol=1e-3, atol=1e-5, msg=name)


@pytest.mark.parametrize("batch_tokens", [None, 700])
def test_draws_of_a_step_have_a_stream_of_their_own(batch_tokens: int | None, tiny_encoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    towers, calls = load_towers(tiny_encoder), list[tuple[Any, ...]]()
    monkeypatch.setattr(module, "cached_backward", lambda *arguments: calls.append(arguments) or {})
    params, compute = round_of(batch_queries=3, seed=9, batch_tokens=batch_tokens), Compute(CPU, torch.float32)
    make_step(towers, *TEXTS, training_set(), params, compute, 3)(2)
    ((sides, _, budget, used_compute, key, unpadded),) = calls
    assert [side.tower for side in sides] == [towers.query, towers.document] and used_compute is compute and unpadded == {}
    assert key == (9, 3, 5), "seed, the stream of dropout, the step of the chain"
    assert budget == (batch_tokens or best_training_tokens([towers.query], CPU, torch.float32))
