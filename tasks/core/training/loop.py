"""The one training loop: bf16 autocast over fp32 weights, clipping, linear schedule, live curves, exact resume.

A step's work is a function of its number alone (order, sampling and dropout are drawn from (seed, step)), so a training
that was killed and resumes from its last checkpoint ends with the same bits as an undisturbed one.
"""

import json
import math
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

import torch
from dvclive import Live
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from tasks.core.errors import Corrupt, UserError
from tasks.core.files import new_file, read_json, write_json
from tasks.core.stage.progress import Progress
from tasks.core.training.cpu_dropout import CheapDropout
from tasks.core.training.figures import Figures, Metrics, read_figures
from tasks.core.training.optimizers import linear_schedule

if TYPE_CHECKING:
    from tasks.core.workers.gang import Gang

POINTS = 500  # points per curve, about, from 1,000 steps on
CHECKPOINT = "checkpoint.safetensors"
BEST = "best.safetensors"
Drawn = TypeVar("Drawn", bound=object)  # never None
CHECKPOINT_SHARE = 20  # at least so many times a checkpoint's duration passes before the next: training gets most of the time


@dataclass(frozen=True)
class Schedule:
    """The number of optimizer steps, the fraction of them that is warm-up, and the gradient norm to clip to.

    A training that continues another starts at step `first` of a schedule of `total` steps.
    """

    steps: int
    warmup: float
    clip: float
    first: int = 0
    total: int | None = None


@dataclass(frozen=True)
class Journal:
    """A training's name in messages (`what`), and where it writes.

    Its checkpoint goes to `scratch`, at most every `checkpoint_seconds` (0: after each step). DVCLive's files go to `curves`, a folder that
    exists and is empty.
    """

    what: str
    scratch: Path
    curves: Path
    checkpoint_seconds: float


@dataclass(frozen=True)
class Steps(Generic[Drawn]):
    """The two halves of each training step.

    `draw(n)` reads and samples the input of step n; it depends on n alone. `backward(n, drawn)` leaves the step's gradients in the
    parameters and returns the metrics to plot, including `loss`.
    """

    draw: Callable[[int], Drawn]
    backward: Callable[[int, Drawn], Figures]

    @staticmethod
    def undrawn(backward: Callable[[int], Figures]) -> "Steps[int]":
        """Steps that draw no input: `backward` gets only the step's number."""
        return Steps(int, lambda step, _: backward(step))

    def __call__(self, step: int) -> Figures:
        """Draw one step's input, and run its backward pass."""
        return self.backward(step, self.draw(step))


@dataclass(frozen=True)
class Validation:
    """A measurement of the weights (larger is better), taken before step 0, after every `every` steps, and at the end.

    `keep_best`: training ends with the weights and optimizer state of the best value, the first of equals. `patience`: it ends early after
    this many measurements without a new best.
    """

    name: str  # of its curve: validation/NAME
    measure: Callable[[], float]
    every: int
    keep_best: bool = True
    patience: int | None = None

    def due(self, step: int, steps: int, history: Sequence[Metrics]) -> bool:
        """Whether to measure the weights after `step` steps: it is their turn, and `history` does not have them yet."""
        return (step % self.every == 0 or step == steps) and not any(self.name in point and point["step"] == step for point in history)

    def best(self, history: Sequence[Metrics]) -> tuple[int, float]:
        """Steps and value of the best validation so far."""
        return max(((int(point["step"]), point[self.name]) for point in history if self.name in point), key=lambda pair: pair[1])

    def over(self, history: Sequence[Metrics]) -> bool:
        """Whether patience has run out."""
        if self.patience is None:
            return False
        best, _ = self.best(history)
        return sum(self.name in point and point["step"] > best for point in history) >= self.patience


