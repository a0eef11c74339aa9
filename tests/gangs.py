"""What ranks of a gang run in tests: functions that a new process can import, fast."""

import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from hashlib import sha256
from pathlib import Path
from threading import Barrier
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

from tasks.core.errors import UserError
from tasks.core.stage.draws import draw_seed
from tasks.core.tokens.folder import Tokens
from tasks.core.training.compute import Compute
from tasks.core.training.figures import Figures, read_figures
from tasks.core.training.loop import Journal, Schedule, Steps, fit
from tasks.core.training.optimizers import make_optimizer
from tasks.core.workers import gang as gang_module
from tasks.core.workers.gang import Gang

if TYPE_CHECKING:
    from tasks.core.training.gradient_cache import Side

Value = TypeVar("Value")
Found = TypeVar("Found")
STEPS = 12
BATCH_TOKENS = 45  # of a chunk: the texts below make five


def tokens_of(lengths: list[int], seed: int) -> Tokens:
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    flat = np.random.default_rng(seed).integers(5, 1000, size=offsets[-1]).astype(np.int32)
    return Tokens(flat, offsets, np.arange(len(lengths), dtype=np.int32), Path(), 0, 64, "", "")


def contrast(queries: torch.Tensor, documents: torch.Tensor) -> tuple[torch.Tensor, dict[str, float]]:
    return F.cross_entropy(queries @ documents.T / 0.05, torch.arange(len(queries))), {}


class Exact(nn.Module):
    """A tower in float64: the mean of the tokens' outputs."""

    def __init__(self, transformer: Any) -> None:
        super().__init__()
        self.transformer, self.width = transformer, int(transformer.config.hidden_size)

    def forward(self, ids_BL: torch.Tensor, mask_BL: torch.Tensor, _: int = 0) -> torch.Tensor:
        hidden_BLH = self.transformer(input_ids=ids_BL, attention_mask=mask_BL).last_hidden_state
        return F.normalize((hidden_BLH * mask_BL.unsqueeze(-1)).sum(1) / mask_BL.sum(1, keepdim=True), dim=-1)


def tower_and_sides(model: Path, exact: bool) -> "tuple[nn.Module, list[Side]]":
    """In float64 without dropout, or in float32 with it; four queries and six documents."""
    from tasks.core.models.bi_encoder import Encoder, load_transformer
    from tasks.core.models.folder import Shape
    from tasks.core.training.gradient_cache import Side

    transformer = load_transformer(model)
    tower: Any = Exact(transformer).double().eval() if exact else Encoder(transformer, Shape(pooling="mean", similarity="cosine")).train()
    queries, documents = tokens_of([4, 9, 3, 5], 1), tokens_of([12, 30, 7, 22, 5, 17, 40], 2)
    return tower, [Side(tower, queries, np.array([2, 0, 3, 1])), Side(tower, documents, np.array([6, 1, 0, 3, 2, 5]))]


def save_steps(model: Path, folder: Path, device: torch.device, gang: Gang | None = None) -> None:
    """One step of a bi-encoder in float32 and one in float64: what this rank encoded, chunk by chunk, the loss, the gradients it has."""
    gang_module.BUCKET = 20_000  # several buckets, and weights that are alone in one
    for exact in (False, True):
        torch.set_default_dtype(torch.float64 if exact else torch.float32)
        save_step(model, folder / ("exact" if exact else "rounded"), exact, device, gang)
    torch.set_default_dtype(torch.float32)


def save_step(model: Path, folder: Path, exact: bool, device: torch.device, gang: Gang | None) -> None:
    from tasks.core.training.gradient_cache import cached_backward

    tower, sides = tower_and_sides(model, exact)
    chunks: dict[str, torch.Tensor] = {}

    def record_chunk(_: nn.Module, inputs: tuple[torch.Tensor, ...], vectors: torch.Tensor) -> None:
        chunks[sha256(inputs[0].numpy().tobytes()).hexdigest()] = vectors.detach().clone()

    tower.register_forward_hook(record_chunk)
    loss = read_figures(cached_backward(sides, contrast, BATCH_TOKENS, Compute(device, torch.float32, 40, gang), (1, 2, 3)))["loss"]
    if gang is not None:
        gang.sum_gradients(tower.parameters())
    rank = 0 if gang is None else gang.rank
    save_file(chunks, folder / f"chunks-{rank}.safetensors")
    gradients = {name: p.grad for name, p in tower.named_parameters() if p.grad is not None}
    save_file({"loss": torch.tensor(loss, dtype=torch.float64), **gradients}, folder / f"step-{rank}.safetensors")


