"""A gang of ranks on this machine: one function in several processes at once, all of which start again if one is lost.

The stage is the driver: it starts the ranks, reports what they raise, and publishes what the first of them wrote. A rank is a process
of its own, the first one too, because a rank that hangs in an exchange with a lost one can only be killed. torch's elastic launcher
would do the same, but it also starts again after a user's error, and takes over signals and logs.
"""

import multiprocessing
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path

import torch

from tasks.core.errors import GpuFailed, UserError, WorkersLost, user_error
from tasks.core.machine.devices import choose_device, usable_gpus
from tasks.core.machine.processes import end_with_parent
from tasks.core.params.runtime import RUNTIME_FILE, Runtime
from tasks.core.stage.progress import leave_bars
from tasks.core.workers.gang import Gang, PeerLost

Training = Callable[[torch.device, Gang], None]
GRACE = 10.0  # seconds for the other ranks to say why they end, once one has
MEET = "ranks.store"  # the file in which ranks find one another


@dataclass(frozen=True)
class Outcome:
    """How a rank ended: with a user's `error`, with a bug (its `trace`), or `lost` in some way; with none of these, its work is done."""

    error: UserError | None = None
    trace: str = ""
    lost: str = ""
    at: float = 0.0  # seconds since the epoch


class RankFailed(Exception):
    """A bug in a rank, with its traceback."""


def together(function: Training, runtime: Runtime, ranks: int, *, scratch: Path, outs: Sequence[Path], what: str) -> None:
    """Run `function(device, gang)` in `ranks` processes, each with a GPU or its share of the CPU threads (`runtime` is that of one rank).

    `function` must be at module level, or a partial of such a function, and resume by itself from what its first rank keeps in `scratch`.
    The first rank alone may write: into `outs` (folders, empty at each start) and `scratch`, where the other ranks' output is kept. A lost
    rank ends all of them, and they start again, at most `runtime.restarts` times. UserError after that, or if a rank raises one.
    """
    retry_lost_ranks(partial(_run, function, runtime, ranks, scratch=scratch), runtime, ranks, scratch=scratch, outs=outs, what=what)


def retry_lost_ranks(start: Callable[[], str], runtime: Runtime, ranks: int, *, scratch: Path, outs: Sequence[Path], what: str) -> None:
    """Call `start`, which runs all ranks and returns which one was lost, until none is; see `together`."""
    for started in range(runtime.restarts + 1):
        for out in outs:
            _empty(out)
        lost = start()
        if not lost:
            return
        if started < runtime.restarts:
            print(
                f"{what}: {lost}; all {ranks} start again (restart {started + 1} of {runtime.restarts} allowed)",
                file=sys.stderr,
                flush=True,
            )
    raise WorkersLost(
        f"{what}: {lost}, and restarts: {runtime.restarts} of {RUNTIME_FILE} are used up; the last checkpoint and the other workers' "
        f"output are kept ({scratch}); if memory is short, use fewer workers or a smaller graph_tokens, then run again"
    )


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def _run(function: Training, runtime: Runtime, ranks: int, *, scratch: Path) -> str:
    """Run all ranks to their ends; return which one was lost and how, or an empty string."""
    store = scratch / MEET
    store.unlink(missing_ok=True)
    context = multiprocessing.get_context("spawn")
    processes: list[SpawnProcess] = []
    ends: list[Connection] = []
    try:
        for rank in range(ranks):
            ours, theirs = context.Pipe(duplex=False)
            arguments = (rank, ranks, function, _own(runtime, rank), store, theirs, os.getpid())
            process = context.Process(target=_rank, args=arguments, name=f"rank {rank}")
            process.start()
            theirs.close()  # so that ours ends with the rank
            processes.append(process)
            ends.append(ours)
        outcomes = _outcomes(ends)
    finally:
        for process in processes:
            process.kill()
            process.join()
        store.unlink(missing_ok=True)
    return find_lost_rank(outcomes, ranks, lambda rank: _how(processes[rank]))


