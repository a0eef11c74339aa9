"""A gang of ranks on a Ray cluster: as `together`, but each rank is a task of Ray, where the cluster has room for it.

The stage is the driver here too. It serves the store at which ranks meet, and shows the output of the first rank, which goes to a file in
`scratch`, on the file system that every node sees. Ray restarts no rank by itself: one that is lost ends all.
"""

import os
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from torch import distributed as dist

from tasks.core.errors import Unavailable
from tasks.core.files import WORKER
from tasks.core.params.runtime import Runtime
from tasks.core.stage.progress import LIVE
from tasks.core.workers.cluster import ROOM_SECONDS, Cluster, Session, join_session
from tasks.core.workers.cluster_crew import first_line
from tasks.core.workers.gang import PeerLost
from tasks.core.workers.reach import reach_all
from tasks.core.workers.together import GRACE, Outcome, Training, another_lost, find_lost_rank, redirect_output, retry_lost_ranks, run_rank

SIOCGIFADDR = 0x8915  # Linux
LOOK_SECONDS = 0.5


def together_on(cluster: Cluster, function: Training, *, scratch: Path, outs: Sequence[Path], what: str) -> None:
    """Run `function(device, gang)` in `cluster.count` tasks at once. See `together` for what it may do, and when UserError is raised."""
    start = partial(_run, cluster, function, scratch=scratch)
    retry_lost_ranks(start, cluster.runtime, cluster.count, scratch=scratch, outs=outs, what=what)


def _run(cluster: Cluster, function: Training, *, scratch: Path) -> str:
    """Run all ranks to their ends; return which one was lost and how, or an empty string."""
    ray, ranks, output = cluster.ray, cluster.count, FirstOutput(log_of(scratch, 0))
    host = ray.util.get_node_ip_address()
    store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    with cluster.room(ROOM_SECONDS) as settings_of:
        references = [ray.put(function)]
        arguments = (cluster.session, references, cluster.runtime, ranks, f"{host}:{store.port}", scratch, bool(os.environ.get(LIVE)))
        running = {
            ray.remote(**settings_of(rank), max_retries=0, max_calls=1)(_rank).remote(rank, *arguments): rank for rank in range(ranks)
        }
        try:
            outcomes, reasons = _outcomes(cluster, running, output)
        finally:
            output.show()
    if running:  # they hung in an exchange with a lost one; with their room, Ray ended them
        ray.wait(list(running), num_returns=len(running), timeout=GRACE)
    return find_lost_rank(outcomes, ranks, lambda rank: reasons[rank])


def _outcomes(cluster: Cluster, running: dict[Any, int], output: "FirstOutput") -> tuple[dict[int, Outcome | None], dict[int, str]]:
    """How each rank ended, moved here from `running`; None if it was lost, with Ray's reason in the second dict.

    Ranks that are silent for GRACE seconds after a failure are left in `running`.
    """
    from ray.exceptions import RayError, RayTaskError

    outcomes: dict[int, Outcome | None] = {}
    reasons: dict[int, str] = {}
    deadline: float | None = None
    while running and (deadline is None or time.monotonic() < deadline):
        for task in cluster.ray.wait(list(running), num_returns=1, timeout=LOOK_SECONDS)[0]:
            rank = running.pop(task)
            try:
                outcomes[rank] = cluster.ray.get(task)
            except RayTaskError:  # of ours: a rank catches what its work raises
                raise
            except RayError as error:
                outcomes[rank], reasons[rank] = None, first_line(error)
            if deadline is None and outcomes[rank] != Outcome():
                deadline = time.monotonic() + GRACE
        output.show()
    return outcomes, reasons


class FirstOutput:
    """The first rank's output, shown as it comes."""

    def __init__(self, log: Path) -> None:
        log.unlink(missing_ok=True)
        self._log, self._shown = log, 0

    def show(self) -> None:
        """Print the whole lines that have been added to the file."""
        with suppress(FileNotFoundError), self._log.open("rb") as file:
            file.seek(self._shown)
            lines = file.read().rpartition(b"\n")[0]
            if lines:
                self._shown += len(lines) + 1
                print(lines.decode("utf-8", "replace"), file=sys.stderr, flush=True)


def log_of(scratch: Path, rank: int) -> Path:
    return scratch / f"worker-{rank + 1}.log"


# What follows runs on the nodes.


def _rank(
    rank: int, session: Session, references: list[Any], runtime: Runtime, ranks: int, store: str, scratch: Path, live: bool
) -> Outcome:
    """Be a rank, from beginning to end."""
    import ray

    if fault := join_session(session):
        return Outcome(
            error=Unavailable(where=f"node {socket.gethostname()} of the Ray cluster", found=fault, remedy="see docs/cluster.md")
        )
    redirect_output(log_of(scratch, rank))
    os.environ.pop(WORKER, None)  # the first rank shows progress, and alone writes files
    os.environ.update({LIVE: "1"} if live else {})
    address = address_of(os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]) or own_address(ray.util.get_node_ip_address())
    try:
        reach_all(store, address, rank, ranks)
    except PeerLost as error:
        return another_lost(error)
    outcome = run_rank(ray.get(references[0]), runtime, rank, ranks, store, interface(address))
    sys.stdout.flush()
    sys.stderr.flush()
    return outcome


def own_address(host: str) -> str:
    """The IPv4 address by which others reach this machine: `host`, if it is one or a name of one; otherwise that of its default route."""
    with suppress(OSError):
        addresses = [address for address in socket.gethostbyname_ex(host)[2] if not address.startswith("127.")]
        if addresses:
            return addresses[0]
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # an address for documentation: nothing is sent
        return str(probe.getsockname()[0])
    return host


def interface(address: str) -> str:
    """The name of this machine's network interface with an IPv4 address; empty if none has it.

    gloo by itself would take the interface of the host's name, which is often the loopback.
    """
    return next((name for _, name in socket.if_nameindex() if address_of(name) == address), "")


def address_of(name: str) -> str:
    """The IPv4 address of a network interface of this machine; empty if it has none, or where this is not Linux."""
    import fcntl
    import struct

    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))[20:24])
    return ""
