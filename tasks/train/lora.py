"""LoRA (Hu et al., ICLR 2022, arXiv:2106.09685): low-rank adapters of linear layers, trained by peft and merged into what is saved."""

import warnings
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version

import torch
from torch import nn

from tasks.core.models.bi_encoder import Encoder, Towers
from tasks.core.models.limits import one_line
from tasks.core.stage.draws import draw_seed
from tasks.core.stage.errors import UserError
from tasks.train.params import Lora

STREAM = 7  # of draws


def peft_version() -> str:
    """The version of peft; empty if it is not installed, which `adapt` refuses."""
    try:
        return version("peft")
    except PackageNotFoundError:
        return ""


def adapt(towers: Towers, lora: Lora, seed: int, where: str) -> str:
    """Freeze `towers`, in place, and add adapters: a layer W x becomes W x + alpha / rank B A x (section 4.1), A drawn from `seed`, B 0.

    Returns how many weights train, in words. UserError naming `where` (the parameter) if peft is not installed or no layer is named so.
    """
    try:
        import peft
    except ModuleNotFoundError as error:
        raise UserError(f"{where}: found no package {error.name}, expected peft; pip install 'retemper[lora]', or set lora: null") from None
    layers: list[str] = []
    for tower in _each(towers):
        names = adapted_layers(tower.transformer, lora.targets, where)
        config = peft.LoraConfig(r=lora.rank, lora_alpha=lora.alpha, lora_dropout=lora.dropout, target_modules=names, bias="none")
        tower.requires_grad_(False)
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings(action="ignore", category=FutureWarning):
            torch.manual_seed(draw_seed(seed, STREAM))
            try:
                tower.transformer = peft.get_peft_model(tower.transformer, config)
            except ValueError as error:  # of Mamba's layers
                raise UserError(f"{where}.targets: peft refuses one of these layers ({one_line(error)}); name others") from None
        layers += names
    weights = [weight for tower in _each(towers) for weight in tower.parameters()]
    trained = sum(weight.numel() for weight in weights if weight.requires_grad)
    total = sum(weight.numel() for weight in weights) - trained
    return f"LoRA of rank {lora.rank} on {len(layers)} linear layers: {trained:,} weights train, {total:,} are frozen"


def adapted_layers(transformer: nn.Module, targets: Sequence[str] | None, where: str) -> list[str]:
    """Full names of the linear layers that `targets` end, all if None. A pooler is left out: no vector depends on it."""
    linear = [name for name, module in transformer.named_modules() if type(module) is nn.Linear and "pooler" not in name.split(".")]
    if not linear:
        raise UserError(f"{where}: found a transformer without linear layers, expected some; set lora: null")
    for target in targets or ():
        if not any(_ends(name, target) for name in linear):
            known = ", ".join(sorted({name.rpartition(".")[2] for name in linear}))
            raise UserError(f"{where}.targets: found {target!r}, expected the ends of names of linear layers: {known}; or null for all")
    return [name for name in linear if targets is None or any(_ends(name, target) for target in targets)]


def merge(towers: Towers) -> None:
    """Replace `towers`' adapted layers, in place, by plain ones of weights W + alpha / rank B A; all other weights stay as they are.

    Nothing is done where there are none.
    """
    for tower in _each(towers):
        if hasattr(tower.transformer, "merge_and_unload"):
            tower.transformer = tower.transformer.merge_and_unload()


def _each(towers: Towers) -> Iterator[Encoder]:
    yield towers.document
    if not towers.shared:
        yield towers.query


def _ends(name: str, target: str) -> bool:
    return f".{name}".endswith(f".{target}")
