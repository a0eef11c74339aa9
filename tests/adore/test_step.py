"""The best passage of a document, the lists of a step, their loss and its draws, against plain loops."""

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from tasks.adore import step as module
from tasks.adore.data import Data, batch_of
from tasks.adore.lists import Lists
from tasks.adore.params import Adore
from tasks.adore.step import Unretrieved, draw, list_loss, make_corpus, make_step
from tasks.core.models.bi_encoder import Encoder, load_towers
from tasks.core.models.folder import Shape
from tasks.core.stage.draws import draw_seed
from tasks.core.tables.judgments import lists_of
from tasks.core.training.checkpoints import CHECKPOINT
from tasks.core.training.compute import Compute
from tasks.core.training.unpadded import best_training_tokens
from tests.gangs import tokens_of

OWNERS = np.array([0, 0, 0, 1, 2, 2, 3], dtype=np.int32)


class Documents:
    """Vectors in memory, and how many rows were scored at a time."""

    def __init__(self, vectors: np.ndarray) -> None:
        self.vectors, self.asked = vectors, list[int]()

    def search(self, *_: Any) -> Any:
        raise AssertionError("not asked for")

    def scores(self, queries_BD: torch.Tensor, rows_BL: np.ndarray) -> torch.Tensor:
        self.asked.append(rows_BL.size)
        return torch.einsum("bd,bld->bl", queries_BD, torch.from_numpy(self.vectors[np.maximum(rows_BL, 0)]))


