"""Ranks that reach one another go on at once; two that do not are named in one line."""

import socket
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from torch import distributed as dist

from tasks.core.workers import reach
from tasks.core.workers.gang import PeerLost
from tasks.core.workers.reach import reach_all

HERE = "127.0.0.1"


def start_store() -> tuple[Any, str]:
    store: Any = dist.TCPStore(HERE, 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    return store, f"{HERE}:{store.port}"


def closed_port() -> int:
    with socket.create_server((HERE, 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_ranks_that_reach_one_another(ranks: int) -> None:
    store, store_address = start_store()
    with ThreadPoolExecutor(ranks) as pool:
        for future in [pool.submit(reach_all, store_address, HERE, rank, ranks) for rank in range(ranks)]:
            future.result()
    assert store.add("reached", 0) == ranks


def test_a_rank_that_another_cannot_reach_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "MEET", timedelta(seconds=5))  # were it not tried, this rank would wait for it
    store, store_address = start_store()
    port = closed_port()
    store.set("reach/1", f"{HERE}:{port}")
    expected = rf"worker 1 of 2 \({HERE}\) cannot reach worker 2 at {HERE}:{port}: .*refused; .*open all ports between the nodes"
    with pytest.raises(PeerLost, match=expected):
        reach_all(store_address, HERE, 0, 2)


def test_an_address_that_is_not_this_machines_is_not_tried() -> None:
    """As behind NAT: gloo itself may then find a way."""
    store, store_address = start_store()
    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(reach_all, store_address, address, rank, 2) for rank, address in enumerate(("192.0.2.1", HERE))]:
            future.result()
    assert store.get("reach/0") == b""


def test_a_machine_of_the_run_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "CONNECT_SECONDS", 0.1)
    port = closed_port()
    with pytest.raises(PeerLost, match=rf"worker 2 of 2 \({HERE}\) cannot reach the machine of the run at {HERE}:{port}"):
        reach_all(f"{HERE}:{port}", HERE, 1, 2)
