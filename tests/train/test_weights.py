"""Weights of training pairs: from the qrels to the batch, and every weighted loss against a plain loop."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from tasks.core.tables.judgments import lists_of
from tasks.core.tables.parquet import read_table, write_table
from tasks.core.tables.schemas import QRELS
from tasks.core.tables.weights import WEIGHTS
from tasks.prepare.corpus import write_weights
from tasks.prepare.readers.beir import read
from tasks.train.batches import TrainingSet, draw_batch, with_weights
from tasks.train.losses import hinge, kl, margin_mse, nll, ranknet, star
from tasks.train.params import Round
from tasks.train.step import batch_loss

IDS = pa.schema([("id", pa.string())])


class Texts:
    """A token folder that has only ids."""

    def __init__(self, folder: Path, ids: list[str]) -> None:
        self.folder = folder
        write_table(folder / "ids.parquet", IDS, [pa.table({"id": ids}, IDS)])


def test_weights_go_from_the_qrels_to_the_batch(tmp_path: Path) -> None:
    (tmp_path / "beir/qrels").mkdir(parents=True)
    (tmp_path / "beir/corpus.jsonl").write_text("".join(json.dumps({"_id": f"d{d}", "text": "x"}) + "\n" for d in range(4)))
    (tmp_path / "beir/queries.jsonl").write_text("".join(json.dumps({"_id": f"q{q}", "text": "x"}) + "\n" for q in range(3)))
    rows = [("q1", "d3", 1, 0.25), ("q0", "d0", 1, 1), ("q1", "d1", 2, 4.0), ("q2", "d2", 0, 0.5)]
    lines = ["query-id\tcorpus-id\tscore\tweight", *("\t".join(map(str, row)) for row in rows)]
    (tmp_path / "beir/qrels/train.tsv").write_text("\n".join(lines) + "\n")
    source = read(tmp_path / "beir")
    assert write_weights(source, tmp_path / "weights") == 3
    weight_rows = read_table(tmp_path / "weights/train.parquet", WEIGHTS).to_pylist()
    assert [tuple(row.values()) for row in weight_rows] == [(q, d, w) for q, d, _, w in rows if w != 1]

    write_table(tmp_path / "train.parquet", QRELS, [pa.table(list(map(list, zip(*(row[:3] for row in rows), strict=True))), schema=QRELS)])
    queries, documents = Texts(tmp_path / "q", ["q0", "q1", "q2"]), Texts(tmp_path / "d", ["d0", "d1", "d2", "d3"])
    positives = lists_of(np.array([1, 0, 1]), np.array([3, 0, 1]), 3)
    data = TrainingSet(np.array([0, 1]), positives, lists_of(np.arange(0), np.arange(0), 3), 4, positives)
    inputs: Any = (data, queries, documents, tmp_path / "train.parquet")
    weighted = with_weights(*inputs, weights=tmp_path / "weights/train.parquet")
    assert weighted.weights is not None
    assert dict(zip(weighted.positives.values.tolist(), weighted.weights.tolist(), strict=True)) == {0: 1.0, 3: 0.25, 1: 4.0}
    params = Round(init="base", negatives="none", batch_queries=2)
    expected = {0: 1.0, 3: 0.25, 1: 4.0}
    seen = set()
    for step in range(20):
        batch = draw_batch(weighted, params, step)
        assert batch.weights is not None
        drawn = batch.documents[batch.slots[:2]].tolist()
        seen |= set(drawn)
        assert batch.weights.tolist() == [expected[doc] for doc in drawn]
        assert draw_batch(data, params, step).weights is None
    assert seen == set(expected)

    write_table(tmp_path / "none.parquet", WEIGHTS, [])
    assert with_weights(*inputs, weights=tmp_path / "none.parquet") is data
    write_table(tmp_path / "others.parquet", WEIGHTS, [pa.table({"query": ["pseudo"], "doc": ["d0"], "weight": [2.0]}, WEIGHTS)])
    assert with_weights(*inputs, weights=tmp_path / "others.parquet") is data, "none of its pairs is here"


@pytest.mark.parametrize("seed", range(5))
def test_weighted_losses_equal_plain_loops(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count, hard = 4, 2
    slots = count * (1 + hard)
    scores = torch.from_numpy(rng.normal(size=(count, slots)))
    negative = torch.from_numpy(rng.random((count, slots)) < 0.6)
    negative[range(count), range(count)] = False
    own = torch.zeros((count, slots), dtype=torch.bool)
    for q in range(count):
        own[q, count + q * hard : count + (q + 1) * hard] = True
    weight = torch.from_numpy(rng.random(count) * 3 + 0.1)
    w = weight.tolist()

    def mean_pair_loss(mask: Any, value: Any) -> float:
        terms = [(w[q], value(float(scores[q, j] - scores[q, q]))) for q in range(count) for j in range(slots) if mask[q, j]]
        return sum(a * b for a, b in terms) / sum(a for a, _ in terms)

    def sigmoid(gap: float) -> float:
        return math.log1p(math.exp(gap))

    rows = []
    for q in range(count):
        exponents = [math.exp(float(scores[q, j])) for j in range(slots) if negative[q, j] or j == q]
        rows.append(-math.log(math.exp(float(scores[q, q])) / sum(exponents)))
    assert float(nll(scores, negative, weight)) == pytest.approx(sum(a * b for a, b in zip(w, rows, strict=True)) / sum(w))
    assert float(ranknet(scores, negative, weight)) == pytest.approx(mean_pair_loss(negative, sigmoid))
    expected = mean_pair_loss(negative & own, sigmoid) + 0.5 * mean_pair_loss(negative & ~own, sigmoid)
    assert float(star(scores, negative, own, 0.5, weight)) == pytest.approx(expected)
    assert float(hinge(scores, negative, 0.3, weight)) == pytest.approx(mean_pair_loss(negative, lambda gap: max(0.0, 0.3 + gap)))

    group, teacher = scores[:, :3], torch.from_numpy(rng.normal(size=(count, 3)))
    valid = torch.ones((count, 3), dtype=torch.bool)
    valid[0, 2] = False
    valid[1, 0] = False
    squares, divergences = [], []
    for q in range(count):
        valid_slots = [j for j in range(3) if valid[q, j]]
        if not valid[q, 0]:
            continue
        for j in valid_slots[1:]:
            squares.append((w[q], float((group[q, 0] - group[q, j]) - (teacher[q, 0] - teacher[q, j])) ** 2))
        t, s = teacher[q, valid_slots].softmax(0), group[q, valid_slots].softmax(0)
        divergences.append((w[q], float((t * (t / s).log()).sum())))
    for loss, terms in ((margin_mse, squares), (kl, divergences)):
        assert float(loss(group, teacher, valid, weight)) == pytest.approx(sum(a * b for a, b in terms) / sum(a for a, _ in terms))
    for size in (7.0, 1e-20):
        equal = torch.full((count,), size, dtype=torch.float64)
        for plain, weighted in (
            (nll(scores, negative), nll(scores, negative, equal)),
            (ranknet(scores, negative), ranknet(scores, negative, equal)),
            (kl(group, teacher, valid), kl(group, teacher, valid, equal)),
        ):
            assert float(plain) == pytest.approx(float(weighted)), "equal weights are none"
    assert float(ranknet(scores, torch.zeros_like(negative), weight)) == 0, "no pair"


@pytest.mark.parametrize(
    "values", [{"loss": "nll"}, {"loss": "ranknet"}, {"loss": "ranknet", "alpha": 0.5}, {"loss": "hinge"}, {"loss": "kl", "negatives": "t"}]
)
def test_every_loss_of_a_round_uses_them(values: dict[str, Any]) -> None:
    rng = np.random.default_rng(1)
    params = Round(**{"init": "base", "negatives": "bm25", "batch_queries": 2, **values})
    positives = lists_of(np.arange(2), np.arange(2), 2)
    negatives = lists_of(np.arange(2), np.arange(2, 4), 2, np.ones(2, dtype=np.float32))
    data = TrainingSet(np.arange(2), positives, negatives, 6, positives, weights=np.array([1, 9], dtype=np.float32))
    batch = draw_batch(data, params, 0)
    batch = replace(batch, scores=np.ones_like(batch.scores))
    scores = torch.from_numpy(rng.normal(scale=0.01, size=(2, len(batch.documents))).astype(np.float32))
    weighted, _ = batch_loss(scores, batch, params)
    plain, _ = batch_loss(scores, replace(batch, weights=None), params)
    assert float(weighted) != pytest.approx(float(plain))
