"""What a killed training resumes from, and what a later round continues: weights, optimizer state, and the curve so far.

A checkpoint is one safetensors file with a checksum, written atomically. A corrupt one is removed, and training starts again.
"""

import json
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from tasks.core.errors import Corrupt, UserError
from tasks.core.files import new_file, read_json, write_json
from tasks.core.training.figures import Metrics

if TYPE_CHECKING:
    from tasks.core.workers.gang import Gang

CHECKPOINT = "checkpoint.safetensors"
BEST = "best.safetensors"


def state_tensors(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """The optimizer's state by parameter name: `NAME.exp_avg`, `NAME.exp_avg_sq`, `NAME.step`."""
    names: dict[torch.Tensor, str] = {parameter: name for name, parameter in module.named_parameters()}
    return {
        f"{names[parameter]}.{key}": torch.as_tensor(value).cpu()
        for parameter, state in optimizer.state.items()
        for key, value in state.items()
    }


def save_state(folder: Path, steps: int, module: nn.Module, optimizer: torch.optim.Optimizer, **order: int | str) -> None:
    """Write what a later round needs to continue: optimizer.safetensors, and in state.json the number of steps so far and `order`."""
    save_file(state_tensors(module, optimizer), folder / "optimizer.safetensors")
    write_json(folder / "state.json", {"steps": steps, **order})


def read_state(folder: Path) -> tuple[dict[str, torch.Tensor], int]:
    """Read the optimizer's tensors and the number of steps so far, as `save_state` wrote them. UserError if the tensors are unreadable."""
    path = folder / "optimizer.safetensors"
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, FileNotFoundError) as error:
        raise UserError(f"{path}: unreadable optimizer state ({error}); expected that of a trained round; run that round again") from None
    return tensors, int(read_json(folder / "state.json")["steps"])


def load_state(tensors: dict[str, torch.Tensor], module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Load the tensors of `state_tensors` into the optimizer."""
    parameters = dict(module.named_parameters())
    fused = {weight for group in optimizer.param_groups if group.get("fused") for weight in group["params"]}
    for name, tensor in tensors.items():
        parameter, key = name.rsplit(".", 1)
        weight = parameters[parameter]
        on_device = key != "step" or weight in fused  # a fused kernel counts where it computes, the others on the CPU
        optimizer.state[weight][key] = tensor.to(weight.device) if on_device else tensor.clone()


def trained_weights(module: nn.Module) -> dict[str, torch.Tensor]:
    """The trainable weights on the CPU, as `weights.NAME`: copies, or the weights themselves if they are there already."""
    return {f"weights.{name}": p.detach().cpu() for name, p in module.named_parameters() if p.requires_grad}


def save_checkpoint(path: Path, step: int, history: list[Metrics], module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Weights, optimizer state, curve and the next step's number in one file, written atomically."""
    tensors = _checkpoint_tensors(module, optimizer)
    metadata = {"step": str(step), "history": json.dumps(history)}
    with new_file(path) as temporary:
        save_file(tensors, temporary, metadata=metadata | {"crc": checksum(tensors, metadata)})


def _checkpoint_tensors(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    return trained_weights(module) | {f"state.{name}": tensor for name, tensor in state_tensors(module, optimizer).items()}


def read_checkpoint(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]] | None:
    """A checkpoint's tensors and metadata (`step`, `history`); None if there is no checkpoint, or a corrupt one, which is removed."""
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            tensors: dict[str, torch.Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata: dict[str, str] = file.metadata() or {}
        if metadata.pop("crc", "") == checksum(tensors, metadata):
            return tensors, metadata
    except SafetensorError:
        pass
    print(f"{path}: corrupt (a power loss?); starting again from the first step")
    path.unlink()
    return None


def checksum(tensors: dict[str, torch.Tensor], metadata: dict[str, str]) -> str:
    """CRC-32 of a checkpoint's whole content."""
    total = zlib.crc32(json.dumps(metadata, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        total = zlib.crc32(tensor.contiguous().view(-1).view(torch.uint8).numpy().data, zlib.crc32(name.encode(), total))
    return str(total)


def load_checkpoint(path: Path, module: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[int, list[Metrics]]:
    """Restore a checkpoint: the next step and the curve so far; (0, []) if there is no intact one."""
    checkpoint = read_checkpoint(path)
    if checkpoint is None:
        return 0, []
    tensors, metadata = checkpoint
    _take(tensors, module, optimizer)
    print(f"resuming from step {metadata['step']}")
    return int(metadata["step"]), json.loads(metadata["history"])


def begin(path: Path, module: nn.Module, optimizer: torch.optim.Optimizer, gang: "Gang | None") -> tuple[int, list[Metrics]]:
    """`load_checkpoint`. In a gang, the first rank loads, and the others copy its weights and state, with or without a checkpoint."""
    if gang is None:
        return load_checkpoint(path, module, optimizer)
    step_and_history = gang.broadcast(load_checkpoint(path, module, optimizer) if gang.is_first else (0, []))
    tensors = gang.broadcast_tensors(_checkpoint_tensors(module, optimizer))
    if not gang.is_first:
        _take(tensors, module, optimizer)
    return step_and_history


def _take(tensors: dict[str, torch.Tensor], module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Load a checkpoint's weights and optimizer state."""
    parameters = dict(module.named_parameters())
    with torch.no_grad():
        for name, tensor in tensors.items():
            if name.startswith("weights."):
                parameters[name.removeprefix("weights.")].copy_(tensor)
    optimizer.state.clear()
    load_state({n.removeprefix("state."): t for n, t in tensors.items() if n.startswith("state.")}, module, optimizer)


def restore_best(path: Path, step: int, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Restore the weights and state of the best validation, after `step` steps; Corrupt if they are missing.

    Then the checkpoint is removed, so that the next run trains from the first step.
    """
    checkpoint = read_checkpoint(path)
    if checkpoint is None or int(checkpoint[1]["step"]) != step:
        path.with_name(CHECKPOINT).unlink(missing_ok=True)
        raise Corrupt(f"{path}: missing or corrupt, expected the weights after {step} steps; run again: it trains from the first step")
    _take(checkpoint[0], module, optimizer)


def written_step(path: Path) -> int:
    """The step in a checkpoint's header, without reading its tensors; 0 if there is none. It may be that of a corrupt checkpoint."""
    try:
        with safe_open(path, framework="pt") as file:
            return int((file.metadata() or {}).get("step", 0))
    except (OSError, SafetensorError, ValueError):
        return 0


def checkpoint_step(path: Path) -> int:
    """The step at which a training would resume from a checkpoint; 0 if there is no intact one."""
    checkpoint = read_checkpoint(path)
    return int(checkpoint[1]["step"]) if checkpoint else 0
