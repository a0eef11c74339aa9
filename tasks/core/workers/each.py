"""The verb `each`: call one function on many pieces of work, by one worker or several, with results in the order of the pieces.

A piece must be idempotent: a lost worker's pieces in flight are done again, perhaps while the lost one still writes. Large results go to
files that are renamed when they are complete; what passes between processes is small. Workers never write outs, call DVC, or hold locks.
Results have the same bits for any number of workers with the same threads and hardware each: see `threads_each`.

With one worker of engine local, the pieces are computed here, one after another, and no other module of this folder is imported.
"""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

from tasks.core.errors import Invalid, UserError
from tasks.core.machine.devices import Precision, choose_device, compute_dtype, gpu_kinds, hardware, unusable_gpus, usable_gpus
from tasks.core.machine.processes import available_cores
from tasks.core.params.runtime import MIG, RUNTIME_FILE, Runtime
from tasks.core.stage.scratch import ROOT

Piece = TypeVar("Piece")
Result = TypeVar("Result")


class Workers(Protocol):
    """The workers that compute the pieces of a stage."""

    @property
    def runtime(self) -> Runtime:
        """The settings of each worker: its device and threads."""

    @property
    def count(self) -> int:
        """The number of workers."""

    @property
    def alone(self) -> bool:
        """Whether this process is the only worker: then results need no files."""

    def agreed(self, function: Callable[[], Result]) -> Result:
        """Call `function` on every kind of worker; return its value. UserError if the values differ."""

    def each(self, function: Callable[[Piece], Result], pieces: Iterable[Piece]) -> Iterator[Result]:
        """Call `function` on each of `pieces`; yield the results in order. One `each` at a time.

        A worker gets `function` once, so it may keep what it loads. An exception of a piece is raised when its turn comes. UserError for a
        piece that lost its worker more than `restarts` times.
        """


@dataclass(frozen=True)
class Alone:
    """This process as the only worker."""

    runtime: Runtime
    count: int = 1
    alone: bool = True

    def agreed(self, function: Callable[[], Result]) -> Result:
        return function()

    def each(self, function: Callable[[Piece], Result], pieces: Iterable[Piece]) -> Iterator[Result]:
        return map(function, pieces)


@contextmanager
def open_workers(runtime: Runtime) -> Iterator[Workers]:
    """The workers that runtime.yaml asks for; they end with the block, and with this process."""
    if runtime.engine == "ray":
        from tasks.core.workers.cluster import open_cluster

        with open_cluster(runtime) as cluster:
            yield cluster
        return
    if runtime.workers == 1:
        yield Alone(runtime)
        return
    gpus = gpus_of(runtime)
    count = local_count(runtime, gpus)
    if count == 1:
        yield Alone(runtime)
        return
    from tasks.core.workers.pool import Pool

    device = "cuda" if gpus else "cpu"
    worker_runtime = runtime.model_copy(update={"device": device, "threads": threads_each(runtime, available_cores(), count)})
    environments = [{"CUDA_VISIBLE_DEVICES": name} for name in gpus[:count]] or [{}] * count
    pool = Pool(worker_runtime, environments)
    try:
        yield pool
    finally:
        pool.close()


def gpus_of(runtime: Runtime) -> list[str]:
    """The GPUs of this machine that workers may use, as CUDA_VISIBLE_DEVICES names them; empty if they compute on the CPU.

    Of several MIG slices, CUDA shows a process only one, but each worker can have its own.
    """
    if runtime.device == "cpu":
        return []
    if runtime.device.startswith("cuda:"):
        raise Invalid(
            where=f"{RUNTIME_FILE}: device",
            found=f"{runtime.device} with workers: {runtime.workers}",
            expected="auto, cuda, or cpu",
            remedy="each worker has a GPU of its own; choose GPUs with CUDA_VISIBLE_DEVICES",
        )
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = usable_gpus()
    names = [name.strip() for name in visible.split(",") if name.strip()] if visible is not None else [str(n) for n in range(count)]
    if not count and runtime.device == "cuda":
        if reason := unusable_gpus():
            raise UserError(f"{RUNTIME_FILE}: device cuda: {reason}")
        raise Invalid(where=f"{RUNTIME_FILE}: device", found="cuda, but no GPU", expected="a GPU", remedy="set device: auto")
    return names if count and all(name.startswith(MIG) for name in names) else names[:count]


def local_count(runtime: Runtime, gpus: list[str]) -> int:
    """How many workers run on this machine. On GPUs, at most one each; results do not depend on it."""
    if gpus:
        count = len(gpus) if runtime.workers == "all" else min(runtime.workers, len(gpus))
        if runtime.workers != "all" and count < runtime.workers:
            print(f"{RUNTIME_FILE}: workers: {runtime.workers}: this stage has {count} GPUs, so it gets {count} workers")
        return count
    if runtime.workers == "all":
        return max(1, available_cores() // runtime.threads) if runtime.threads else 1
    return runtime.workers


def threads_each(runtime: Runtime, available: int, count: int) -> int:
    """CPU threads of each of `count` workers: `threads` of runtime.yaml, else a share of the `available` cores.

    On a CPU the last bits of a result may depend on this number, so only a fixed `threads` gives the same bits for any `count`.
    """
    return runtime.threads or max(1, available // count)


class Machine(NamedTuple):
    """The facts that the bits of a worker's results depend on."""

    device: str  # cpu or cuda
    hardware: str
    dtype: str  # of the computation that a stage's `precision` gives there


def machine(runtime: Runtime, precision: Precision, gpus: int = 0) -> Machine:
    """The `Machine` of this process, or with `gpus` that of as many workers on its first GPUs; UserError if those are of several kinds."""
    device = choose_device(runtime, begin=not gpus)
    kinds = gpu_kinds(gpus) or [hardware(device)]
    if len(kinds) > 1:
        raise Invalid(
            where=f"{RUNTIME_FILE}: workers",
            found=f"GPUs of several kinds ({'; '.join(kinds)})",
            expected="one kind",
            remedy="choose GPUs with CUDA_VISIBLE_DEVICES",
        )
    return Machine(device.type, kinds[0], str(compute_dtype(device, precision)))


@contextmanager
def worker_files(kind: str) -> Iterator[Path]:
    """Yield an empty folder for workers' files, in the project's scratch; removed at the end, and by the next call with this `kind`."""
    folder = ROOT / "scratch" / f"{kind}-workers" / "now"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder.parent, ignore_errors=True)
