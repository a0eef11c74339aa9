"""A rank of a gang, and what it exchanges with the others: the same code over gloo (CPU tensors) and NCCL (GPU tensors).

Nothing is reduced by a backend: sums are taken here, in the order of ranks, so their bits do not depend on how a ring or a tree is laid
out. R ranks, N texts, D width of a vector.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import TypeVar

import torch
from torch import distributed as dist
from torch import nn

from tasks.core.errors import UserError, gpu_fault, memory_fault
from tasks.core.machine.devices import restore_order
from tasks.core.stage.draws import Ints

BUCKET = 1 << 24  # numbers of gradients that are exchanged at a time: 64 MiB, three times, beside the gradients themselves
PATIENCE = timedelta(hours=1)  # for ranks that wait while the first one validates or writes; a lost rank is noticed at once
Value = TypeVar("Value")


class PeerLost(Exception):
    """An exchange failed because another rank has ended, or the network or a GPU has."""


@contextmanager
def peer_errors() -> Iterator[None]:
    """Turn errors of torch.distributed into PeerLost, but not those of a full or failing GPU."""
    try:
        yield
    except RuntimeError as error:
        if memory_fault(error) or gpu_fault(error):
            raise
        raise PeerLost(reason(str(error))) from error


def reason(message: str) -> str:
    """An error of torch.distributed in one line. NCCL's own reason comes after "Last error:"."""
    first, *rest = message.splitlines() or [""]
    after = [line.strip() for line in "\n".join(rest).partition("Last error:")[2].splitlines() if line.strip()]
    return ": ".join([first, *after[:1]])


