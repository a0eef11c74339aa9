"""Gradient caching gives the gradients of one plain forward and backward over the whole batch."""

from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from tasks.core.encoding.encode import encode
from tasks.core.models.bi_encoder import Encoder, load_transformer
from tasks.core.models.folder import Shape
from tasks.core.tokens.folder import Tokens
from tasks.core.training.compute import Compute
from tasks.core.training.figures import read_figures
from tasks.core.training.gradient_cache import Side, cached_backward
from tasks.core.workers.gang import Gang
from tests.gangs import as_ranks

CPU = torch.device("cpu")


def tokens_of(lengths: list[int], seed: int) -> Tokens:
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    flat = np.random.default_rng(seed).integers(5, 1000, size=offsets[-1]).astype(np.int32)
    return Tokens(flat, offsets, np.arange(len(lengths), dtype=np.int32), Path(), 0, 64, "", "")


@pytest.fixture
def tower(tiny_encoder: Path) -> Encoder:
    return Encoder(load_transformer(tiny_encoder), Shape(pooling="mean", similarity="cosine"))


def contrastive_loss(queries: torch.Tensor, documents: torch.Tensor) -> tuple[torch.Tensor, dict[str, float]]:
    loss = F.cross_entropy(queries @ documents.T / 0.05, torch.arange(len(queries)))
    return loss, {"rows": float(len(documents))}


