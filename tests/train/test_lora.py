"""LoRA: what trains, what a step does, and what is saved, against peft used plainly and against the formula."""

import copy
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from transformers import AutoConfig, AutoModel

from tasks.core.encoding.packed import Packed
from tasks.core.errors import UserError
from tasks.core.models.bi_encoder import Encoder, Towers, load_towers
from tasks.core.models.folder import Shape
from tasks.core.models.projector import add_projector
from tasks.core.tables.judgments import lists_of
from tasks.core.tokens.folder import Tokens
from tasks.core.training.checkpoints import state_tensors
from tasks.core.training.compute import Compute
from tasks.core.training.loop import Journal, Schedule, fit
from tasks.core.training.optimizers import make_optimizer
from tasks.train.batches import TrainingSet
from tasks.train.frozen import Frozen
from tasks.train.lora import adapt, merge
from tasks.train.params import Lora, Round
from tasks.train.step import make_step

CPU = torch.device("cpu")
WHERE = "params.yaml: rounds.warmup.lora"
PAIRS = 6  # queries; document n is the only positive of query n
LAYERS = [f"encoder.layer.{n}.{name}" for n in range(2) for name in ("attention.self.query", "attention.self.value")]
QUERY_VALUE = Lora(rank=4, alpha=12, targets=("query", "value"))


def tokens_of(lengths: list[int], seed: int) -> Tokens:
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    flat = np.random.default_rng(seed).integers(5, 1000, size=offsets[-1]).astype(np.int32)
    return Tokens(flat, offsets, np.arange(len(lengths), dtype=np.int32), Path(), 0, 64, "", "")


QUERIES, DOCUMENTS = tokens_of([4, 9, 3, 5, 6, 2], 1), tokens_of([12, 30, 7, 22, 5, 17], 2)


def two_towers(folder: Path) -> Towers:
    return Towers(load_towers(folder).document, load_towers(folder).document)


def module_of(towers: Towers) -> nn.ModuleDict:
    return nn.ModuleDict({"document": towers.document} | ({} if towers.shared else {"query": towers.query}))


def step_of(towers: Towers, dtype: torch.dtype = torch.float32, batch_tokens: int = 512, graph_tokens: int = 0, seed: int = 1) -> Any:
    own = lists_of(np.arange(PAIRS), np.arange(PAIRS), PAIRS)
    data = TrainingSet(np.arange(PAIRS), own, lists_of(np.arange(0), np.arange(0), PAIRS), PAIRS, own)
    params = Round.model_validate({"init": "base", "negatives": "none", "batch_queries": PAIRS, "temperature": 20, "seed": seed})
    params = params.model_copy(update={"batch_tokens": batch_tokens})
    return make_step(towers, QUERIES, DOCUMENTS, data, params, Compute(CPU, dtype, graph_tokens))


def trained_weights(towers: Towers) -> dict[str, torch.Tensor]:
    return {name: weight for name, weight in module_of(towers).named_parameters() if weight.requires_grad}


