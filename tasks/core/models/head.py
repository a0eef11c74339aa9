"""The layers over a pooled vector, and sentence-transformers' modules that hold them. Shapes: B texts, H hidden width, D vector width."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional as F

from tasks.core.models.layers import ACTIVATIONS, Layer, last_width, named_layers
from tasks.core.stage.errors import UserError

WEIGHTS = {"Dense": "linear", "LayerNorm": "norm"}  # sentence-transformers' name of a module's weights, and of our first of its kind


class Head(nn.Module):
    """The layers of a name (`tasks.core.models.layers`) or any others, one after another."""

    linear: nn.Linear  # of named heads
    norm: nn.LayerNorm  # of linear_norm

    def __init__(self, width: int, kind: str, layers: tuple[Layer, ...] = ()) -> None:
        super().__init__()
        self.kind = kind
        self.layers = layers or named_layers(kind, width)
        self.width = last_width(self.layers, width)
        self.names: list[str] = []  # of the layers' weights; empty for Normalize
        seen: Counter[str] = Counter()
        for layer in self.layers:
            name = WEIGHTS.get(layer.kind, "")
            seen[name] += 1
            self.names.append(f"{name}_{seen[name]}" if name and seen[name] > 1 else name)
            if layer.kind == "Dense":
                self.add_module(self.names[-1], nn.Linear(layer.inputs, layer.outputs, bias=layer.bias))
            elif layer.kind == "LayerNorm":
                self.add_module(self.names[-1], nn.LayerNorm(layer.inputs))

    def draw(self, generator: torch.Generator) -> None:
        """New weights of a named head: N(0, 0.02), biases 0."""
        nn.init.normal_(self.linear.weight, std=0.02, generator=generator)
        nn.init.zeros_(self.linear.bias)

    def forward(self, pooled_BH: torch.Tensor) -> torch.Tensor:
        x_BD = pooled_BH.to(next(self.parameters(), pooled_BH).dtype)
        for layer, name in zip(self.layers, self.names, strict=True):
            if layer.kind == "Normalize":
                x_BD = F.normalize(x_BD, dim=-1)
                continue
            x_BD = self.get_submodule(name)(x_BD)
            if layer.activation != "Identity":
                x_BD = getattr(nn, layer.activation)()(x_BD)
        return x_BD

    def load(self, folders: list[Path]) -> None:
        """Fill the weights from the folders of the modules; UserError if they do not fit."""
        for folder, (kind, module) in zip(folders, self._modules_of_layers(), strict=True):
            if module is None:
                continue
            weights, prefix = folder / "model.safetensors", f"{WEIGHTS[kind]}."
            try:
                module.load_state_dict({key.removeprefix(prefix): value for key, value in load_file(weights).items()})
            except (OSError, SafetensorError, RuntimeError) as error:
                wanted = " and ".join(prefix + name for name in module.state_dict())
                raise UserError(f"{weights}: cannot be loaded ({' '.join(str(error).split())}); expected {wanted}") from None

    def save(self, folder: Path, first: int) -> list[tuple[str, str]]:
        """Write the modules into `folder`, numbered from `first`; returns path and kind of each."""
        written = []
        for number, (layer, (kind, module)) in enumerate(zip(self.layers, self._modules_of_layers(), strict=True), first):
            written.append((f"{number}_{kind}", kind))
            tensors = {} if module is None else {f"{WEIGHTS[kind]}.{name}": tensor.data for name, tensor in module.named_parameters()}
            write_module(folder / written[-1][0], layer, tensors)
        return written

    def _modules_of_layers(self) -> Iterator[tuple[str, nn.Module | None]]:
        for layer, name in zip(self.layers, self.names, strict=True):
            yield layer.kind, self.get_submodule(name) if name else None


def write_module(folder: Path, layer: Layer, tensors: dict[str, torch.Tensor]) -> None:
    """One module of sentence-transformers as a folder (new)."""
    config: dict[str, object] = {}
    if layer.kind == "Dense":
        config = {"in_features": layer.inputs, "out_features": layer.outputs, "bias": layer.bias}
        config["activation_function"] = ACTIVATIONS[layer.activation]
    elif layer.kind == "LayerNorm":
        config = {"dimension": layer.inputs}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")  # git and DVC keep no empty folder
    if tensors:
        save_file(tensors, folder / "model.safetensors")