def run(tower: Encoder, batch_tokens: int, graph_tokens: int) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
    tower.zero_grad(set_to_none=True)
    sides = [
        Side(tower, tokens_of([4, 9, 3, 5], 1), np.array([2, 0, 3, 1])),
        Side(tower, tokens_of([12, 30, 7, 22, 5, 17, 40], 2), np.array([6, 1, 0, 3, 2, 5])),
    ]
    word_VH = tower.transformer.get_input_embeddings().weight
    sparse: list[bool] = []  # after each chunk
    hook = word_VH.register_post_accumulate_grad_hook(lambda word: sparse.append(word.grad.is_sparse))
    metrics = read_figures(cached_backward(sides, contrastive_loss, batch_tokens, Compute(CPU, torch.float32, graph_tokens), (1, 2, 3)))
    hook.remove()
    assert sparse[0] and not any(sparse[1:]), "the first chunk's gradient is sparse, and made dense before the next"
    assert not tower.transformer.get_input_embeddings().sparse, "the caller's module is as it was"
    return metrics, {n: p.grad.clone() for n, p in tower.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("batch_tokens", [1, 45, 80, 10_000])
def test_equals_a_plain_backward(tower: Encoder, batch_tokens: int) -> None:
    """Without dropout the chunks do not matter: any cut gives the direct gradient."""
    tower.eval()
    queries, documents = tokens_of([4, 9, 3, 5], 1), tokens_of([12, 30, 7, 22, 5, 17, 40], 2)
    tower.zero_grad(set_to_none=True)
    direct = contrastive_loss(tower(*queries.padded(np.array([2, 0, 3, 1]))), tower(*documents.padded(np.array([6, 1, 0, 3, 2, 5]))))[0]
    direct.backward()
    expected = {n: p.grad.clone() for n, p in tower.named_parameters() if p.grad is not None}
    metrics, gradients = run(tower, batch_tokens, 0)
    assert metrics == {"loss": pytest.approx(float(direct.detach()), rel=1e-5), "rows": 6.0}
    assert gradients.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(gradients[name], gradient, rtol=1e-3, atol=1e-5, msg=name)


def test_prompts_that_are_not_pooled_are_left_out_in_training_too(tower: Encoder) -> None:
    tower.eval()
    tower.shape = replace(tower.shape, pools_prompt=False)
    queries, documents = (replace(tokens_of(lengths, seed), prompt=2) for lengths, seed in (([4, 9, 3, 5], 1), ([12, 30, 7, 22], 2)))
    rows, vectors_seen = np.arange(4), list[torch.Tensor]()

    def loss(*vectors: torch.Tensor) -> tuple[torch.Tensor, dict[str, float]]:
        vectors_seen.extend(vector.detach().clone() for vector in vectors)
        return contrastive_loss(*vectors)

    cached_backward([Side(tower, queries, rows), Side(tower, documents, rows)], loss, 45, Compute(CPU, torch.float32), (1, 2, 3))
    for vectors_ND, tokens in zip(vectors_seen, (queries, documents), strict=True):
        torch.testing.assert_close(vectors_ND, torch.from_numpy(encode(tower, tokens, rows, 100, CPU)))
        assert (vectors_ND - tower(*tokens.padded(rows))).abs().max() > 1e-3


@pytest.mark.parametrize("frozen", [False, True])
def test_two_towers_get_dense_gradients_of_their_own(frozen: bool, tower: Encoder) -> None:
    """Gradients of word embeddings are sparse on the way: optimizers and clipping never see that. A frozen embedding has none."""
    towers = [tower.eval(), deepcopy(tower)]
    for side_tower in towers:
        side_tower.transformer.get_input_embeddings().weight.requires_grad_(not frozen)
    queries, documents = tokens_of([4, 9, 3, 5], 1), tokens_of([12, 30, 7, 22], 2)
    direct = contrastive_loss(towers[0](*queries.padded(np.arange(4))), towers[1](*documents.padded(np.arange(4))))[0]
    direct.backward()
    expected = [{n: p.grad for n, p in side_tower.named_parameters() if p.grad is not None} for side_tower in towers]
    for side_tower in towers:
        side_tower.zero_grad(set_to_none=True)
    cached_backward(
        [Side(towers[0], queries, np.arange(4)), Side(towers[1], documents, np.arange(4))],
        contrastive_loss,
        20,
        Compute(CPU, torch.float32, 30),
        (1,),
    )
    for side_tower, gradients in zip(towers, expected, strict=True):
        actual = {n: p.grad for n, p in side_tower.named_parameters() if p.grad is not None}
        assert actual.keys() == gradients.keys() and any("word_embeddings" in name for name in actual) != frozen
        for name, gradient in gradients.items():
            assert not actual[name].is_sparse
            torch.testing.assert_close(actual[name], gradient, rtol=1e-3, atol=1e-5, msg=name)


@pytest.mark.parametrize("ranks", [2, 3, 7])
@pytest.mark.parametrize("graph_tokens", [0, 90])
def test_ranks_share_the_chunks_and_add_up_to_one(tower: Encoder, graph_tokens: int, ranks: int) -> None:
    """Two towers; of seven ranks over six chunks, one has none. A weight of the loss itself counts once."""
    towers = [tower.eval(), deepcopy(tower)]
    queries, documents = tokens_of([4, 9, 3, 5], 1), tokens_of([12, 30, 7, 22, 5, 17, 40], 2)
    scale = torch.nn.Parameter(torch.tensor(0.05))

    def step(gang: Gang | None = None) -> tuple[dict[str, float], int, list[torch.Tensor | None]]:
        module = torch.nn.ModuleList(deepcopy(towers))
        module.register_parameter("scale", torch.nn.Parameter(scale.detach().clone()))
        encoded: list[int] = []
        for part in list(module):
            part.register_forward_hook(lambda _, __, vectors: encoded.append(len(vectors)))

        def loss(queries_BD: torch.Tensor, documents_RD: torch.Tensor) -> tuple[torch.Tensor, dict[str, float]]:
            return F.cross_entropy(queries_BD @ documents_RD.T / module.scale, torch.arange(len(queries_BD))), {}

        sides = [Side(module[0], queries, np.arange(4)), Side(module[1], documents, np.arange(7))]
        metrics = cached_backward(sides, loss, 45, Compute(CPU, torch.float32, graph_tokens, gang), (1,))
        if gang is not None:
            gang.sum_gradients(module.parameters())
        return {name: float(value) for name, value in metrics.items()}, sum(encoded), [p.grad for p in module.parameters()]

    metrics, texts, gradients = step()
    results = as_ranks(ranks, step)
    assert sum(n for _, n, _ in results) == texts if not graph_tokens else 11 <= sum(n for _, n, _ in results) <= texts
    for rank_metrics, _, rank_gradients in results:
        assert rank_metrics == metrics, "the same vectors, the same loss"
        for gradient, expected in zip(rank_gradients, gradients, strict=True):
            assert (gradient is None) == (expected is None)
            if gradient is not None and expected is not None:
                torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("graph_tokens", [40, 90, 10_000])
def test_kept_graphs_change_nothing_with_dropout(tower: Encoder, graph_tokens: int) -> None:
    """The second pass must draw the first one's dropout: else encoding twice differs from keeping the graph."""
    tower.train()
    cached, kept_graphs = run(tower, 45, 0), run(tower, 45, graph_tokens)
    assert cached[0] == kept_graphs[0]
    for name, gradient in cached[1].items():
        assert torch.equal(gradient, kept_graphs[1][name]), name


@pytest.mark.parametrize("graph_tokens", [0, 23, 24, 67, 68, 100, 10_000])
def test_graphs_of_the_last_chunks_are_kept_and_no_more_than_asked_for(tower: Encoder, graph_tokens: int) -> None:
    """Memory is bounded by it: a chunk whose graph is not kept is encoded again, the last one first."""

    def encoded_chunks(kept_tokens: int) -> list[tuple[int, bool]]:
        """Tokens of each chunk, padding included, and whether it has a graph, in the order in which they are encoded."""
        calls = list[tuple[int, bool]]()
        hook = tower.register_forward_pre_hook(lambda _, inputs: calls.append((inputs[0].numel(), torch.is_grad_enabled())))
        run(tower, 45, kept_tokens)
        hook.remove()
        return calls

    sizes = [size for size, _ in encoded_chunks(10_000)]
    assert sizes == [36, 40, 30, 44, 24]
    again = [size for n, size in enumerate(sizes) if sum(sizes[n:]) > graph_tokens]
    first = [(size, n >= len(again)) for n, size in enumerate(sizes)]
    assert encoded_chunks(graph_tokens) == first + [(size, True) for size in reversed(again)]


def test_dropout_is_on_and_drawn_from_the_key(tower: Encoder) -> None:
    tower.eval()
    still = run(tower, 45, 0)[0]["loss"]
    tower.train()
    first, again = run(tower, 45, 0)[0]["loss"], run(tower, 45, 0)[0]["loss"]
    assert first == again != still


def test_bf16_autocast_trains_fp32_weights_alike(tower: Encoder) -> None:
    """Vectors come out as float32, weights and gradients stay float32, and the gradient points the same way."""
    tower.eval()
    sides = [Side(tower, tokens_of([4, 9, 3, 5], 1), np.arange(4)), Side(tower, tokens_of([12, 30, 7, 22], 2), np.arange(4))]
    results = {}
    for dtype in (torch.float32, torch.bfloat16):
        tower.zero_grad(set_to_none=True)

        def check_dtypes(queries: torch.Tensor, documents: torch.Tensor) -> tuple[torch.Tensor, dict[str, float]]:
            assert queries.dtype == documents.dtype == torch.float32
            return contrastive_loss(queries, documents)

        loss = read_figures(cached_backward(sides, check_dtypes, 45, Compute(CPU, dtype), (1, 2, 3)))["loss"]
        gradients = [p.grad for p in tower.parameters() if p.grad is not None]
        assert all(g.dtype == torch.float32 for g in gradients)
        results[dtype] = loss, torch.cat([g.flatten() for g in gradients])
    assert results[torch.bfloat16][0] == pytest.approx(results[torch.float32][0], rel=0.1)
    assert results[torch.bfloat16][0] != results[torch.float32][0], "bf16 was not used"
    assert F.cosine_similarity(results[torch.bfloat16][1], results[torch.float32][1], dim=0) > 0.95


def test_chunks_of_a_step_draw_their_own_dropout(tower: Encoder) -> None:
    """Four equal texts, one a chunk: with one draw for all, a query and its document would have one vector."""
    sides = [Side(tower.train(), tokens_of([9], 1), np.array([0, 0])) for _ in range(2)]
    seen: list[torch.Tensor] = []

    def loss(queries: torch.Tensor, documents: torch.Tensor) -> tuple[torch.Tensor, dict[str, float]]:
        seen.append(torch.cat([queries, documents]).detach())
        return contrastive_loss(queries, documents)

    for _ in range(2):
        cached_backward(sides, loss, 9, Compute(CPU, torch.float32), (1, 2, 3))
    assert len(seen[0].unique(dim=0)) == 4 and torch.equal(seen[0], seen[1]), "the same in each run of the step"
