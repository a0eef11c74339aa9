"""Whether a training runs here, or on a gang of ranks: `workers` of runtime.yaml. With one worker nothing of a gang is imported."""

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from tasks.core.stage.devices import RECORD, Runtime
from tasks.core.stage.files import write_json
from tasks.core.stage.processes import available_cores
from tasks.core.workers.each import gpus_of, local_count, threads_each

if TYPE_CHECKING:
    from tasks.core.workers.gang import Gang

Training = Callable[[torch.device, "Gang | None"], None]  # the device it computes on, and its place in a gang


def ranks_of(runtime: Runtime, what: str) -> tuple[int, Runtime]:
    """How many ranks `what` trains on, and the settings of each: as those of the workers of other stages."""
    if runtime.workers == 1:
        return 1, runtime
    if runtime.engine == "ray":
        print(f"{what}: engine ray spreads encoding and search; training runs here, on one worker", file=sys.stderr)
        return 1, runtime
    ranks = local_count(runtime, gpus_of(runtime))
    return ranks, runtime if ranks == 1 else runtime.model_copy(update={"threads": threads_each(runtime, available_cores(), ranks)})


def counted(ranks: int) -> list[dict[str, int]]:
    """What a scratch digest adds for several ranks: a sum of their gradients has other bits, so its checkpoint serves no other number."""
    return [] if ranks == 1 else [{"ranks": ranks}]


def run(function: Training, device: torch.device, runtime: Runtime, *, ranks: int, scratch: Path, outs: Sequence[Path], what: str) -> None:
    """`function` here on `device`, or in a gang (see `together`) whose first rank writes into `outs`, folders that exist."""
    if ranks == 1:
        function(device, None)
        return
    from tasks.core.workers.together import together

    _record(ranks)
    together(function, runtime, ranks, scratch=scratch, outs=outs, what=what)


@contextmanager
def first_alone(gang: "Gang | None") -> Iterator[None]:
    """The first rank does this part before the others: it makes the files in scratch that they then find finished."""
    if gang is not None and not gang.first:
        gang.wait()
    yield
    if gang is not None and gang.first:
        gang.wait()


def _record(ranks: int) -> None:
    """Add the number of workers to the record of what this stage's bits may depend on (`devices.record`)."""
    if place := os.environ.get(RECORD):
        with suppress(OSError, ValueError):
            write_json(Path(place), json.loads(Path(place).read_text(encoding="utf-8")) | {"workers": ranks})
