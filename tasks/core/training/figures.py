"""The figures of a step, such as its loss, read from the device all at once."""

from collections.abc import Mapping

import torch

Metrics = dict[str, float]
Figures = Mapping[str, float | torch.Tensor]  # of one step; tensors are scalars that are still where they were computed


def read(figures: Figures) -> Metrics:
    """The figures as numbers. A program waits for a GPU whenever it reads from it: here once."""
    tensors = {name: value for name, value in figures.items() if isinstance(value, torch.Tensor)}
    values = torch.stack([value.detach().double() for value in tensors.values()]).tolist() if tensors else []
    numbers = {name: value for name, value in figures.items() if not isinstance(value, torch.Tensor)} | dict(
        zip(tensors, values, strict=True)
    )
    return {name: numbers[name] for name in figures}