def randomize_adapters(towers: Towers) -> None:
    """Adapters as a training may leave them: without one, B is 0 and an adapter does nothing."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in trained_weights(towers).values():
            weight.copy_(torch.randn(weight.shape, generator=generator) * 0.1)


def reference_vectors(transformer: Any, tokens: Tokens) -> torch.Tensor:
    """One text at a time, without padding; the mean of the last layer."""
    return torch.stack([transformer(*tokens.padded(np.array([n]))).last_hidden_state[0].mean(0) for n in range(PAIRS)])


@pytest.mark.parametrize("shared", [True, False])
def test_two_steps_equal_a_plain_loop_of_peft(shared: bool, tiny_encoder: Path, tmp_path: Path) -> None:
    towers = load_towers(tiny_encoder) if shared else two_towers(tiny_encoder)
    adapt(towers, QUERY_VALUE, 5, WHERE)
    module = module_of(towers).eval()  # without dropout
    config = peft.LoraConfig(r=4, lora_alpha=12, target_modules=["query", "value"])
    plain = {name: peft.get_peft_model(AutoModel.from_pretrained(tiny_encoder), config).eval() for name in module}
    for name, model in plain.items():
        start = {key: weight for key, weight in module[name].transformer.state_dict().items() if "lora_" in key}
        assert len(start) == 2 * len(LAYERS)
        assert not model.load_state_dict(start, strict=False).unexpected_keys
    optimizer = torch.optim.AdamW([w for model in plain.values() for w in model.parameters() if w.requires_grad], weight_decay=0.1)
    for lr in (1e-2, 0.5e-2):
        vectors = [reference_vectors(plain.get("query", plain["document"]), QUERIES), reference_vectors(plain["document"], DOCUMENTS)]
        optimizer.param_groups[0]["lr"] = lr
        optimizer.zero_grad()
        F.cross_entropy(vectors[0] @ vectors[1].T / 20, torch.arange(PAIRS)).backward()
        optimizer.step()
    (tmp_path / "curves").mkdir()
    ours = make_optimizer("adamw", module, 1e-2, 0.1)
    fit(module, ours, step_of(towers), Schedule(2, 0.0, 1e9), Journal("train", tmp_path, tmp_path / "curves", 0.0))
    for name, model in plain.items():
        actual = module[name].transformer.state_dict()
        for key, weight in model.state_dict().items():
            if "pooler" in key:  # the tiny encoder has none: transformers draws one
                continue
            torch.testing.assert_close(actual[key], weight, rtol=1e-3, atol=2e-5, msg=f"{name} {key}")
    assert {name.rsplit(".", 1)[0] for name in state_tensors(module, ours)} == set(trained_weights(towers)), (
        "the optimizer holds adapters only"
    )


@pytest.mark.parametrize("shared", [True, False])
def test_merged_weights_are_those_of_the_formula(shared: bool, tiny_encoder: Path) -> None:
    """W + alpha / rank B A where there is an adapter, the very bits of the start everywhere else."""
    towers = load_towers(tiny_encoder) if shared else two_towers(tiny_encoder)
    adapt(towers, QUERY_VALUE, 5, WHERE)
    randomize_adapters(towers)
    for tower in {towers.document, towers.query}:
        before = dict(tower.transformer.get_base_model().state_dict())
        with torch.no_grad():
            wrapped = tower.eval()(*DOCUMENTS.padded(np.arange(PAIRS)))
            plain = load_towers(tiny_encoder).document(*DOCUMENTS.padded(np.arange(PAIRS)))
        assert not torch.allclose(wrapped, plain, atol=1e-2)
        before = {key: weight.double() for key, weight in before.items()}
        expected = {
            f"{name}.weight": before[f"{name}.base_layer.weight"]
            + 12 / 4 * before[f"{name}.lora_B.default.weight"] @ before[f"{name}.lora_A.default.weight"]
            for name in LAYERS
        }
        merge(Towers(tower, tower))
        start = load_towers(tiny_encoder).document.transformer.state_dict()
        merged = tower.transformer.state_dict()
        assert merged.keys() == start.keys() and type(tower.transformer) is type(load_towers(tiny_encoder).document.transformer)
        for key, weight in merged.items():
            if key in expected:
                torch.testing.assert_close(weight.double(), expected[key], rtol=0, atol=1e-6)
                assert not torch.equal(weight, start[key])
            else:
                assert torch.equal(weight, start[key]), key
        with torch.no_grad():
            torch.testing.assert_close(tower(*DOCUMENTS.padded(np.arange(PAIRS))), wrapped, rtol=1e-4, atol=1e-5)


def test_what_is_measured_while_training_is_the_result(tiny_encoder: Path) -> None:
    """Bit for bit: a copy is merged as the result will be. Layers without padding read plain weights, so they refuse adapted ones."""
    towers, pairs = load_towers(tiny_encoder), np.arange(PAIRS)
    adapt(towers, QUERY_VALUE, 5, WHERE)
    start = Frozen.of(towers, QUERIES, DOCUMENTS, CPU, torch.float32).scores(pairs, pairs)
    randomize_adapters(towers)
    assert Packed.of(towers.document.eval(), CPU) is None
    scores = Frozen.of(towers, QUERIES, DOCUMENTS, CPU, torch.float32).scores(pairs, pairs)
    assert Packed.of(towers.document.eval(), CPU) is None, "the towers go on training as they are"
    merge(towers)
    assert Packed.of(towers.document.eval(), CPU) is not None
    np.testing.assert_array_equal(scores, Frozen.of(towers, QUERIES, DOCUMENTS, CPU, torch.float32).scores(pairs, pairs))
    assert np.abs(scores - start).max() > 0.1


def test_an_untrained_adapter_changes_no_bit(tiny_encoder: Path) -> None:
    towers = load_towers(tiny_encoder)
    adapt(towers, Lora(), 5, WHERE)
    merge(towers)
    for key, weight in load_towers(tiny_encoder).document.transformer.state_dict().items():
        assert torch.equal(towers.document.transformer.state_dict()[key], weight)


@pytest.mark.parametrize(
    ("targets", "layers"),
    [
        (None, 12),  # query, key, value, attention.output.dense, intermediate.dense, output.dense of two layers; not the pooler
        (["query"], 2),
        (["dense"], 6),
        (["attention.output.dense"], 2),
        (["output.dense", "key"], 6),
    ],
)
def test_targets_are_ends_of_names(targets: list[str] | None, layers: int, tiny_encoder: Path) -> None:
    towers = load_towers(tiny_encoder)
    message = adapt(towers, Lora.model_validate({"rank": 2, "targets": targets}), 5, WHERE)
    layer_names = {name.partition(".lora_")[0].removeprefix("document.transformer.base_model.model.") for name in trained_weights(towers)}
    assert len(layer_names) == layers and not any("pooler" in name for name in layer_names)
    assert all(f".{name}".endswith(tuple(f".{target}" for target in targets)) for name in layer_names) if targets else True
    count = sum(weight.numel() for weight in trained_weights(towers).values())
    frozen = sum(weight.numel() for weight in load_towers(tiny_encoder).document.parameters())
    assert message == f"LoRA of rank 2 on {layers} linear layers: {count:,} weights train, {frozen:,} are frozen"


def test_adapters_are_drawn_from_the_seed_alone(tiny_encoder: Path) -> None:
    drawn = []
    for number, seed in enumerate((5, 5, 6)):
        torch.manual_seed(number)
        state, towers = torch.get_rng_state(), load_towers(tiny_encoder)
        adapt(towers, QUERY_VALUE, seed, WHERE)
        assert torch.equal(torch.get_rng_state(), state), "nobody else's draws move"
        drawn.append(trained_weights(towers))
    a, b = ([{n: w for n, w in adapters.items() if kind in n} for adapters in drawn] for kind in ("lora_A", "lora_B"))
    assert all(torch.equal(a[0][name], a[1][name]) and not torch.equal(a[0][name], a[2][name]) for name in a[0])
    assert not any(weight.any() for adapters in b for weight in adapters.values())


def gradients(encoder: Path, step: int = 0, **settings: Any) -> dict[str, torch.Tensor]:
    """Of a training step with much dropout in the adapters, and none elsewhere."""
    towers = load_towers(encoder)
    adapt(towers, Lora(rank=4, alpha=4, dropout=0.5), 5, WHERE)
    randomize_adapters(towers)
    towers.document.eval()
    for name, module in towers.document.named_modules():
        module.training = "lora_dropout" in name
    step_of(towers, **settings)(step)
    return {name: weight.grad.clone() for name, weight in trained_weights(towers).items() if weight.grad is not None}


def test_dropout_is_a_function_of_seed_and_step(tiny_encoder: Path) -> None:
    """Whatever was drawn before; and the second pass of gradient caching draws what the first one did."""
    runs = []
    for number, settings in enumerate(({}, {}, {"graph_tokens": 10**6}, {"step": 1}, {"seed": 2})):
        torch.manual_seed(number)
        runs.append(gradients(tiny_encoder, batch_tokens=40, **settings))
    assert len(runs[0]) == 24
    for name, gradient in runs[0].items():
        assert torch.equal(gradient, runs[1][name])
        torch.testing.assert_close(gradient, runs[2][name], rtol=1e-4, atol=1e-6)
        assert not torch.allclose(gradient, runs[3][name], rtol=1e-2) and not torch.allclose(gradient, runs[4][name], rtol=1e-2)


def test_bf16_autocast_leaves_adapters_in_fp32(tiny_encoder: Path) -> None:
    exact, rounded = gradients(tiny_encoder), gradients(tiny_encoder, dtype=torch.bfloat16)
    for name, gradient in rounded.items():
        assert gradient.dtype == torch.float32
        assert F.cosine_similarity(gradient.flatten(), exact[name].flatten(), dim=0) > 0.98, name


def test_a_projector_is_trained_whole(tiny_encoder: Path) -> None:
    towers = load_towers(tiny_encoder)
    adapt(towers, QUERY_VALUE, 5, WHERE)
    add_projector(towers, "linear", tiny_encoder, 5)
    assert {name for name in trained_weights(towers) if "lora_" not in name} == {"document.head.linear.weight", "document.head.linear.bias"}


@pytest.mark.parametrize(
    ("targets", "line"),
    [
        (["query", "q_proj"], ".targets: found 'q_proj', expected the ends of names of linear layers: dense, key, query, value; or null"),
        (["pooler.dense"], ".targets: found 'pooler.dense', expected"),
        (["uery"], ".targets: found 'uery', expected"),
        (["word_embeddings"], ".targets: found 'word_embeddings', expected"),
    ],
)
def test_unknown_targets_are_one_line(targets: list[str], line: str, tiny_encoder: Path) -> None:
    with pytest.raises(UserError) as refusal:
        adapt(load_towers(tiny_encoder), Lora.model_validate({"targets": targets}), 5, WHERE)
    assert str(refusal.value).startswith(WHERE + line)


def test_a_transformer_without_linear_layers_is_refused(tiny_encoder: Path) -> None:
    tower = load_towers(tiny_encoder).document
    bare = Encoder.__new__(Encoder)
    nn.Module.__init__(bare)
    bare.transformer = tower.transformer.embeddings
    with pytest.raises(UserError, match=r"found a transformer without linear layers, expected some; set lora: null$"):
        adapt(Towers(bare, bare), Lora(), 5, WHERE)


@pytest.mark.parametrize("targets", [None, ("c_attn", "mlp.c_proj")])
@pytest.mark.parametrize("kind", ["gpt2", "openai-gpt"])
def test_layers_with_transposed_weights_learn_and_merge(kind: str, targets: tuple[str, ...] | None) -> None:
    """Gradients and merged weights of GPT-2's Conv1D, whose weight is W^T, against W^T + alpha / rank (B A)^T in float64."""
    config = AutoConfig.for_model(kind, n_embd=16, n_layer=2, n_head=2, n_positions=64, vocab_size=1000, initializer_range=0.3)
    torch.manual_seed(0)
    tower = Encoder(AutoModel.from_config(config), Shape(pooling="last")).eval()
    plain = copy.deepcopy(tower).double()
    with warnings.catch_warnings(action="error"):
        message = adapt(Towers(tower, tower), Lora(rank=3, alpha=6, targets=targets), 5, WHERE)
    assert message.startswith(f"LoRA of rank 3 on {4 if targets else 8} linear layers")
    randomize_adapters(Towers(tower, tower))
    ours = {name: weight for name, weight in tower.transformer.named_parameters() if weight.requires_grad}
    theirs = {name: weight.detach().double().requires_grad_() for name, weight in ours.items()}
    weights = dict(plain.transformer.named_parameters())
    merged = dict(weights)
    for name in {name.partition(".lora_")[0] for name in ours}:
        key = f"{name.removeprefix('base_model.model.')}.weight"
        merged[key] = weights[key] + 2 * (theirs[f"{name}.lora_B.default.weight"] @ theirs[f"{name}.lora_A.default.weight"]).T
    ids, mask = DOCUMENTS.padded(np.arange(PAIRS))
    direction = torch.randn(PAIRS, 16, generator=torch.Generator().manual_seed(1))
    vectors = tower(ids, mask)
    (vectors * direction).sum().backward()
    sums = torch.zeros((), dtype=torch.float64)
    for row in range(PAIRS):
        text, seen = DOCUMENTS.padded(np.array([row]))
        out = torch.func.functional_call(plain.transformer, merged, (), {"input_ids": text, "attention_mask": seen}).last_hidden_state
        torch.testing.assert_close(vectors[row].double(), out[0, -1], rtol=1e-4, atol=1e-4)
        sums = sums + (out[0, -1] * direction[row]).sum()
    sums.backward()
    for name, weight in ours.items():
        assert weight.grad is not None
        torch.testing.assert_close(weight.grad.double(), theirs[name].grad, rtol=1e-3, atol=1e-4)
    merge(Towers(tower, tower))
    assert dict(tower.transformer.named_parameters()).keys() == weights.keys()
    for name, weight in tower.transformer.named_parameters():
        torch.testing.assert_close(weight.double(), merged[name], rtol=0, atol=1e-6)
        assert torch.equal(weight.double(), weights[name]) == (merged[name] is weights[name])


