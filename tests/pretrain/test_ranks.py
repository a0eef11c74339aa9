"""A step of a pre-training on several ranks: their gradients add up to those of one, whatever the weights that the losses have."""

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from tasks.chunk.params import Chunk
from tasks.core.models.folder import Shape
from tasks.core.models.mlm_head import MLMHead
from tasks.core.tokens.chunks import open_chunks
from tasks.core.tokens.tokenizer import load_tokenizer
from tasks.core.training.unpadded import Unpadded
from tasks.core.workers.gang import Gang
from tasks.pretrain import step as step_module
from tasks.pretrain.batches import draw_batch, usable_rows
from tasks.pretrain.model import Pretrainer, make_pretrainer, random_towers
from tasks.pretrain.params import Pretrain, Scratch
from tasks.pretrain.step import Step, Work, make_step
from tasks.pretrain.words import read_vocabulary
from tests.chunks import write_chunks
from tests.fake_gpu import GPU, fake_gpu
from tests.gangs import as_ranks

CPU = torch.device("cpu")
SIZE = Scratch(layers=1, width=16, heads=2)


@pytest.fixture(scope="module")
def chunks(tmp_path_factory: pytest.TempPathFactory, tiny_corpus: Any, tiny_encoder: Path) -> Any:
    folder = tmp_path_factory.mktemp("chunks")
    texts = {d: text for d, (_, text) in list(tiny_corpus.documents.items())[:30]}
    write_chunks(folder, [(list(texts), list(texts.values()))], load_tokenizer(tiny_encoder), "digest", Chunk(length=64), len(texts))
    return open_chunks(folder)


def module_of(params: Pretrain, tiny_encoder: Path) -> Pretrainer:
    towers = random_towers(json.loads((tiny_encoder / "config.json").read_text()), Shape(pooling="cls"), SIZE, 3)
    head = MLMHead(towers.document.transformer.config)
    head.draw(torch.Generator().manual_seed(4))
    return make_pretrainer(towers, head, params).eval()  # ranks that are threads share a seed


KINDS = [
    {"objective": "costa", "projector": "nonlinear", "contrastive_weight": 0.5},
    {"objective": "costa", "projector": "linear", "contrastive_input": "masked", "mlm_reduction": "sum"},
    {"objective": "mlm"},
    {"objective": "ict"},
    {"objective": "retromae"},
]


def join_values(values: dict[str, Any]) -> str:
    return "-".join(map(str, values.values()))