def find_lost_rank(outcomes: Mapping[int, Outcome | None], ranks: int, how: Callable[[int], str]) -> str:
    """Return which rank was lost and how it ended; empty if none was. If ranks failed by themselves, raise the error of the first."""
    failures = [(outcome.at, rank, outcome) for rank, outcome in outcomes.items() if outcome and (outcome.error or outcome.trace)]
    if failures:
        _, rank, outcome = min(failures, key=lambda failure: failure[:2])
        raise outcome.error or RankFailed(f"worker {rank + 1} of {ranks}:\n{outcome.trace}")
    for rank, reported in outcomes.items():
        if reported is None:
            return f"worker {rank + 1} of {ranks} was lost ({how(rank)})"
    lost = [(outcome.at, f"worker {rank + 1} of {ranks} {outcome.lost}") for rank, outcome in outcomes.items() if outcome and outcome.lost]
    return min(lost)[1] if lost else ""


def _own(runtime: Runtime, rank: int) -> Runtime:
    """`runtime` with the GPU of one rank, if there are any."""
    gpu = runtime.device != "cpu" and usable_gpus()
    return runtime.model_copy(update={"device": f"cuda:{rank}"}) if gpu else runtime


def _outcomes(ends: Sequence[Connection]) -> dict[int, Outcome | None]:
    """How each rank ended; None if it died without an outcome. Ranks that are silent for GRACE seconds after a failure are missing."""
    outcomes: dict[int, Outcome | None] = {}
    deadline: float | None = None
    while len(outcomes) < len(ends) and (deadline is None or time.monotonic() < deadline):
        waiting = [end for rank, end in enumerate(ends) if rank not in outcomes]
        for end in wait(waiting, None if deadline is None else max(0.0, deadline - time.monotonic())):
            rank = ends.index(end)
            try:
                outcomes[rank] = ends[rank].recv()
            except (EOFError, ConnectionResetError):
                outcomes[rank] = None
            if deadline is None and outcomes[rank] != Outcome():
                deadline = time.monotonic() + GRACE
    return outcomes


def _how(process: SpawnProcess) -> str:
    status = process.exitcode or 0
    if status >= 0:
        return f"exit status {status}"
    with suppress(ValueError):
        name = signal.Signals(-status).name
        return f"{name}, most likely for lack of memory" if name == "SIGKILL" else name
    return f"signal {-status}"


def _rank(rank: int, ranks: int, function: Training, runtime: Runtime, store: Path, end: Connection, parent: int) -> None:
    """Be a rank, from beginning to end."""
    end_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process of a terminal; the driver ends us
    if rank:
        redirect_output(store.with_name(f"worker-{rank + 1}.log"))
    outcome = run_rank(function, runtime, rank, ranks, str(store), "lo" if sys.platform == "linux" else "lo0")
    sys.stdout.flush()
    sys.stderr.flush()
    end.send(outcome)  # the driver may now kill us
    os._exit(0)  # threads of a broken exchange could keep it


def run_rank(function: Training, runtime: Runtime, rank: int, ranks: int, store: str, interface: str) -> Outcome:
    """Be a rank: meet the others at `store` (see `Gang.join`) and reach them over the network `interface` (empty: any)."""
    if interface:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={interface}")  # else it is a prefix
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    try:
        device = choose_device(runtime)
        gang = Gang.join(rank, ranks, device, store)
        function(device, gang)
        gang.leave()
    except PeerLost as error:
        return another_lost(error)
    except Exception as error:
        known, at = user_error(error), time.time()
        if isinstance(known, GpuFailed):
            return Outcome(lost=f"was lost ({known})", at=at)
        return Outcome(error=known, at=at) if known else Outcome(trace=traceback.format_exc(), at=at)
    finally:
        leave_bars()
    return Outcome()


def another_lost(error: PeerLost) -> Outcome:
    """The outcome of a rank that cannot reach another."""
    return Outcome(lost=f"lost another ({error})", at=time.time())


def redirect_output(log: Path) -> None:
    """Redirect the output of this process, warnings of libraries included, to a file."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