@dataclass(frozen=True)
class Gang:
    """Rank `rank` of `size`, after `join`. Every rank must call the same methods in the same order."""

    rank: int
    size: int
    device: torch.device

    @classmethod
    def join(cls, rank: int, size: int, device: torch.device, store: str) -> "Gang":
        """Meet the other ranks at `store`: the path of a new file that they all see, or HOST:PORT of a torch TCPStore that is served."""
        with peer_errors():
            host, _, port = store.rpartition(":")
            is_served = host and port.isdecimal()
            rendezvous = dist.TCPStore(host, int(port), size) if is_served else dist.FileStore(store, size)  # type: ignore[attr-defined]
            backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
            dist.init_process_group(backend, store=rendezvous, rank=rank, world_size=size, timeout=PATIENCE)
        gang = cls(rank, size, device)
        gang.connect()
        return gang

    def connect(self) -> None:
        """Exchange a number with every rank.

        NCCL connects at its first exchanges: so its faults, and its memory, come before the training's.
        """
        number = torch.zeros(self.size, device=self.device)
        self.all_gather(number)
        with peer_errors():
            dist.all_to_all_single(torch.empty_like(number), number)

    def leave(self) -> None:
        """Wait for the others, and end the exchange."""
        self.barrier()
        dist.destroy_process_group()

    @property
    def is_first(self) -> bool:
        """Whether this is the rank that reads and writes checkpoints, curves, and outs."""
        return self.rank == 0

    def barrier(self) -> None:
        """Wait until every rank has come here."""
        self.gather_numbers(0.0)

    def broadcast(self, value: Value) -> Value:
        """The first rank's `value`, on every rank."""
        box = [value]
        with peer_errors():
            dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
        return box[0]

    def gather_numbers(self, value: float) -> list[float]:
        """Every rank's `value`, in the order of ranks."""
        return self._rows([value])[:, 0].tolist()

    def sum_figures(self, values: Mapping[str, float | torch.Tensor]) -> dict[str, torch.Tensor]:
        """Sum figures over the ranks, in their order: float64 scalars that stay on the device. All ranks must have the same names."""
        scalars = [torch.as_tensor(value, dtype=torch.float64, device=self.device) for value in values.values()]
        first, *others = self.all_gather(torch.stack(scalars))
        return dict(zip(values, sum(others, first), strict=True))

    def _rows(self, values: Sequence[float]) -> torch.Tensor:
        return self.all_gather(torch.tensor(values, dtype=torch.float64))

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Every rank's tensor [...], of one shape, as [R, ...]."""
        gathered = tensor.new_empty(self.size, *tensor.shape)
        with peer_errors():
            dist.all_gather(list(gathered), tensor.contiguous())
        return gathered

    def broadcast_tensors(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The first rank's CPU tensors, on every rank; those that the others pass are ignored."""
        forms = self.broadcast([(name, tensor.shape, tensor.dtype) for name, tensor in tensors.items()])
        received = {name: tensors[name].contiguous() if self.is_first else torch.empty(shape, dtype=dtype) for name, shape, dtype in forms}
        with peer_errors():
            for tensor in received.values():
                dist.broadcast(tensor, src=0)
        return received

    def deal(self, sizes: Sequence[int]) -> list[list[int]]:
        """The pieces of work, of these sizes, that each rank computes."""
        if self.is_first and len(sizes) < self.size:
            _warn_idle(self.size)
        return deal_pieces(sizes, self.size)

    def gather_vectors(self, own_MD: torch.Tensor, places: Sequence[Sequence[Ints]]) -> torch.Tensor:
        """The vectors [N, D] of all ranks, in order; every place occurs once.

        `own_MD` are this rank's; those of rank r go to places[r] (in parts).
        """
        counts = [sum(map(len, parts)) for parts in places]
        packed_MD = own_MD.new_zeros(max(counts), own_MD.shape[1])
        packed_MD[: len(own_MD)] = own_MD
        vectors = [rank_MD[:count] for rank_MD, count in zip(self.all_gather(packed_MD), counts, strict=True)]
        return restore_order(torch.cat(vectors), [part for parts in places for part in parts])

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace each gradient by the sum of all ranks', in the order of ranks. One that no rank has stays None.

        A reduce-scatter and an all-gather: each rank sums its part of the numbers, so it sends as many bytes as in a ring. Between nodes,
        more bytes travel: with G ranks on each, the first half sends up to G times a ring's.
        """
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        flags = self._rows([float(parameter.grad is not None) for parameter in trained]).amax(0).tolist()
        for bucket in _buckets([parameter for parameter, flag in zip(trained, flags, strict=True) if flag]):
            sizes = [parameter.numel() for parameter in bucket]
            part = -(-sum(sizes) // self.size)
            flat = bucket[0].new_zeros(part * self.size)
            views = torch.split(flat[: sum(sizes)], sizes)
            shaped = [view.view_as(parameter) for parameter, view in zip(bucket, views, strict=True)]
            torch._foreach_copy_(shaped, [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket])
            parts_RP = flat.new_empty(self.size, part)
            with peer_errors():
                dist.all_to_all_single(parts_RP.view(-1), flat)
            first_P, *others = parts_RP
            with peer_errors():
                dist.all_gather(list(torch.split(flat, part)), sum(others, first_P))
            for parameter in bucket:
                parameter.grad = torch.empty_like(parameter) if parameter.grad is None else parameter.grad
            torch._foreach_copy_([parameter.grad for parameter in bucket if parameter.grad is not None], shaped)

    def check_same(self, digest: str, what: str) -> None:
        """UserError if the ranks' digests of a value that all must share differ, as on mixed hardware."""
        digests = self.gather_numbers(float(int(digest)))
        if len(set(digests)) > 1:
            raise UserError(
                f"{what}: the workers ended with different weights (CRC-32 {', '.join(f'{int(crc):08x}' for crc in digests)}), expected "
                "the same on all; use GPUs or processors of one kind, or workers: 1 in runtime.yaml"
            )


def _buckets(parameters: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Parameters of one type, in order, of BUCKET numbers at most; a larger one is alone."""
    bucket: list[nn.Parameter] = []
    count = 0
    for parameter in parameters:
        if bucket and (count + parameter.numel() > BUCKET or parameter.dtype != bucket[0].dtype):
            yield bucket
            bucket, count = [], 0
        bucket.append(parameter)
        count += parameter.numel()
    if bucket:
        yield bucket


@cache
def _warn_idle(ranks: int) -> None:
    """Print that some ranks are idle, once and not at each step."""
    print(
        f"some of the {ranks} workers are idle, because a step has fewer chunks: use a larger batch, or decrease batch_tokens", flush=True
    )


def deal_pieces(sizes: Sequence[int], ranks: int) -> list[list[int]]:
    """The pieces of work that each rank computes, in ascending order: the largest is dealt first, each to the first least loaded rank.

    A pure function of its arguments (longest processing time first: Graham, 1969).
    """
    work: list[list[int]] = [[] for _ in range(ranks)]
    load = [0] * ranks
    for piece in sorted(range(len(sizes)), key=lambda number: (-sizes[number], number)):
        rank = load.index(min(load))
        work[rank].append(piece)
        load[rank] += sizes[piece]
    return [sorted(pieces) for pieces in work]
