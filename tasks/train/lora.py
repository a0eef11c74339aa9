"""LoRA (Hu et al., ICLR 2022, arXiv:2106.09685): low-rank adapters of linear layers, trained by peft and merged into the saved encoder."""

import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from tasks.core.errors import UserError
from tasks.core.models.bi_encoder import Encoder, Towers
from tasks.core.models.limits import one_line
from tasks.core.stage.draws import ADAPTERS, draw_seed
from tasks.train.params import Lora

LINEAR = (nn.Linear, Conv1D)  # Conv1D: GPT-2's linear layer, with transposed weights
PROBED = 8  # tokens of each text in the probe of uncalled_layers


def adapt(towers: Towers, lora: Lora, seed: int, where: str) -> str:
    """Freeze `towers`, in place, and add adapters: a layer W x becomes W x + alpha / rank B A x (section 4.1), A drawn from `seed`, B 0.

    Return a line that says how many weights train. UserError, with the parameter `where`, if peft is not installed or a target matches no
    layer.
    """
    try:
        import peft
    except ModuleNotFoundError as error:
        raise UserError(f"{where}: found no package {error.name}, expected peft; pip install 'retemper[lora]', or set lora: null") from None
    layers: list[str] = []
    for tower in _encoders(towers):
        tower.requires_grad_(False)
        names = adapted_layers(tower.transformer, lora.targets, where)
        if uncalled := uncalled_layers(tower, names):
            if lora.targets is not None:
                raise UserError(
                    f"{where}.targets: found {uncalled[0]}, whose weights {tower.transformer.config.model_type} reads without calling the "
                    "layer, so an adapter there would learn nothing; name other layers, or null"
                )
            names = [name for name in names if name not in uncalled]
        config = peft.LoraConfig(r=lora.rank, lora_alpha=lora.alpha, lora_dropout=lora.dropout, target_modules=names, bias="none")
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings(action="ignore", category=FutureWarning):
            warnings.filterwarnings("ignore", "fan_in_fan_out is set")  # peft sets it by the layer's class
            torch.manual_seed(draw_seed(seed, ADAPTERS))
            try:
                tower.transformer = peft.get_peft_model(tower.transformer, config)
            except ValueError as error:  # for layers of Mamba
                raise UserError(f"{where}.targets: peft refuses one of these layers ({one_line(error)}); name others") from None
        layers += names
    weights = [weight for tower in _encoders(towers) for weight in tower.parameters()]
    trained = sum(weight.numel() for weight in weights if weight.requires_grad)
    total = sum(weight.numel() for weight in weights) - trained
    return f"LoRA of rank {lora.rank} on {len(layers)} linear layers: {trained:,} weights train, {total:,} are frozen"


def adapted_layers(transformer: nn.Module, targets: Sequence[str] | None, where: str) -> list[str]:
    """Full names of the linear layers whose names end with one of `targets`; None: all. A pooler is left out: no vector depends on it."""
    linear = [name for name, module in transformer.named_modules() if type(module) in LINEAR and "pooler" not in name.split(".")]
    if not linear:
        raise UserError(f"{where}: found a transformer without linear layers, expected some; set lora: null")
    for target in targets or ():
        if not any(_ends(name, target) for name in linear):
            known = ", ".join(sorted({name.rpartition(".")[2] for name in linear}))
            raise UserError(f"{where}.targets: found {target!r}, expected the ends of names of linear layers: {known}; or null for all")
    return [name for name in linear if targets is None or any(_ends(name, target) for target in targets)]


def uncalled_layers(tower: Encoder, names: Sequence[str]) -> list[str]:
    """The layers among `names` whose weights get a gradient although the layer is never called, such as `dt_proj` of Mamba and Jamba.

    Probed with a few tokens. A layer that they do not reach at all, such as an expert, is not listed: other tokens may call it. The weights
    of `tower` are frozen before and after.
    """
    called, reached = set[str](), set[str]()

    def call(name: str, *_: object) -> None:
        called.add(name)

    def reach(name: str, weight: torch.Tensor) -> None:
        reached.add(name)
        weight.grad = None  # so that only one gradient is in memory at a time

    training, hooks = tower.training, list[Any]()
    weights = {name: tower.transformer.get_submodule(name).weight for name in names}
    for name, weight in weights.items():
        hooks.append(tower.transformer.get_submodule(name).register_forward_pre_hook(partial(call, name)))
        hooks.append(weight.requires_grad_().register_post_accumulate_grad_hook(partial(reach, name)))
    try:
        device = next(tower.parameters()).device
        ids_BL = torch.arange(2 * PROBED, device=device).view(2, -1) % int(tower.transformer.config.vocab_size)
        tower.eval()(ids_BL, torch.ones_like(ids_BL)).sum().backward()
    finally:
        for hook in hooks:
            hook.remove()
        for weight in weights.values():
            weight.requires_grad_(False)
        tower.train(training)
    return [name for name in names if name in reached - called]


def merge(towers: Towers) -> None:
    """Replace adapted layers, in place, by plain ones with weights W + alpha / rank B A. All other weights stay as they are.

    Towers without adapters are left alone.
    """
    for tower in _encoders(towers):
        if hasattr(tower.transformer, "merge_and_unload"):
            tower.transformer = tower.transformer.merge_and_unload()


def _encoders(towers: Towers) -> Iterator[Encoder]:
    yield towers.document
    if not towers.shared:
        yield towers.query


def _ends(name: str, target: str) -> bool:
    return f".{name}".endswith(f".{target}")
