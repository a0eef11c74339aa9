"""The figures of a step, such as its loss, read from the device all at once."""

from collections.abc import Mapping

import torch

Metrics = dict[str, float]
Figures = Mapping[str, float | torch.Tensor]  # of one step; a tensor is a scalar that is still on its device


def read_figures(figures: Figures) -> Metrics:
    """The figures as numbers. Every read from a GPU makes the program wait, so all are read at once."""
    tensors = {name: value for name, value in figures.items() if isinstance(value, torch.Tensor)}
    values = torch.stack([value.detach().double() for value in tensors.values()]).tolist() if tensors else []
    numbers = dict(zip(tensors, values, strict=True))
    return {name: numbers[name] if isinstance(value, torch.Tensor) else value for name, value in figures.items()}
