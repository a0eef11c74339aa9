"""Workers of a Ray cluster: a local one of real nodes, one of which dies half-way; refusals in one line."""

import os
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tasks.core.errors import Missing, UserError
from tasks.core.params.runtime import Runtime
from tasks.core.workers import cluster
from tasks.core.workers.cluster import Session, code_and_libraries, place_workers, refuse_unreachable
from tasks.core.workers.each import machine, open_workers
from tests import piecework
from tests.piecework import Work


def start(monkeypatch: pytest.MonkeyPatch, nodes: int, **resources: int) -> tuple[Any, list[Any]]:
    """A cluster whose head has no CPU, and nodes with one CPU and `resources` each."""
    pytest.importorskip("ray", reason="the extra ray is not installed")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_ADDRESS", "")  # set by the code under test
    ray_cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    return ray_cluster, [ray_cluster.add_node(num_cpus=1, **resources) for _ in range(nodes)]


@pytest.fixture
def one_node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    monkeypatch.chdir(tmp_path)
    ray_cluster, _ = start(monkeypatch, 1)
    yield ray_cluster.address
    ray_cluster.shutdown()


def test_a_cluster_computes_in_order_and_says_what_is_wrong(one_node: str, tmp_path: Path) -> None:
    runtime = Runtime(engine="ray", address=one_node, workers="all", restarts=1, device="cpu")
    with open_workers(runtime) as workers:
        assert (workers.alone, workers.count, workers.runtime.threads) == (False, 1, 1)
        work = Work(tmp_path / "log", killed=(4,))
        assert [value for value, _ in workers.each(work, range(8))] == [number**2 for number in range(8)]
        assert Counter(work.attempts()) == {number: 1 + (number == 4) for number in range(8)}
        loads = work.log.with_suffix(".loads").read_text().split()
        assert len(loads) == len(set(loads)) and str(os.getpid()) not in loads, "once in each worker"
        with pytest.raises(Missing, match=r"^file 2: found nothing, expected a number; write one$"):
            list(workers.each(Work(tmp_path / "log", wrong=(2,)), range(4)))
        with pytest.raises(
            UserError, match=r"lost the workers of a piece of work 2 times \(runtime.yaml: restarts: 1\): ActorDied"
        ) as error:
            list(workers.each(Work(tmp_path / "again", killed=(0,), always=True), range(2)))
        assert "\n" not in str(error.value)
    assert not list(tmp_path.glob(".retemper/scratch/workers/*"))


