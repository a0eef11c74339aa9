"""The one training loop: bf16 autocast over fp32 weights, clipping, linear schedule, live curves, exact resume.

A step's work is a function of its number alone (order, sampling and dropout are drawn from (seed, step)), so a training
that was killed and resumes from its last checkpoint ends with the same bits as an undisturbed one.
"""

import math
import os
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

import torch
from dvclive import Live
from torch import nn

from tasks.core.errors import UserError
from tasks.core.stage.progress import Progress
from tasks.core.training.checkpoints import BEST, CHECKPOINT, begin, checksum, restore_best, save_checkpoint, trained_weights
from tasks.core.training.cpu_dropout import CheapDropout
from tasks.core.training.figures import Figures, Metrics, read_figures
from tasks.core.training.optimizers import linear_schedule

if TYPE_CHECKING:
    from tasks.core.workers.gang import Gang

POINTS = 500  # points per curve, about, from 1,000 steps on
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
    is_first = gang is None or gang.is_first
    factor = linear_schedule(schedule.total or schedule.steps, schedule.warmup)
    peaks = [group["lr"] for group in optimizer.param_groups]
    start, history = begin(journal.scratch / CHECKPOINT, module, optimizer, gang)
    progress = Progress(journal.what, schedule.steps, "steps")
    progress.skip(start)
    pace = Pace(journal.checkpoint_seconds)
    drawn = steps.draw(start) if start < schedule.steps else None
    dropout = CheapDropout() if next(module.parameters()).device.type == "cpu" else nullcontext()
    with live_curves(journal.curves) if is_first else nullcontext() as live:
        training = _Training(module, optimizer, journal, gang, live, history)
        for step in range(start, schedule.steps + 1):
            if validation and validation.due(step, schedule.steps, history):
                training.validate(step, validation)
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
            training.check_finite(step, metrics)
            optimizer.step()
            if is_plotted(step, schedule.steps):
                training.add_point({"step": step, **metrics, "lr": optimizer.param_groups[0]["lr"]})
            progress.advance(note=f"loss {metrics['loss']:.4f}")
            if is_first and pace.due() and step + 1 < schedule.steps:
                with pace:
                    training.save(CHECKPOINT, step + 1)
    progress.close()
    if gang is not None:
        gang.check_same(checksum(trained_weights(module), {}), journal.what)
    return training.keep_best(step, validation) if validation else schedule.steps


class _Training:
    """A training under way: what is trained, the points of its curves so far, and where they are written."""

    def __init__(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        journal: Journal,
        gang: "Gang | None",
        live: Live | None,
        history: list[Metrics],
    ) -> None:
        self.module, self.optimizer, self.journal, self.gang, self.live = module, optimizer, journal, gang, live
        self.is_first = gang is None or gang.is_first
        self.history = history
        for point in history:
            log_point(live, point)

    def add_point(self, point: Metrics) -> None:
        """Append one point to every curve."""
        self.history.append(point)
        log_point(self.live, point)

    def save(self, name: str, step: int) -> None:
        """Write the checkpoint `name` (CHECKPOINT or BEST): the weights after `step` steps."""
        save_checkpoint(self.journal.scratch / name, step, self.history, self.module, self.optimizer)

    def validate(self, step: int, validation: Validation) -> None:
        """Measure the weights on the first rank, and save them if they are the best so far."""
        value = validation.measure() if self.is_first else math.nan
        self.add_point({"step": step, validation.name: value if self.gang is None else self.gang.broadcast(value)})
        if self.is_first and validation.keep_best and validation.best(self.history)[0] == step:
            self.save(BEST, step)

    def check_finite(self, step: int, metrics: Metrics) -> None:
        """UserError for a loss or gradient that is not finite. A checkpoint of the weights before the step is written first."""
        if math.isfinite(metrics["loss"]) and math.isfinite(metrics["gradient_norm"]):
            return
        if self.is_first and all(bool(torch.isfinite(weight).all()) for weight in self.module.parameters()):
            self.save(CHECKPOINT, step)
        if self.gang is not None:
            self.gang.barrier()  # until that is written
        raise UserError(
            f"{self.journal.what}: step {step}: loss {metrics['loss']}, gradient norm {metrics['gradient_norm']}, expected finite values; "
            "decrease lr or increase temperature: training then starts again from the first step (the last checkpoint, for a closer look: "
            f"{self.journal.scratch / CHECKPOINT})"
        )

    def keep_best(self, step: int, validation: Validation) -> int:
        """Restore the best weights if `validation` keeps them, say so, and return how many steps the final weights have had."""
        best, value = validation.best(self.history)
        kept_step, last = best if validation.keep_best else step, self.history[-1][validation.name]
        print(
            f"{self.journal.what}: best {validation.name} {value:.4f} after {best} steps, last {last:.4f}; "
            f"the weights after {kept_step} steps are kept"
        )
        if self.is_first and kept_step != step:
            restore_best(self.journal.scratch / BEST, best, self.module, self.optimizer)
        return kept_step


def is_plotted(step: int, steps: int) -> bool:
    """Whether a training of `steps` steps keeps the metrics of step `step`."""
    return step % max(1, steps // POINTS) == 0 or step == steps - 1


def live_curves(folder: Path) -> Live:
    """DVCLive, writing curves into `folder` and nothing else, also for a user who has a token of DVC Studio."""
    os.environ["DVC_STUDIO_OFFLINE"] = "1"
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