def test_layers_that_peft_refuses_are_one_line() -> None:
    """Mamba reads the weights of some layers without calling them."""
    config = AutoConfig.for_model("mamba", hidden_size=32, num_hidden_layers=1, state_size=8, vocab_size=64)
    tower, other = (Encoder(AutoModel.from_config(config), Shape()) for _ in range(2))
    with pytest.raises(
        UserError, match=r"^lora.targets: peft refuses one of these layers \(.*'out_proj' is incompatible .*\); name others$"
    ):
        adapt(Towers(tower, tower), Lora(), 5, "lora")
    assert adapt(Towers(other, other), Lora(targets=("x_proj",)), 5, "lora").startswith("LoRA of rank 8 on 1 linear layers")


def test_layers_whose_weights_are_read_without_a_call_get_no_adapter() -> None:
    small = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 64}
    mixed = {"num_hidden_layers": 2, "attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2, "use_mamba_kernels": False}
    config = AutoConfig.for_model("jamba", **small, **mixed, pad_token_id=0)
    tower, other = (Encoder(AutoModel.from_config(config), Shape()).eval() for _ in range(2))
    with pytest.raises(UserError, match=r"^lora.targets: found layers.0.mamba.dt_proj, whose weights jamba reads without .*, or null$"):
        adapt(Towers(other, other), Lora(targets=("dt_proj", "q_proj")), 5, "lora")
    adapt(Towers(tower, tower), Lora(), 5, "lora")
    ids = torch.arange(20).view(2, 10)
    tower(ids, torch.ones_like(ids)).square().sum().backward()
    weights = trained_weights(Towers(tower, tower))
    assert any("mamba.in_proj" in name for name in weights) and not any("dt_proj" in name for name in weights)
    assert all(weight.grad is not None for name, weight in weights.items()), "each adapter learns"


def test_a_missing_package_is_one_line(tiny_encoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(UserError) as refusal:
        adapt(load_towers(tiny_encoder), Lora(), 5, WHERE)
    assert str(refusal.value) == f"{WHERE}: found no package peft, expected peft; pip install 'retemper[lora]', or set lora: null"