class Pace:
    """Decides when to write a checkpoint: at most every `seconds` (0: always), and so rarely that training gets most of the time."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.began, self.saved, self.duration = seconds, 0.0, time.monotonic(), 0.0

    def due(self) -> bool:
        """Whether a checkpoint is due."""
        return not self.seconds or time.monotonic() - self.saved >= max(self.seconds, CHECKPOINT_SHARE * self.duration)

    def __enter__(self) -> None:
        self.began = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self.saved = time.monotonic()
        self.duration = self.saved - self.began


def fit(
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: Steps[Drawn],
    schedule: Schedule,
    journal: Journal,
    clipped: nn.Module | None = None,
    validation: Validation | None = None,
    gang: "Gang | None" = None,
) -> int:
    """Train `module` in place for `schedule.steps` steps; return how many steps its final weights have had, fewer only with `validation`.

    While a GPU still computes a step, the next one's input is drawn: after the work is queued, before its figures are read. `clipped` is
    the part of `module` whose gradient is clipped, if not all of it. UserError for a loss or a gradient that is not finite; the last
    checkpoint is kept.

    In a `gang`, `steps` leaves one rank's share of the gradients, and the shares are summed here. Every rank takes the same step; only the
    first one reads the checkpoint, validates, and writes.
    """
    is_first, what, scratch = gang is None or gang.is_first, journal.what, journal.scratch
    factor = linear_schedule(schedule.total or schedule.steps, schedule.warmup)
    peaks = [group["lr"] for group in optimizer.param_groups]
    start, history = begin(scratch / CHECKPOINT, module, optimizer, gang)
    progress = Progress(what, schedule.steps, "steps")
    progress.skip(start)
    pace = Pace(journal.checkpoint_seconds)
    drawn = steps.draw(start) if start < schedule.steps else None
    dropout = CheapDropout() if next(module.parameters()).device.type == "cpu" else nullcontext()
    with live_curves(journal.curves) if is_first else nullcontext() as live:
        for point in history:
            log_point(live, point)
        for step in range(start, schedule.steps + 1):
            if validation and validation.due(step, schedule.steps, history):
                value = validation.measure() if is_first else math.nan
                history.append({"step": step, validation.name: value if gang is None else gang.broadcast(value)})
                log_point(live, history[-1])
                if is_first and validation.keep_best and validation.best(history)[0] == step:
                    save_checkpoint(scratch / BEST, step, history, module, optimizer)
            if step == schedule.steps or (validation and validation.over(history)):
                break
            for group, peak in zip(optimizer.param_groups, peaks, strict=True):
                group["lr"] = peak * factor(schedule.first + step)
            optimizer.zero_grad(set_to_none=True)
            assert drawn is not None
            with dropout:
                figures = steps.backward(step, drawn)
            if gang is not None:
                gang.sum_gradients(module.parameters())
            gradient_norm = nn.utils.clip_grad_norm_((clipped or module).parameters(), schedule.clip)
            drawn = steps.draw(step + 1) if step + 1 < schedule.steps else None
            metrics = read_figures({**figures, "gradient_norm": gradient_norm})
            if not math.isfinite(metrics["loss"]) or not math.isfinite(metrics["gradient_norm"]):
                if is_first and all(bool(torch.isfinite(weight).all()) for weight in module.parameters()):  # those of the previous step
                    save_checkpoint(scratch / CHECKPOINT, step, history, module, optimizer)
                if gang is not None:
                    gang.barrier()  # until that is written
                raise not_finite(metrics, f"{what}: step {step}", scratch / CHECKPOINT)
            optimizer.step()
            if is_plotted(step, schedule.steps):
                history.append({"step": step, **metrics, "lr": optimizer.param_groups[0]["lr"]})
                log_point(live, history[-1])
            progress.advance(note=f"loss {metrics['loss']:.4f}")
            if is_first and pace.due() and step + 1 < schedule.steps:
                with pace:
                    save_checkpoint(scratch / CHECKPOINT, step + 1, history, module, optimizer)
    progress.close()
    if gang is not None:
        gang.check_same(_crc(trained_weights(module), {}), what)
    if not validation:
        return schedule.steps
    best, value = validation.best(history)
    kept_step, last = best if validation.keep_best else step, history[-1][validation.name]
    print(f"{what}: best {validation.name} {value:.4f} after {best} steps, last {last:.4f}; the weights after {kept_step} steps are kept")
    if is_first and kept_step != step:
        _restore(scratch / BEST, best, module, optimizer)
    return kept_step


def not_finite(metrics: Metrics, where: str, checkpoint: Path) -> UserError:
    """The error of a step whose loss or gradient is not finite."""
    return UserError(
        f"{where}: loss {metrics['loss']}, gradient norm {metrics['gradient_norm']}, expected finite values; "
        f"decrease lr or increase temperature; the last checkpoint is kept ({checkpoint})"
    )


def is_plotted(step: int, steps: int) -> bool:
    """Whether a training of `steps` steps keeps the metrics of step `step`."""
    return step % max(1, steps // POINTS) == 0 or step == steps - 1


def live_curves(folder: Path) -> Live:
    """DVCLive, writing curves into `folder` and nothing else."""
    return Live(str(folder), dvcyaml=None, save_dvc_exp=False, report=None, monitor_system=False)


def log_point(live: Live | None, point: Metrics) -> None:
    """Write one point of every curve; do nothing on a rank that does not write (`live` is None)."""
    if live is None:
        return
    live.step = int(point["step"])
    for name, value in point.items():
        if name != "step":
            live.log_metric(name if "/" in name else f"train/{name}", value)
    live.sync()


def state_tensors(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """The optimizer's state by parameter name: `NAME.exp_avg`, `NAME.exp_avg_sq`, `NAME.step`."""
    names: dict[torch.Tensor, str] = {parameter: name for name, parameter in module.named_parameters()}
    return {
        f"{names[parameter]}.{key}": torch.as_tensor(value).cpu()
        for parameter, state in optimizer.state.items()
        for key, value in state.items()
    }


