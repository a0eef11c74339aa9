"""The layers over a pooled vector, and sentence-transformers' modules that hold them. Shapes: B texts, H hidden width, D vector width."""

import json
from collections import Counter
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional as F

from tasks.core.errors import UserError
from tasks.core.models.layers import ACTIVATIONS, Layer, last_width, named_layers

WEIGHTS = {"Dense": "linear", "LayerNorm": "norm"}  # sentence-transformers' name for a module's weights, and ours for the first of a kind
RESIDUAL = "residual"  # its name of the matrix of a Dense's residual connection


class Head(nn.Module):
    """A sequence of layers: those of a named head (`tasks.core.models.layers`), or any others."""

    linear: nn.Linear  # of named heads
    norm: nn.LayerNorm  # of linear_norm

    def __init__(self, width: int, kind: str, layers: tuple[Layer, ...] = ()) -> None:
        super().__init__()
        self.kind = kind
        self.layers = layers or named_layers(kind, width)
        self.width = last_width(self.layers, width)
        self.names: list[str] = []  # of the layers' weights; empty for those without
        seen: Counter[str] = Counter()
        for layer in self.layers:
            name = WEIGHTS.get(layer.kind, "")
            seen[name] += 1
            self.names.append(f"{name}_{seen[name]}" if name and seen[name] > 1 else name)
            if layer.kind == "Dense":
                self.add_module(self.names[-1], nn.Linear(layer.inputs, layer.outputs, bias=layer.bias))
                if layer.residual and layer.inputs != layer.outputs:
                    self.add_module(f"{self.names[-1]}_{RESIDUAL}", nn.Linear(layer.inputs, layer.outputs, bias=False))
            elif layer.kind == "LayerNorm":
                self.add_module(self.names[-1], nn.LayerNorm(layer.inputs))

    def draw(self, generator: torch.Generator) -> None:
        """Draw new weights of a named head: N(0, 0.02), biases 0."""
        nn.init.normal_(self.linear.weight, std=0.02, generator=generator)
        nn.init.zeros_(self.linear.bias)

    def forward(self, pooled_BH: torch.Tensor) -> torch.Tensor:
        x_BD = pooled_BH.to(next(self.parameters(), pooled_BH).dtype)
        for layer, name in zip(self.layers, self.names, strict=True):
            x_BD = self._through(layer, self._parts(name), x_BD)
        return x_BD

    def _through(self, layer: Layer, parts: dict[str, nn.Module], input_BD: torch.Tensor) -> torch.Tensor:
        """Apply one layer, whose weights are in `parts`."""
        if layer.kind == "Normalize":
            return F.normalize(input_BD, dim=-1)
        if layer.kind == "Dropout":
            return F.dropout(input_BD, layer.dropout, self.training)
        x_BD: torch.Tensor = parts[WEIGHTS[layer.kind]](input_BD)
        if layer.activation != "Identity":
            x_BD = getattr(nn, layer.activation)()(x_BD)
        if layer.residual:
            x_BD = x_BD + (parts[RESIDUAL](input_BD) if RESIDUAL in parts else input_BD)
        return x_BD

    def load(self, folders: list[Path]) -> None:
        """Fill the weights from the folders of the modules; UserError if they do not fit."""
        for folder, name in zip(folders, self.names, strict=True):
            if not (parts := self._parts(name)):
                continue
            weights, module = folder / "model.safetensors", nn.ModuleDict(parts)
            try:
                module.load_state_dict(load_file(weights))
            except (OSError, SafetensorError, RuntimeError) as error:
                expected = " and ".join(module.state_dict())
                raise UserError(f"{weights}: cannot be loaded ({' '.join(str(error).split())}); expected {expected}") from None

    def save(self, folder: Path, first: int) -> list[tuple[str, str]]:
        """Write the modules into `folder`, numbered from `first`; returns path and kind of each."""
        modules = []
        for number, (layer, name) in enumerate(zip(self.layers, self.names, strict=True), first):
            modules.append((f"{number}_{layer.kind}", layer.kind))
            tensors = {key: tensor.data for key, tensor in nn.ModuleDict(self._parts(name)).named_parameters()}
            write_module(folder / modules[-1][0], layer, tensors)
        return modules

    def _parts(self, name: str) -> dict[str, nn.Module]:
        """The submodules with the weights of the layer `name`, by sentence-transformers' names."""
        if not name:
            return {}
        parts = {name.split("_")[0]: self.get_submodule(name)}
        residual = f"{name}_{RESIDUAL}"
        return parts | ({RESIDUAL: self.get_submodule(residual)} if hasattr(self, residual) else {})


def write_module(folder: Path, layer: Layer, tensors: dict[str, torch.Tensor]) -> None:
    """Write one module of sentence-transformers to `folder` (new)."""
    config: dict[str, object] = {}
    if layer.kind == "Dense":
        config = {"in_features": layer.inputs, "out_features": layer.outputs, "bias": layer.bias}
        config["activation_function"] = ACTIVATIONS[layer.activation]
        if layer.residual:  # older versions of sentence-transformers know no such key
            config["use_residual"] = True
    elif layer.kind == "LayerNorm":
        config = {"dimension": layer.inputs}
    elif layer.kind == "Dropout":
        config = {"dropout": layer.dropout}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")  # git and DVC keep no empty folder
    if tensors:
        save_file(tensors, folder / "model.safetensors")
