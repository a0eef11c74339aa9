"""Run a training in this process, or on a gang of ranks (`workers` of runtime.yaml). With one worker, no code of a gang is imported."""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from tasks.core.files import write_json
from tasks.core.machine.devices import Precision, choose_device
from tasks.core.machine.processes import available_cores
from tasks.core.params.runtime import MIG, RUNTIME_FILE, Runtime
from tasks.core.stage.entry import RECORD
from tasks.core.workers.each import Machine, gpus_of, local_count, machine, threads_each

if TYPE_CHECKING:
    from tasks.core.workers.gang import Gang

Training = Callable[[torch.device, "Gang | None"], None]  # the device it computes on, and its place in a gang


@dataclass(frozen=True)
class Ranks:
    """The processes that compute a training together: how many, and the settings and machine of each."""

    count: int
    runtime: Runtime
    machine: Machine
    together: Callable[..., None] | None = None  # runs a gang; None: this process alone

    @property
    def counted(self) -> list[dict[str, int]]:
        """An entry for the scratch digest of several ranks: their summed gradients have other bits, so no other number can resume them."""
        return [] if self.count == 1 else [{"ranks": self.count}]

    def run(self, function: Training, *, scratch: Path, outs: Sequence[Path], what: str) -> None:
        """Call `function` here, or in a gang (see `together`) whose first rank writes into `outs`, which are existing folders."""
        if self.together is None:
            function(choose_device(self.runtime), None)
            return
        _record(self.count)
        self.together(function, scratch=scratch, outs=outs, what=what)


@contextmanager
def open_ranks(runtime: Runtime, precision: Precision) -> Iterator[Ranks]:
    """Yield the ranks that runtime.yaml asks for, as for the workers of other stages; they end with the block, and with this process.

    UserError if they cannot compute the same bits.
    """
    if runtime.workers == 1:
        yield single_rank(runtime, precision)
    elif runtime.engine == "ray":
        from tasks.core.workers.cluster import open_cluster
        from tasks.core.workers.cluster_gang import together_on

        with open_cluster(runtime) as cluster:
            torch.set_num_threads(cluster.runtime.threads or 1)  # what this process computes has the bits of a rank
            rank_machine = cluster.agreed(partial(machine, cluster.runtime, precision, gpus=int(cluster.runtime.device == "cuda")))
            yield Ranks(cluster.count, cluster.runtime, rank_machine, partial(together_on, cluster))
    elif (count := local_count(runtime, gpus := _gpus_of_ranks(runtime))) == 1:
        yield single_rank(runtime, precision)
    else:
        from tasks.core.workers.together import together

        each_runtime = runtime.model_copy(update={"threads": threads_each(runtime, available_cores(), count)})
        rank_machine = machine(each_runtime, precision, gpus=count if gpus else 0)
        yield Ranks(count, each_runtime, rank_machine, partial(together, runtime=each_runtime, ranks=count))


def _gpus_of_ranks(runtime: Runtime) -> list[str]:
    """The GPUs of `gpus_of` that can train together: of several MIG slices only the first, as NCCL connects no two of one GPU."""
    gpus = gpus_of(runtime)
    if len(gpus) > 1 and gpus[0].startswith(MIG):
        print(f"{RUNTIME_FILE}: workers: {runtime.workers}: a training takes one MIG slice, so {len(gpus) - 1} of {len(gpus)} are idle")
        return gpus[:1]
    return gpus


def single_rank(runtime: Runtime, precision: Precision) -> Ranks:
    """This process as the only rank."""
    return Ranks(1, runtime, machine(runtime, precision))


def single_worker(runtime: Runtime) -> Runtime:
    """Settings for a model that is used without training: one worker, in this process.

    With engine ray it computes on the CPU, because no GPU of this machine is meant for it.
    """
    return runtime.model_copy(update={"workers": 1} | ({"device": "cpu"} if runtime.engine == "ray" else {}))


@contextmanager
def first_rank_first(gang: "Gang | None") -> Iterator[None]:
    """Let the first rank run the block before the others: it makes files in scratch that they then find finished."""
    if gang is not None and not gang.is_first:
        gang.barrier()
    yield
    if gang is not None and gang.is_first:
        gang.barrier()


def _record(ranks: int) -> None:
    """Add the number of workers to the facts that `devices.record_hardware` stores."""
    if path := os.environ.get(RECORD):
        with suppress(OSError, ValueError):
            write_json(Path(path), json.loads(Path(path).read_text(encoding="utf-8")) | {"workers": ranks})