def small_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.5), nn.Linear(5, 1))


def part_loss(module: nn.Module, step: int, part: int) -> torch.Tensor:
    """The loss of one half of a step's batch."""
    torch.manual_seed(draw_seed(7, step, part))
    loss: torch.Tensor = module(torch.randn(8, 6)).pow(2).mean()
    return loss


def small_training(
    scratch: Path, curves: Path, trouble: Mapping[str, int], _device: torch.device, gang: Gang | None = None
) -> dict[str, torch.Tensor]:
    """A training of two halves a step; the weights. `trouble` says at which step a rank does what, at its first start only.

    Without a gang, both halves are computed here, and their gradients are added in order: what two ranks must give, bit for bit.
    """
    module = small_model()
    optimizer = make_optimizer("adamw", module, 0.05, 0.01)

    def backward(step: int) -> Figures:
        if gang is not None:
            cause_trouble(trouble, step, gang, scratch)
            loss = part_loss(module, step, gang.rank)
            loss.backward()
            return gang.sum_figures({"loss": loss.detach()})
        total, gradients = 0.0, []
        for part in (0, 1):
            loss = part_loss(module, step, part)
            gradients.append(torch.autograd.grad(loss, list(module.parameters())))
            total += float(loss.detach())
        for weight, first, second in zip(module.parameters(), *gradients, strict=True):
            weight.grad = first + second
        return {"loss": total}

    fit(module, optimizer, Steps.undrawn(backward), Schedule(STEPS, 0.2, 1.0), Journal("small", scratch, curves, 0.0), gang=gang)
    weights = {name: p.detach() for name, p in module.named_parameters()}
    if gang is not None:
        save_file(weights, scratch / f"weights-{gang.rank}.safetensors")
    return weights


def cause_trouble(trouble: Mapping[str, int], step: int, gang: Gang, scratch: Path) -> None:
    """`kill`: the second rank is killed at a step; `always`: at each start; `first`: the first rank is.

    `wait`: it hangs. `user`, `bug`: it raises.
    """
    marks: dict[str, Callable[[], object]] = {
        "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
        "always": lambda: os.kill(os.getpid(), signal.SIGKILL),
        "first": lambda: os.kill(os.getpid(), signal.SIGKILL),
        "wait": lambda: time.sleep(600),
        "user": lambda: _raise(UserError(where="a.tsv:7", found="2 columns", expected="3")),
        "bug": lambda: _raise(ZeroDivisionError("a bug")),
    }
    for name, at_step in trouble.items():
        mark = scratch / f"happened-{name}"
        if step == at_step and gang.rank == (0 if name == "first" else 1) and (name == "always" or not mark.exists()):
            mark.touch()
            marks[name]()


def _raise(error: Exception) -> None:
    raise error


class Threads(Gang):
    """Ranks as threads of one process, for work without dropout: seeds are the process's. See `as_ranks`."""

    meeting: "Meeting"

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.stack([part.detach().clone() for part in self.meeting.exchange(self.rank, tensor)])

    def broadcast(self, value: Value) -> Value:
        result: Value = deepcopy(self.meeting.exchange(self.rank, value)[0])  # each rank has its own
        return result

    def broadcast_tensors(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: tensor.clone() for name, tensor in self.broadcast({**tensors}).items()}

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        parameters = list(parameters)
        own_gradients = [None if p.grad is None else p.grad.clone() for p in parameters]
        for parameter, rank_gradients in zip(parameters, zip(*self.meeting.exchange(self.rank, own_gradients), strict=True), strict=True):
            present = [gradient for gradient in rank_gradients if gradient is not None]
            parameter.grad = sum(present[1:], present[0].clone()) if present else None


class Meeting:
    """Where ranks that are threads put what they exchange."""

    def __init__(self, size: int) -> None:
        self.barrier, self.given = Barrier(size, timeout=300), [None] * size

    def exchange(self, rank: int, value: Any) -> list[Any]:
        self.given[rank] = value
        self.barrier.wait()
        values = list(self.given)
        self.barrier.wait()
        return values


def as_ranks(size: int, function: Callable[[Gang], Found]) -> list[Found]:
    """What `function` gives at each of `size` ranks, which are threads."""
    meeting, threads = Meeting(size), torch.get_num_threads()

    def rank(number: int) -> Found:
        torch.set_num_threads(threads)  # is of the thread that says so
        gang = Threads(number, size, torch.device("cpu"))
        object.__setattr__(gang, "meeting", meeting)
        try:
            return function(gang)
        except BaseException:
            meeting.barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        return [future.result() for future in [pool.submit(rank, number) for number in range(size)]]