@pytest.mark.parametrize("at_once", [1, 8, 1000])
def test_the_best_passages_of_documents(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROWS", at_once)
    rng = np.random.default_rng(0)
    vectors, queries = (rng.normal(size=(n, 4)).astype(np.float32) for n in (len(OWNERS), 4))
    vectors[2] = vectors[0]  # of equal passages the first
    documents = Documents(vectors)
    best = make_corpus(documents, OWNERS, np.arange(4), 4).best_rows(torch.from_numpy(queries))
    lists = [[2, 0], [], [1], [3, 2, 1, 0, 2]]
    best_rows = best([np.array(own, dtype=np.int64) for own in lists])
    for query, own, rows in zip(queries, lists, best_rows, strict=True):
        plain = [max(np.flatnonzero(owner == OWNERS).tolist(), key=lambda row, q=query: (float(q @ vectors[row]), -row)) for owner in own]
        assert rows.tolist() == plain and rows.dtype == np.int64
    assert max(documents.asked) <= max(at_once, 10) and len(documents.asked) == (1 if at_once == 1000 else 4)


def test_the_better_of_two_passages() -> None:
    corpus = make_corpus(Documents(np.array([[0], [1], [2]], np.float32)), np.array([0, 0, 1], dtype=np.int32), np.arange(2), 2)
    best = corpus.best_rows(torch.tensor([[1.0], [-1.0]]))
    assert [rows.tolist() for rows in best([np.array([0, 1]), np.array([1, 0])])] == [[1, 2], [2, 0]]


def test_documents_of_one_passage_are_not_scored() -> None:
    corpus = make_corpus(Documents(np.zeros((3, 2), np.float32)), np.arange(3, dtype=np.int32), np.arange(3), 3)
    best = corpus.best_rows(torch.zeros(2, 2))
    assert [rows.tolist() for rows in best([np.array([2, 0]), np.array([], dtype=np.int64)])] == [[2, 0], []]


def test_the_number_of_documents_that_a_query_finds_is_passed_on() -> None:
    """Three documents at most, of which the first is row 0; a deeper list has all of them."""
    search_counts = list[list[int]]()
    owners, vectors = np.array([0, 0, 1, 2], dtype=np.int32), np.array([[1, 0], [2, 0], [0, 1], [1, 1]], dtype=np.float32)
    corpus = make_corpus(Found(vectors), owners, np.arange(3), 10)
    corpus = replace(corpus, on_search=lambda counts: search_counts.append(counts.tolist()))
    rows = corpus.top_rows(torch.tensor([[2.0, -1.0], [1.0, 1.0], [-1.0, -1.0]]))
    assert rows.tolist() == [[1, 3, -1], [3, 1, 2], [-1, -1, -1]] and search_counts == [[2, 3, 0]]
    corpus.top_rows(torch.tensor([[-1.0, 2.0], [2.0, -3.0]]))
    assert search_counts[1:] == [[2, 1]]
    single = replace(
        make_corpus(Found(vectors[:1]), owners[:1], np.arange(1), 2), on_search=lambda counts: search_counts.append(counts.tolist())
    )
    assert single.top_rows(torch.tensor([[1.0, 0.0]])).tolist() == [[0]] and search_counts[2:] == [[1]], "row 0 is a document"


QUERIES = tokens_of([4, 9, 3, 5, 7, 6], 1)
CPU = Compute(torch.device("cpu"), torch.float32)


def adore_params(**values: Any) -> Adore:
    kind = {"depth": 3, "batch_queries": 4, "negatives": "none", "loss": "ranknet", "seed": 8}
    return Adore.model_validate({"round": "r"} | kind | values)


def data_of(positives: dict[int, dict[int, int]], negatives: dict[int, list[int]] | None = None) -> Data:
    """Grades of each query's positives, and given negatives."""
    q, d, grades = (np.array(column) for column in zip(*((q, d, g) for q, own in positives.items() for d, g in own.items()), strict=True))
    lists = lists_of(q, d, len(QUERIES), grades.astype(np.float32))
    ranked = None
    if negatives is not None:
        ranked = lists_of(*(np.array(column) for column in zip(*((q, d) for q, own in negatives.items() for d in own), strict=True)), 6)
    return Data(np.flatnonzero(lists.counts), lists, ranked, 5, lists)


GRADED = {0: {2: 1}, 1: {0: 2, 3: 1, 4: 3}, 2: {1: 1}, 4: {3: 2, 4: 1}, 5: {0: 1}}  # query 3 has none


class Found(Documents):
    """A search that finds only the rows with a positive score."""

    def search(self, queries_BD: np.ndarray, _: int) -> tuple[np.ndarray, np.ndarray]:
        scores = queries_BD @ self.vectors.T
        rows = np.argsort(-scores, axis=1, kind="stable")
        scores = np.take_along_axis(scores, rows, axis=1)
        return np.where(scores > 0, scores, -np.inf), np.where(scores > 0, rows, -1)


@pytest.fixture
def tower(tiny_encoder: Path) -> Encoder:
    return load_towers(tiny_encoder, Shape(pooling="mean", similarity="dot")).document.train()


def reference_vectors(tower: Encoder) -> np.ndarray:
    """Of each query alone, without dropout."""
    tower.eval()
    with torch.no_grad():
        rows = [torch.from_numpy(QUERIES.flat[a:b].astype(np.int64))[None] for a, b in pairwise(QUERIES.offsets)]
        vectors = np.concatenate([tower(ids, torch.ones_like(ids)).numpy() for ids in rows])
    tower.train()
    return vectors


def corpus_of(tower: Encoder) -> tuple[module.Corpus, list[list[int]]]:
    """Five documents of one or two passages, and which of them each query finds, best first."""
    owners = np.array([0, 1, 1, 2, 3, 3, 4], dtype=np.int32)
    vectors, queries = np.random.default_rng(1).normal(size=(len(owners), tower.width)).astype(np.float32), reference_vectors(tower)
    middle = queries.mean(0)
    vectors -= np.outer(vectors @ middle, middle) / (middle @ middle)  # what sets queries apart
    lists = []
    for query in queries:
        best = {d: max(float(query @ vectors[row]) for row in np.flatnonzero(owners == d)) for d in range(5)}
        lists.append([d for d in sorted(best, key=lambda d, best=best: -best[d]) if best[d] > 0][:3])
    return make_corpus(Found(vectors), owners, np.arange(5), 3), lists


@pytest.mark.parametrize("block", [2, 3, 2048])
def test_refreshed_lists_are_those_of_each_query_by_the_tower_without_dropout(
    block: int, tower: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of seven steps over five queries, four at a time: a query comes in several epochs. A list may be shorter than others."""
    monkeypatch.setattr(module, "QUERY_BLOCK", block)
    corpus, expected = corpus_of(tower)
    assert len({len(documents) for documents in expected}) > 1
    data, params = data_of(GRADED), adore_params(lists="refreshed", refresh=5, steps=7)
    lists = Unretrieved(tower, QUERIES, data, corpus, params, tmp_path, CPU)
    for step in range(7):
        batch = batch_of(data, params, step)
        assert [documents.tolist() for documents in lists.of(step, batch)] == [expected[query] for query in batch], step
    assert tower.training and len(np.load(tmp_path / "lists-5.npy")) == 2 * 4, "no more than the training's last steps"


def test_a_checkpoint_is_read_once_and_only_for_lists_that_may_depend_on_it(
    tower: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has all weights and moments: at each refresh its header is enough to know which lists are no longer needed."""
    read: list[Path] = []
    monkeypatch.setattr("tasks.adore.refreshed.checkpoint_step", lambda path: read.append(path) or 0)
    corpus, data = corpus_of(tower)[0], data_of(GRADED)
    for kind, negatives in (("retrieved", "none"), ("given", "g"), ("random", "none")):
        Unretrieved(tower, QUERIES, data, corpus, adore_params(lists=kind, negatives=negatives), tmp_path, CPU)
    assert read == []
    params = adore_params(lists="refreshed", refresh=2, steps=7)
    lists = Unretrieved(tower, QUERIES, data, corpus, params, tmp_path, CPU)
    kept = []
    for step in range(7):
        if step in (3, 5):
            save_file({"weight": torch.zeros(1)}, tmp_path / CHECKPOINT, metadata={"step": str(step)})
        lists.of(step, batch_of(data, params, step))
        kept.append(sorted(path.name for path in tmp_path.glob("lists-?.npy")))
    assert read == [tmp_path / CHECKPOINT]
    assert kept[2:5] == [["lists-0.npy", "lists-2.npy"]] * 2 + [["lists-2.npy", "lists-4.npy"]]
    assert kept[6] == ["lists-4.npy", "lists-6.npy"]


def test_other_lists_are_empty_drawn_by_the_step_or_given(tower: Encoder, tmp_path: Path) -> None:
    corpus, batch = corpus_of(tower)[0], np.array([4, 0])
    data = data_of(GRADED, {0: [4, 1], 4: [0]})

    def lists(step: int, kind: str, **values: Any) -> list[list[int]]:
        return [
            own.tolist()
            for own in Unretrieved(tower, QUERIES, data, corpus, adore_params(lists=kind, **values), tmp_path, CPU).of(step, batch)
        ]

    assert lists(3, "retrieved") == []
    assert lists(3, "given", negatives="g") == [[0], [4, 1]]
    assert lists(3, "random") == np.random.default_rng(draw_seed(8, 2, 3)).integers(5, size=(2, 3)).tolist()


def test_a_drawn_step_has_the_positives_and_grades_of_its_queries() -> None:
    data, params = data_of(GRADED), adore_params(lists="retrieved")
    data = Data(data.queries, data.positives, None, 5, data_of({q: query_grades | {1: 1} for q, query_grades in GRADED.items()}).positives)
    for step in range(4):
        drawn = draw(data, params, step)
        assert drawn.queries.tolist() == batch_of(data, params, step).tolist()
        most = max(len(GRADED[query]) for query in drawn.queries)
        assert drawn.grades.dtype == np.int64
        for query, positives, known, labels, grades in zip(
            drawn.queries.tolist(), drawn.positives, drawn.known, drawn.labels, drawn.grades.tolist(), strict=True
        ):
            query_grades = GRADED[query]
            assert dict(zip(positives.tolist(), grades, strict=False)) == query_grades and grades[len(query_grades) :] == [0] * (
                most - len(query_grades)
            )
            assert dict(zip(known.tolist(), labels.tolist(), strict=True)) == query_grades | {1: 1}


@pytest.mark.parametrize("cut", [None, 2])
@pytest.mark.parametrize("metric", ["ranknet", "mrr", "ndcg"])
def test_the_loss_of_lists_is_that_of_a_plain_loop(metric: str, cut: int | None) -> None:
    """By default the cut is the depth (3), of four ranks."""
    if metric == "ranknet" and cut:
        return
    drawn = np.random.default_rng(2)
    vectors, queries = (drawn.normal(size=(n, 4)).astype(np.float32) for n in (7, 2))
    rows, grades, ideal = np.array([[3, 0, 6, 2], [5, 1, 4, -1]]), np.array([[0, 2, 0, 1], [1, 0, 0, 0]]), np.array([[2, 1, 3], [1, 0, 0]])
    kind = {"loss": "ranknet"} if metric == "ranknet" else {"loss": "lambda", "metric": metric, "cut": cut}
    corpus: Any = SimpleNamespace(documents=Documents(vectors))
    params = adore_params(temperature=0.5, **kind)
    loss = list_loss(torch.from_numpy(queries), Lists(rows, grades), corpus, ideal, params)
    last, total = cut or 3, 0.0

    def gain(rank: int) -> float:
        if rank > last:
            return 0.0
        return 1 / rank if metric == "mrr" else 1 / math.log2(1 + rank)

    for query, own, labels, best in zip(queries, rows.tolist(), grades.tolist(), ideal.tolist(), strict=True):
        own = [row for row in own if row >= 0]
        scores = [float(query @ vectors[row]) / 0.5 for row in own]
        highest = sum((2**grade - 1) * gain(rank) for rank, grade in enumerate(sorted(best, reverse=True), 1))
        pairs = [(i, j) for i in range(len(own)) for j in range(len(own)) if labels[i] > labels[j]]
        for i, j in pairs:
            weight = 1.0 if metric == "ranknet" else abs(gain(i + 1) - gain(j + 1))
            weight *= abs(2 ** labels[i] - 2 ** labels[j]) / highest if metric == "ndcg" else 1.0
            total += weight * math.log1p(math.exp(scores[j] - scores[i])) / len(pairs) / 2
    assert float(loss) == pytest.approx(total, rel=1e-5)


@pytest.mark.parametrize(("lists", "plotted"), [("retrieved", True), ("retrieved", False), ("random", True), ("random", False)])
def test_a_step_is_drawn_by_its_number_and_measured_where_it_is_plotted(
    lists: str, plotted: bool, tower: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lists that are not retrieved need a search only for their metrics."""
    (corpus, _), data, params = corpus_of(tower.eval()), data_of(GRADED), adore_params(lists=lists, missing="ltre", batch_tokens=600)
    searched, calls, real = list[int](), list[Any](), module.cached_backward
    monkeypatch.setattr(
        Found, "search", lambda self, queries, depth, search=Found.search: searched.append(1) or search(self, queries, depth)
    )
    monkeypatch.setattr(module, "cached_backward", lambda *arguments: calls.append(arguments) or real(*arguments))
    checked_steps = list[int]()
    steps = make_step(tower, QUERIES, data, corpus, params, lambda step: bool(checked_steps.append(step)) or plotted, tmp_path, CPU)
    figures = steps(2)
    metrics = {"mrr_10", "hit_10", "recall", "overlap"}
    assert set(figures) == {"loss"} | (metrics if plotted else set()) and set(checked_steps) <= {2}
    assert bool(searched) == (lists == "retrieved" or plotted)
    ((side,), _, budget, compute, key, unpadded) = calls[0]
    assert (side.tower, side.tokens, side.rows.tolist()) == (tower, QUERIES, batch_of(data, params, 2).tolist())
    assert (budget, compute, key, unpadded) == (600, CPU, (8, 3, 2), {})
    make_step(tower, QUERIES, data, corpus, adore_params(lists=lists), lambda _: False, tmp_path, CPU)(0)
    assert calls[1][2] == best_training_tokens([tower], CPU.device, CPU.dtype)


def test_the_positive_that_takes_the_last_rank_is_drawn_by_the_step(
    tower: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LTRe, where no positive of a query was retrieved: query 1 finds none of its three."""
    (corpus, _), params, seen = corpus_of(tower.eval()), adore_params(lists="retrieved", missing="ltre", batch_queries=1), set[int]()
    monkeypatch.setattr(module.Corpus, "top_rows", lambda *_: np.array([[2, 3, -1]]))  # documents 1 and 2
    loss_lists, real = list[Lists](), module.list_loss
    monkeypatch.setattr(module, "list_loss", lambda queries, lists, *rest: loss_lists.append(lists) or real(queries, lists, *rest))
    steps = make_step(tower, QUERIES, data_of({1: GRADED[1]}), corpus, params, lambda _: False, tmp_path, CPU)
    for step in range(12):
        steps(step)
        added = int(corpus.owners[loss_lists[-1].rows[0, -1]])
        assert added == int(np.random.default_rng(draw_seed(8, 2, step)).choice([0, 3, 4], 1)[0])
        assert loss_lists[-1].grades.tolist() == [[0, 0, GRADED[1][added]]]
        seen.add(added)
    assert seen == {0, 3, 4}
