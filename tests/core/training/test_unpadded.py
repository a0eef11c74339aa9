"""Training without padding, on a stand-in for a GPU: vectors and gradients are those of the padded form."""

import copy
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModel, BertConfig, DistilBertConfig, XLMRobertaConfig

from tasks.core.machine.devices import best_batch_tokens
from tasks.core.models.bi_encoder import Encoder, load_towers
from tasks.core.models.folder import Shape
from tasks.core.tokens.folder import Tokens
from tasks.core.training import gradient_cache
from tasks.core.training.compute import Compute
from tasks.core.training.gradient_cache import Side, cached_backward, make_chunks
from tasks.core.training.unpadded import Unpadded, best_training_tokens, can_be_unpadded, round_up, unpadded_towers
from tasks.core.workers.gang import Gang
from tests.fake_gpu import GPU, FakeGpu, fake_gpu
from tests.gangs import as_ranks

CPU = torch.device("cpu")
LENGTHS = [9, 4, 4, 1, 12, 7]
Gradients = dict[str, torch.Tensor]


@pytest.fixture
def towers(tiny_encoder: Path) -> Callable[[str, float], Encoder]:
    """Makes the tower of a name, with the given share of dropout."""

    def make(name: str, dropout: float = 0.0) -> Encoder:
        if name.startswith("xlm-roberta"):
            config = XLMRobertaConfig(vocab_size=600, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=64)
            tower = Encoder(AutoModel.from_config(config), Shape(pooling="cls" if name.endswith("cls") else "mean", similarity="dot"))
        else:
            tower = load_towers(tiny_encoder).document
            tower.shape = Shape(pooling="cls" if name == "cls" else "mean", similarity="cosine")
        config = tower.transformer.config
        config.hidden_dropout_prob = config.attention_probs_dropout_prob = dropout
        for module in tower.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = dropout
        return tower.train()

    return make


def random_tokens(pad: int) -> Tokens:
    rng, offsets = np.random.default_rng(1), np.cumsum([0, *LENGTHS])
    flat = rng.integers(5, 600, size=int(offsets[-1]), dtype=np.uint16)
    return Tokens(flat, offsets, np.arange(len(LENGTHS), dtype=np.int32), Path(), pad, 16, "", "")


def gradients(tower: Encoder) -> Gradients:
    return {name: weight.grad.cpu() for name, weight in tower.named_parameters() if weight.grad is not None}


@pytest.mark.parametrize("name", ["mean", "cls", "xlm-roberta", "xlm-roberta cls"])
def test_vectors_and_gradients_are_those_with_padding(name: str, towers: Callable[[str], Encoder]) -> None:
    tower = towers(name)
    tokens, rows = random_tokens(tower.transformer.config.pad_token_id), np.array([4, 0, 5, 1, 2, 3])
    ids_BL, mask_BL = tokens.padded(rows)
    draw = torch.randn(len(rows), tower.width, generator=torch.Generator().manual_seed(2))
    expected_BD = copy.deepcopy(tower)(ids_BL, mask_BL)
    padded = copy.deepcopy(tower)
    (padded(ids_BL, mask_BL) * draw).sum().backward()
    with fake_gpu():
        tower.to(GPU)
        unpadded, sizes = Unpadded(tower, torch.float32), list[int]()
        for layer in tower.transformer.encoder.layer:
            layer.output.LayerNorm.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
        actual_BD = unpadded.vectors([(tokens, rows), (tokens, rows), (tokens, rows)])[: len(rows)]
        assert set(sizes[:-1]) == {128} and sizes[-1] == (64 if name.endswith("cls") else 128), "sizes of products, which are few"
        for _ in range(2):
            (unpadded.vectors([(tokens, rows[:2]), (tokens, rows[2:])]) * draw.to(GPU)).sum().backward()
            unpadded.give_back()
        actual, vectors_BD = gradients(tower), actual_BD.detach().cpu()
    assert torch.allclose(vectors_BD, expected_BD.detach(), atol=1e-5)
    expected = gradients(padded)
    assert actual.keys() == expected.keys() and len(actual) > 30
    for key, gradient in expected.items():
        assert torch.allclose(actual[key], 2 * gradient, atol=1e-5 + 1e-4 * float(gradient.abs().max())), key


def test_hidden_states_are_those_with_padding(towers: Callable[[str], Encoder]) -> None:
    tower, tokens = towers("mean"), random_tokens(0)
    ids_BL, mask_BL = tokens.padded(np.arange(len(LENGTHS)))
    rows = [ids_BL[row, :length].numpy() for row, length in enumerate(LENGTHS)]
    expected_BLH = copy.deepcopy(tower).transformer(input_ids=ids_BL, attention_mask=mask_BL).last_hidden_state * mask_BL.unsqueeze(2)
    with fake_gpu():
        tower.to(GPU)
        actual_BLH = Unpadded(tower, torch.float32).padded(rows).detach().cpu()
    assert torch.allclose(actual_BLH, expected_BLH.detach(), atol=1e-5)