def test_a_worker_keeps_its_gpu_and_other_kinds_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """There is no GPU: Ray hands out the numbers, and a process is bound to the first that it sees, as by CUDA."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    monkeypatch.setattr(cluster, "_kinds", piecework.one_kind)
    ray_cluster, _ = start(monkeypatch, 1, num_gpus=2)
    try:
        with open_workers(Runtime(engine="ray", address=ray_cluster.address, workers="all", threads=1)) as workers:
            assert (workers.runtime.device, workers.count) == ("cuda", 2)
            assert workers.agreed(piecework.first_gpu) in ("5", "7")
            bindings = list(workers.each(piecework.process_and_gpus, range(20)))
            assert all(first == last for _, first, last in bindings), "the GPU that Ray counts as used"
            assert len({gpu for _, gpu, _ in bindings}) == len({process for process, _, _ in bindings}) <= 2
            monkeypatch.setattr(cluster, "_kinds", piecework.two_kinds)
            with pytest.raises(
                UserError,
                match=r"^the Ray cluster: found GPUs of several kinds \(.*: kind 5, kind 7\), expected one kind; choose those of each node",
            ):
                workers.agreed(piecework.first_gpu)
    finally:
        ray_cluster.shutdown()


def test_work_waits_for_room_and_no_longer_than_there_can_be_some(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    ray_cluster, (worker_node,) = start(monkeypatch, 1)
    try:
        with open_workers(Runtime(engine="ray", address=ray_cluster.address, workers="all", restarts=1, device="cpu")) as workers:
            assert isinstance(workers, cluster.Cluster)
            monkeypatch.setattr(cluster, "ROOM_SECONDS", 2.0)

            @workers.ray.remote(num_cpus=1)
            def occupy_node() -> None:
                time.sleep(8)

            other_task = occupy_node.remote()
            work, results = Work(tmp_path / "log", seconds=0.2), []
            with pytest.raises(
                UserError, match=r"^the Ray cluster: found room for only 0 workers after waiting 2 s, expected room for 1; start a node"
            ):
                for value, _ in workers.each(work, range(100)):
                    results.append(value)
                    if len(results) in (2, 20):
                        ray_cluster.remove_node(worker_node, allow_graceful=False)
                    if len(results) == 2:
                        worker_node = ray_cluster.add_node(num_cpus=1)
            assert workers.ray.get(other_task) is None
        assert results == [number**2 for number in range(len(results))] and 20 <= len(results) < 100
        captured = capsys.readouterr()
        assert captured.out.startswith("waiting for room on the Ray cluster for a worker: 2 s\n")
        assert captured.err.count("its work is done again (1 of 1)") == 2, "a place that was not there is no lost worker"
    finally:
        ray_cluster.shutdown()


@pytest.mark.heavy
def test_a_node_that_dies_costs_its_pieces_in_flight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ray_cluster, (_, second) = start(monkeypatch, 2)
    try:
        with open_workers(Runtime(engine="ray", address=ray_cluster.address, workers=2, threads=1, device="cpu")) as workers:
            assert workers.agreed(partial(machine, workers.runtime, "fp32")).hardware.endswith("1 threads")
            work, results = Work(tmp_path / "log", seconds=0.2), []
            for value, _ in workers.each(work, range(24)):
                results.append(value)
                if len(results) == 8:
                    ray_cluster.remove_node(second, allow_graceful=False)
        assert results == [number**2 for number in range(24)]
        attempts = Counter(work.attempts())
        assert set(attempts) == set(range(24))
        assert sum(attempts.values()) - 24 <= 2, "no more than what was in flight"
        processes = {line.split()[1] for line in work.log.read_text().splitlines()}
        assert len(processes) >= 2, "both nodes worked"
    finally:
        ray_cluster.shutdown()


@pytest.mark.heavy
def test_two_nodes_one_of_which_dies_encode_what_one_process_does(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole stage, and the others that have workers, on what is left of the cluster."""
    import tasks.encode.__main__ as stage
    from tests.core.workers.test_stages import STAGES, make_pieces_small, run_and_digest

    make_pieces_small(small, monkeypatch)
    monkeypatch.setattr("tasks.bm25.pieces.QUERIES", 7)
    stages = [*STAGES, "bm25"]
    digests = {name: run_and_digest(small, name, "") for name in stages}
    ray_cluster, (_, second) = start(monkeypatch, 2)
    paths, real = list[Path](), stage._save

    def save(vectors: Any, to: Path, *args: Any) -> None:
        paths.append(to)
        if len(paths) == 3:
            ray_cluster.remove_node(second, allow_graceful=False)
        real(vectors, to, *args)

    try:
        monkeypatch.setattr(stage, "_save", save)
        runtime = f"engine: ray\nworkers: all\naddress: {ray_cluster.address}\n"
        for name in stages:
            assert run_and_digest(small, name, runtime) == digests[name]
        assert len(paths) > 8
    finally:
        ray_cluster.shutdown()


def test_ray_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError) as error, open_workers(Runtime(engine="ray")):
        pass
    assert str(error.value) == (
        "runtime.yaml: engine: found ray, which is not installed; pip install -c constraints.txt 'retemper[ray]', or set engine: local"
    )


def test_addresses_without_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        free = f"127.0.0.1:{listener.getsockname()[1]}"  # nobody listens
        with pytest.raises(UserError, match=rf"^runtime.yaml: address: found nothing that answers at {free} \(.*refused\); do that$"):
            refuse_unreachable(free, "do that")
    for address in ("head", "ray://head:10001", "head:port", ":6379", "head:99999999"):
        with pytest.raises(UserError, match=r"^runtime.yaml: address: found "):
            refuse_unreachable(address, "do that")
    pytest.importorskip("ray", reason="the extra ray is not installed")
    monkeypatch.setenv("RAY_ADDRESS", free)
    with pytest.raises(
        UserError, match=rf"^runtime.yaml: address: found nothing that answers at .*:{free.split(':')[1]} \(.*; start one \(ray start"
    ):
        cluster._connected("auto")
    monkeypatch.delenv("RAY_ADDRESS")

    def find_no_cluster(_: str) -> str:
        raise ConnectionError("Could not find any running Ray instance.\nMore.")

    monkeypatch.setattr("ray._private.services.canonicalize_bootstrap_address_or_die", find_no_cluster)
    with pytest.raises(UserError, match=r"^runtime.yaml: address: found no Ray cluster that this machine is part of \(Could not find any"):
        cluster._connected("auto")