@pytest.mark.parametrize("values", [*KINDS, {"objective": "costa", "contrastive_input": "clean"}], ids=join_values)
def test_gradients_without_padding_are_those_with_it(
    chunks: Any, tiny_encoder: Path, values: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the stand-in for a GPU, in float32; both passes, several chunks."""
    settings = {"init": "base", "batch_texts": 16, "spans": 2, "paragraph": [20, 40], "batch_tokens": 512}
    params = Pretrain.model_validate(settings | values)
    outcomes = []
    for maker in (lambda tower, *_: Unpadded(tower, torch.float32), lambda *_: None):
        monkeypatch.setattr(step_module.Unpadded, "of", maker)
        module = module_of(params, tiny_encoder)
        with fake_gpu():
            module.to(GPU)
            rows, vocabulary = usable_rows(chunks, params, "a"), read_vocabulary(load_tokenizer(tiny_encoder), "a")
            loss = make_step(module, chunks, rows, vocabulary, params, Work(GPU, torch.float32, 700, chunks.tokens.pad))(0)["loss"]
            gradients = {name: weight.grad.cpu() for name, weight in module.named_parameters() if weight.grad is not None}
            outcomes.append((float(loss), gradients))
    (loss, ours), (expected_loss, theirs) = outcomes
    assert loss == pytest.approx(expected_loss, rel=1e-5) and ours.keys() == theirs.keys()
    assert any("encoder.layer" in name for name in ours)
    largest = max(float(gradient.abs().max()) for gradient in theirs.values())
    for name, gradient in theirs.items():
        torch.testing.assert_close(ours[name], gradient, rtol=1e-3, atol=1e-5 * largest, msg=name)


def test_each_step_without_padding_has_the_weights_of_its_time(chunks: Any, tiny_encoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products use copies of the weights, which are made again for each step."""
    monkeypatch.setattr(step_module.Unpadded, "of", lambda tower, *_: Unpadded(tower, torch.float32))
    params = Pretrain.model_validate({"init": "base", "objective": "mlm", "batch_texts": 4, "batch_tokens": 512})
    module = module_of(params, tiny_encoder)
    rows, vocabulary = usable_rows(chunks, params, "a"), read_vocabulary(load_tokenizer(tiny_encoder), "a")
    with fake_gpu():
        module.to(GPU)
        work = Work(GPU, torch.float32, 700, chunks.tokens.pad)
        steps = make_step(module, chunks, rows, vocabulary, params, work)
        before = float(steps(0)["loss"])
        with torch.no_grad():
            for weight in module.encoder.transformer.encoder.parameters():
                weight.add_(0.5)
        after = float(steps(0)["loss"])
        assert after == float(make_step(module, chunks, rows, vocabulary, params, work)(0)["loss"]) != before


@pytest.mark.parametrize(("device", "cuts"), [(GPU, range(8, 17)), (CPU, [1])])
def test_on_gpus_each_rank_has_a_cut(chunks: Any, tiny_encoder: Path, device: torch.device, cuts: Sequence[int]) -> None:
    params = Pretrain.model_validate({"init": "base", "batch_texts": 16, "spans": 2, "paragraph": [20, 40], "batch_tokens": 8192})
    rows, vocabulary = usable_rows(chunks, params, ""), read_vocabulary(load_tokenizer(tiny_encoder), "tiny")
    batch = draw_batch(chunks, rows, vocabulary, params, 3)
    work = Work(device, torch.float32, 700, chunks.tokens.pad, Gang(1, 8, CPU))
    step = Step(module_of(params, tiny_encoder), batch, params, work, (1,), params.batch_tokens, None)
    assert len(step.cuts) in cuts
    assert max(step.sizes) <= 8192
    assert sorted(k for cut in step.cuts for k in cut.tolist()) == list(range(len(batch.lengths)))


@pytest.mark.parametrize("ranks", [2, 5])
@pytest.mark.parametrize("graph_tokens", [0, 700])
@pytest.mark.parametrize("values", KINDS, ids=join_values)
def test_ranks_add_up_to_one(chunks: Any, tiny_encoder: Path, values: dict[str, Any], graph_tokens: int, ranks: int) -> None:
    settings = {"init": "base", "batch_texts": 16, "spans": 2, "paragraph": [20, 40], "batch_tokens": 512}
    params = Pretrain.model_validate(settings | values)
    single = module_of(params, tiny_encoder)
    vocabulary, rows = read_vocabulary(load_tokenizer(tiny_encoder), "tiny"), usable_rows(chunks, params, "")

    def step(module: Pretrainer, gang: Gang | None = None) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
        work = Work(CPU, torch.float32, graph_tokens, chunks.tokens.pad, gang)
        metrics = make_step(module, chunks, rows, vocabulary, params, work)(3)
        if gang is not None:
            gang.sum_gradients(module.parameters())
        gradients = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
        return {name: float(value) for name, value in metrics.items()}, gradients

    copies = [copy.deepcopy(single) for _ in range(ranks)]
    metrics, gradients = step(single)
    for rank_metrics, summed in as_ranks(ranks, lambda gang: step(copies[gang.rank], gang)):
        assert rank_metrics == pytest.approx(metrics, rel=1e-5, abs=1e-6)
        assert summed.keys() == gradients.keys()
        for name, gradient in gradients.items():
            torch.testing.assert_close(summed[name], gradient, rtol=1e-4, atol=1e-5, msg=name)
    assert ("projector" in " ".join(gradients)) == (values["objective"] == "costa")
