"""Vectors on their way to a GPU: large groups of shards, copied while the GPU computes with the group before."""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import numpy.typing as npt
import torch

Given = npt.NDArray[np.floating] | torch.Tensor  # vectors [R_b, D] of a shard; a tensor is on the device already


def group_blocks(blocks: Iterable[tuple[int, Given]], rows: int, device: torch.device) -> Iterator[tuple[int, torch.Tensor, list[int]]]:
    """Yield (first row, vectors [R_g, D] on `device`, rows of each block) of groups of consecutive blocks with about `rows` rows.

    Vectors keep their type. A thread reads the next group into pinned memory, from which a GPU copies while it computes.
    """
    copies = copy_stream(device) if device.type == "cuda" else None
    with ThreadPoolExecutor(1) as pool:
        parts = _parts(blocks, rows)
        future = pool.submit(_next, parts, copies is not None)
        while (group := future.result()) is not None:
            first, host, sizes = group
            future = pool.submit(_next, parts, copies is not None)
            if copies is None or host.device.type == "cuda":
                yield first, host.to(device), sizes
                continue
            with torch.cuda.stream(copies):  # room for a few rows more, so that groups of nearly one size take each other's memory
                vectors_RD = torch.empty(_rounded(len(host), rows), *host.shape[1:], dtype=host.dtype, device=device)[: len(host)]
                vectors_RD.copy_(host, non_blocking=True)
            computing = torch.cuda.current_stream(device)
            computing.wait_stream(copies)
            vectors_RD.record_stream(computing)  # its memory is free again when that stream has passed
            yield first, vectors_RD, sizes


@cache
def copy_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream for copies to a GPU, one for all searches: torch gives the memory that one stream has freed to no other."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _rounded(count: int, rows: int) -> int:
    """`count` rounded up to a multiple of an eighth of `rows`."""
    step = max(1, rows // 8)
    return -(-count // step) * step


def _parts(blocks: Iterable[tuple[int, Given]], rows: int) -> Iterator[tuple[int, list[Given]]]:
    """First row and blocks of each group."""
    start, group = 0, list[Given]()
    for first, block in blocks:
        if group and sum(map(len, group)) + len(block) > rows:
            yield start, group
            group = []
        start = start if group else first
        group.append(block)
    if group:
        yield start, group


def _next(parts: Iterator[tuple[int, list[Given]]], pin: bool) -> tuple[int, torch.Tensor, list[int]] | None:
    """The next group in memory, None at the end."""
    part = next(parts, None)
    if part is None:
        return None
    first, blocks = part
    sizes = list(map(len, blocks))
    tensors = [block for block in blocks if isinstance(block, torch.Tensor)]
    if tensors:
        return first, tensors[0] if len(tensors) == 1 else torch.cat(tensors), sizes
    arrays = [block for block in blocks if isinstance(block, np.ndarray)]
    dtype = torch.from_numpy(np.empty(0, dtype=arrays[0].dtype)).dtype
    host_RD = torch.empty(sum(sizes), arrays[0].shape[1], dtype=dtype, pin_memory=pin)  # torch keeps pinned memory for the next group
    np.concatenate(arrays, out=host_RD.numpy())
    return first, host_RD, sizes