class AuthenticationError(Exception):
    """As in Ray: derived from no other class of Ray's."""


def gcs_error() -> Exception:
    """What Ray raises where the cluster itself refused the token: its own exception is text in the cause."""
    error = ConnectionError("Failed to connect to Ray cluster at head:6379")
    error.__cause__ = RuntimeError("Failed to connect to GCS. Last error: Traceback\nray.exceptions.AuthenticationError: RPC error")
    return error


@pytest.mark.parametrize("error", [AuthenticationError("Token authentication is enabled but no token was found.\nMore."), gcs_error()])
def test_a_cluster_that_wants_a_token(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**_: Any) -> None:
        raise error

    for name in ("ray", "ray._private", "ray._private.services", "ray.exceptions"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(sys.modules["ray"], "init", init, raising=False)
    monkeypatch.setattr(sys.modules["ray._private.services"], "canonicalize_bootstrap_address_or_die", str, raising=False)
    monkeypatch.setattr(sys.modules["ray.exceptions"], "RayError", AuthenticationError, raising=False)
    monkeypatch.setattr(cluster, "refuse_unreachable", lambda *_: None)
    monkeypatch.setenv("RAY_ADDRESS", "")
    with pytest.raises(UserError) as raised:
        cluster._connected("head:6379")
    assert str(raised.value) == (
        "runtime.yaml: address: found a Ray cluster at head:6379 that requires a token; give the run the cluster's token, "
        "and set RAY_AUTH_MODE=token in its environment (docs/cluster.md)"
    )


def node(name: str, *, alive: bool = True, **resources: float) -> dict[str, Any]:
    return {"NodeID": name, "NodeManagerHostname": f"host-{name}", "Alive": alive, "Resources": resources}


def test_places_of_workers_on_nodes() -> None:
    mixed = [node("a", CPU=16), node("b", CPU=8, GPU=2), node("c", CPU=8, GPU=4), node("d", alive=False, CPU=64, GPU=8), node("e")]

    def placement(runtime: Runtime, nodes: list[dict[str, Any]]) -> tuple[str, int | None, dict[str, int]]:
        worker, places = place_workers(runtime, nodes)
        return worker.device, worker.threads, {place.name: place.places for place in places}

    assert placement(Runtime(), mixed) == ("cuda", 2, {"b": 2, "c": 4}), "GPUs, with the threads that each node has for one"
    assert placement(Runtime(device="cpu"), mixed) == ("cpu", 8, {"a": 2, "b": 1, "c": 1}), "all threads of the smallest node"
    assert placement(Runtime(device="cpu", threads=4), mixed) == ("cpu", 4, {"a": 4, "b": 2, "c": 2})
    assert placement(Runtime(), [node("a", CPU=2)]) == ("cpu", 2, {"a": 1})
    for runtime, words in (
        (Runtime(device="cuda"), r"engine: found no node of the Ray cluster with a GPU; start one \(ray start\)$"),
        (Runtime(threads=4), r"engine: found no node of the Ray cluster with 4 CPUs"),
        (Runtime(device="cuda:1"), r"device: found cuda:1 with engine: ray, expected auto, cuda, or cpu$"),
    ):
        with pytest.raises(UserError, match=f"^runtime.yaml: {words}"):
            place_workers(runtime, [node("a", CPU=2)])


def test_a_node_without_the_projects_folder_or_with_other_code_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mark").write_text("word")
    session = Session(str(tmp_path), "mark", "word", code_and_libraries())
    assert cluster._look(session) == ""
    assert cluster._look(session._replace(word="another")) == (
        f"another file at {tmp_path}/mark, expected the same file system on all nodes"
    )
    assert "which this run just wrote (No such file or directory)" in cluster._look(session._replace(project="/nowhere"))
    other_session = session._replace(code="0")
    assert cluster._look(other_session).startswith(
        "other code or other versions of numpy, torch, transformers, tokenizers, or faiss, expected"
    )
    outcome = cluster._work(other_session, [], 0)
    assert isinstance(outcome, cluster.Raised) and "of the Ray cluster: found other code" in str(outcome.error)