def sides_of(tower: Encoder) -> list[Side]:
    return [Side(tower, random_tokens(0), rows) for rows in (np.arange(len(LENGTHS)), np.arange(len(LENGTHS)))]


def contrast(vectors_BD: torch.Tensor, again_BD: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    return torch.nn.functional.cross_entropy(5 * vectors_BD @ again_BD.T, torch.arange(len(vectors_BD), device=GPU)), {}


def loss_and_gradients(tower: Encoder, graph_tokens: int, batch_tokens: int) -> tuple[float, Gradients]:
    """The loss and the gradients of a step in bfloat16 on the stand-in."""
    with fake_gpu():
        tower = copy.deepcopy(tower).to(GPU)
        figures = cached_backward(sides_of(tower), contrast, batch_tokens, Compute(GPU, torch.bfloat16, graph_tokens), (1, 2))
        return float(figures["loss"]), gradients(tower)


def test_copies_that_are_kept_are_refreshed_at_each_step(towers: Callable[[str], Encoder]) -> None:
    tower = towers("mean")
    with fake_gpu():
        tower.to(GPU)
        copies = unpadded_towers([tower, tower], GPU, torch.bfloat16)
        assert list(copies) == [tower]
        for _ in range(2):
            grads = []
            for unpadded in (copies, None):
                tower.zero_grad()
                cached_backward(sides_of(tower), contrast, 1000, Compute(GPU, torch.bfloat16, 1000), (1, 2), unpadded)
                grads.append(gradients(tower))
            assert all(torch.equal(grads[0][name], gradient) for name, gradient in grads[1].items())
            with torch.no_grad():
                for weight in tower.parameters():
                    weight.mul_(1.5)


def cosine(left: Gradients, right: Gradients) -> float:
    flat = [torch.cat([grads[name].flatten() for name in left]) for grads in (left, right)]
    return float(torch.nn.functional.cosine_similarity(*flat, dim=0))


def test_a_step_is_that_with_padding_but_for_rounding(towers: Callable[[str], Encoder], monkeypatch: pytest.MonkeyPatch) -> None:
    tower = towers("mean")
    loss, actual = loss_and_gradients(tower, 1000, 1000)
    assert all(gradient.dtype == torch.float32 for gradient in actual.values())
    monkeypatch.setattr(gradient_cache.Unpadded, "of", lambda *_: None)
    padded_loss, expected = loss_and_gradients(tower, 1000, 1000)
    assert loss == pytest.approx(padded_loss, rel=0.005)
    assert actual.keys() == expected.keys() and cosine(actual, expected) > 0.999


def test_a_second_pass_draws_the_same_dropout(towers: Callable[[str, float], Encoder]) -> None:
    tower = towers("mean", 0.3)
    kept_graphs, recomputed = loss_and_gradients(tower, 1000, 16), loss_and_gradients(tower, 0, 16)
    assert kept_graphs[0] == recomputed[0]
    assert all((kept_graphs[1][name] == recomputed[1][name]).all() for name in kept_graphs[1])
    assert loss_and_gradients(towers("mean", 0.0), 0, 16)[0] != recomputed[0], "there was dropout"


@pytest.mark.parametrize("ranks", [2, 3])
def test_every_rank_has_a_chunk_and_their_gradients_are_those_of_one(ranks: int, towers: Callable[[str], Encoder]) -> None:
    tower = towers("mean")
    loss, expected = loss_and_gradients(tower, 1000, 1000)

    def rank(gang: Gang) -> tuple[float, Gradients]:
        with FakeGpu():  # a mode is of one thread
            rank_tower = copy.deepcopy(tower).to(GPU)
            figures = cached_backward(sides_of(rank_tower), contrast, 1000, Compute(GPU, torch.bfloat16, 1000, gang), (1, 2))
            assert rank_tower.transformer.encoder.layer[0].output.dense.weight.grad is not None, "it had a chunk"
            gang.sum_gradients(rank_tower.parameters())
            return float(figures["loss"]), gradients(rank_tower)

    with fake_gpu():
        for rank_loss, rank_gradients in as_ranks(ranks, rank):
            assert rank_loss == pytest.approx(loss, rel=0.005)
            assert rank_gradients.keys() == expected.keys() and cosine(rank_gradients, expected) > 0.999


def test_both_sides_of_one_tower_are_one_chunk(towers: Callable[[str], Encoder]) -> None:
    tower_a, tower_b = towers("mean"), towers("mean")
    tokens, rows = random_tokens(0), np.arange(len(LENGTHS))
    shared, separate = ([Side(tower_a, tokens, rows), Side(tower, tokens, rows[1:])] for tower in (tower_a, tower_b))
    (chunk,) = make_chunks(shared, {tower_a}, 1000, 1)
    assert [s for s, _ in chunk.parts] == [0, 1] and chunk.size == sum(LENGTHS) + sum(LENGTHS[1:])
    assert [sorted(side_rows.tolist()) for _, side_rows in chunk.parts] == [rows.tolist(), rows[:-1].tolist()], (
        "rows of a side are counted along it"
    )
    assert [[s for s, _ in chunk.parts] for chunk in make_chunks(separate, {tower_a, tower_b}, 1000, 1)] == [[0], [1]]
    assert [[s for s, _ in chunk.parts] for chunk in make_chunks(shared, {}, 1000, 1)] == [[0], [1]], "with padding"
    assert len(make_chunks(shared, {tower_a}, 30, 1)) > 2 and len(make_chunks(shared, {tower_a}, 1000, 5)) == 5


@pytest.mark.parametrize(("graph_tokens", "passes"), [(1000, 1), (0, 2)])
def test_without_ranks_all_texts_are_one_chunk(
    graph_tokens: int, passes: int, towers: Callable[[str], Encoder], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is encoded once, or again where its graph was not kept."""
    counts, vectors = list[int](), Unpadded.vectors
    monkeypatch.setattr(Unpadded, "vectors", lambda self, texts: counts.append(sum(len(rows) for _, rows in texts)) or vectors(self, texts))
    loss_and_gradients(towers("mean"), graph_tokens, 1000)
    assert counts == [2 * len(LENGTHS)] * passes


def test_sizes_repeat() -> None:
    sizes = [round_up(tokens) for tokens in range(1, 20000)]
    assert all(0 <= size - tokens < max(64, tokens / 8) for tokens, size in enumerate(sizes, 1)) and len(set(sizes)) < 100


def test_what_is_not_computed_so(towers: Callable[[str], Encoder]) -> None:
    tower = towers("mean")
    distil = Encoder(AutoModel.from_config(DistilBertConfig(n_layers=1, dim=32, n_heads=4, hidden_dim=32)), Shape())
    wide = Encoder(AutoModel.from_config(BertConfig(num_hidden_layers=1, hidden_size=448, num_attention_heads=2)), Shape())
    frozen, adapted = towers("mean"), towers("mean")
    frozen.transformer.encoder.layer[0].output.dense.weight.requires_grad_(False)
    adapted.transformer = get_peft_model(adapted.transformer, LoraConfig(target_modules=["query"])).base_model.model
    with fake_gpu():
        assert can_be_unpadded(tower, GPU, torch.bfloat16)
        assert not can_be_unpadded(tower, GPU, torch.float32) and not can_be_unpadded(tower, CPU, torch.bfloat16)
        for unsupported in (distil, wide, frozen, adapted):
            assert not can_be_unpadded(unsupported, GPU, torch.bfloat16)
        for shape in (Shape(pooling="last"), Shape(pooling="cls+mean"), Shape(pooling="mean", pools_prompt=False)):
            tower.shape = shape
            assert not can_be_unpadded(tower, GPU, torch.bfloat16), shape
        for width, fits in ((8, True), (12, False), (192, True), (200, False)):  # of a head
            config = BertConfig(num_hidden_layers=1, hidden_size=2 * width, num_attention_heads=2, vocab_size=60, intermediate_size=8)
            head = Encoder(AutoModel.from_config(config), Shape(pooling="cls"))
            assert can_be_unpadded(head, GPU, torch.bfloat16) == fits, width


def test_batches_of_a_gpu_depend_on_the_model_and_on_all_its_memory(towers: Callable[[str], Encoder]) -> None:
    tower, other = towers("mean"), towers("mean")
    assert best_training_tokens([tower], CPU, torch.bfloat16) == best_batch_tokens(CPU, torch.bfloat16, gradients=True)
    other.transformer.config.update({"num_hidden_layers": 12, "hidden_size": 768, "num_attention_heads": 12})
    for gib, small, large in ((2, 65536, 1024), (16, 131072, 8192), (140, 131072, 65536)):
        with fake_gpu(), mock.patch.object(torch.cuda, "mem_get_info", lambda *_, gib=gib: (1, gib << 30)):
            assert best_training_tokens([tower], GPU, torch.bfloat16) == small
            assert best_training_tokens([tower, other], GPU, torch.bfloat16) == large
            assert best_training_tokens([tower], GPU, torch.float32) == 16384, "padded"
            assert best_training_tokens([other], GPU, torch.float32) == min(16384, large), "padded, as much as fits"
            first = SimpleNamespace(broadcast=lambda _: 12345)
            assert best_training_tokens([tower], GPU, torch.bfloat16, first) == 12345, "ranks cut alike"