def save_state(folder: Path, steps: int, module: nn.Module, optimizer: torch.optim.Optimizer, **order: int) -> None:
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
    tensors = _tensors(module, optimizer)
    metadata = {"step": str(step), "history": json.dumps(history)}
    with new_file(path) as temporary:
        save_file(tensors, temporary, metadata=metadata | {"crc": _crc(tensors, metadata)})


def _tensors(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    return trained_weights(module) | {f"state.{name}": tensor for name, tensor in state_tensors(module, optimizer).items()}


def read_checkpoint(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]] | None:
    """A checkpoint's tensors and metadata (`step`, `history`); None if there is no checkpoint, or a corrupt one, which is removed."""
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            tensors: dict[str, torch.Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata: dict[str, str] = file.metadata() or {}
        if metadata.pop("crc", "") == _crc(tensors, metadata):
            return tensors, metadata
    except SafetensorError:
        pass
    print(f"{path}: corrupt (a power loss?); starting again from the first step")
    path.unlink()
    return None


def _crc(tensors: dict[str, torch.Tensor], metadata: dict[str, str]) -> str:
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
    tensors = gang.broadcast_tensors(_tensors(module, optimizer))
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


def _restore(path: Path, step: int, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Restore the weights and state of the best validation, after `step` steps; Corrupt if they are missing.

    Then the checkpoint is removed, so that the next run trains from the first step.
    """
    checkpoint = read_checkpoint(path)
    if checkpoint is None or int(checkpoint[1]["step"]) != step:
        path.with_name(CHECKPOINT).unlink(missing_ok=True)
        raise Corrupt(f"{path}: missing or corrupt, expected the weights after {step} steps; run again: it trains from the first step")
    _take(checkpoint[0], module, optimizer)


def checkpoint_step(path: Path) -> int:
    """The step at which a training would resume from a checkpoint; 0 if there is no intact one."""
    checkpoint = read_checkpoint(path)
    return int(checkpoint[1]["step"]) if checkpoint else 0
