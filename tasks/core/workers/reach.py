"""Check that machines reach one another before their first exchange: where they do not, gloo and NCCL wait for minutes without a word."""

import socket
from contextlib import ExitStack, suppress
from datetime import timedelta

from torch import distributed as dist

from tasks.core.workers.gang import PeerLost, peer_errors

CONNECT_SECONDS = 10.0
MEET = timedelta(minutes=5)  # for the ranks that start last
REMEDY = "unless it was just lost, open all ports between the nodes, or set GLOO_SOCKET_IFNAME (docs/cluster.md)"


def reach_all(store: str, address: str, rank: int, ranks: int) -> None:
    """Connect this machine, at `address`, with all other ranks', and wait until all have done so; PeerLost if one cannot be reached.

    `store`: HOST:PORT of a new torch TCPStore, at which ranks find one another. Ports are chosen by the system, as gloo's are.
    """
    worker = f"worker {rank + 1} of {ranks} ({address})"
    host, _, port = store.rpartition(":")
    _connect(worker, "the machine of the run", host, int(port))
    with peer_errors(), ExitStack() as stack:
        tcp_store = dist.TCPStore(host, int(port), timeout=MEET)  # type: ignore[attr-defined]
        place = ""  # stays empty if `address` is not this machine's own, as behind NAT: then nobody tries it
        with suppress(OSError):
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            server = stack.enter_context(socket.create_server((address, 0), family=family, backlog=max(ranks, 5)))
            place = f"{address}:{server.getsockname()[1]}"
        tcp_store.set(f"reach/{rank}", place)
        for other in range(ranks):
            peer_host, _, port = tcp_store.get(f"reach/{other}").decode().rpartition(":")
            if peer_host and other != rank:
                _connect(worker, f"worker {other + 1}", peer_host, int(port))
        if tcp_store.add("reached", 1) == ranks:
            tcp_store.set("reach/done", "")
        tcp_store.wait(["reach/done"])  # `server` is open until all have tried


def _connect(worker: str, target: str, host: str, port: int) -> None:
    try:
        socket.create_connection((host, port), CONNECT_SECONDS).close()
    except OSError as error:
        raise PeerLost(f"{worker} cannot reach {target} at {host}:{port}: {error}; {REMEDY}") from None
