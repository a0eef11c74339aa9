"""What a rank says where an exchange or its GPU fails, and where workers have nothing to do."""

import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from flows.explaining.runs import OF_MACHINE
from tasks.core.errors import GpuFailed, MemoryFull, UserError, WorkersLost, user_error
from tasks.core.machine import devices
from tasks.core.params.runtime import Runtime
from tasks.core.workers import each, gang, together
from tasks.core.workers.cluster import Cluster, Node, Session
from tasks.core.workers.gang import Gang, PeerLost, peer_errors
from tasks.core.workers.together import Outcome, find_lost_rank, retry_lost_ranks, run_rank

CPU = torch.device("cpu")
NCCL = """NCCL error in: /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:3690, unhandled system error (run with NCCL_DEBUG=INFO)
ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.
Last error:
{}
"""
ECC = "CUDA error: uncorrectable ECC error encountered\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"


def test_a_failed_exchange_says_what_nccl_said() -> None:
    with pytest.raises(PeerLost) as error, peer_errors():
        raise RuntimeError(NCCL.format("Error while creating shared memory segment /dev/shm/nccl-Q3 (size 9637888)"))
    first = NCCL.splitlines()[0]
    assert str(error.value) == f"{first}: Error while creating shared memory segment /dev/shm/nccl-Q3 (size 9637888)"
    with pytest.raises(PeerLost, match=r"^Connection closed by peer$"), peer_errors():
        raise RuntimeError("Connection closed by peer\nmore")
    with pytest.raises(PeerLost, match=r"^$"), peer_errors():
        raise RuntimeError


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (NCCL.format("Cuda failure 2 'out of memory'"), MemoryFull),
        (NCCL.format("Cuda failure 'out of memory'"), MemoryFull),
        ("CUDA error: out of memory", MemoryFull),
        (ECC, GpuFailed),
    ],
)
def test_a_gpu_that_fails_in_an_exchange_is_no_lost_peer(words: str, kind: type[UserError]) -> None:
    with pytest.raises(RuntimeError) as error, peer_errors():
        raise RuntimeError(words)
    translated = user_error(error.value)
    assert isinstance(translated, kind)
    assert "\n" not in str(translated)


@pytest.mark.parametrize(
    "words",
    ["CUDA-capable device(s) is/are busy or unavailable", "all CUDA-capable devices are busy or unavailable", "unspecified launch failure"],
)
def test_a_failing_gpu_is_one_line_and_a_wrong_index_is_a_bug(words: str) -> None:
    translated = user_error(torch.AcceleratorError(f"CUDA error: {words}\nCUDA kernel errors might be asynchronously reported"))
    assert isinstance(translated, GpuFailed)
    assert str(translated).startswith(f"CUDA error: {words}: see nvidia-smi")
    wrapped = PeerLost("an exchange failed")
    wrapped.__cause__ = torch.AcceleratorError(f"CUDA error: {words}")
    assert isinstance(user_error(wrapped), GpuFailed), "libraries wrap it"
    assert user_error(torch.AcceleratorError("CUDA error: device-side assert triggered")) is None


def outcome_of(error: Exception | None, monkeypatch: pytest.MonkeyPatch) -> Outcome:
    """How a rank ends whose work raises `error`."""

    def work(*_: Any) -> None:
        if error:
            raise error

    monkeypatch.setattr(Gang, "join", lambda rank, size, device, _: Gang(rank, size, device))
    monkeypatch.setattr(Gang, "leave", lambda _: None)
    return run_rank(work, Runtime(device="cpu", threads=1), 0, 2, "store", "eth0")


def test_a_rank_whose_gpu_fails_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """All start again, as for a killed one; the others may only notice that it is gone."""
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "")  # so that what is set below is undone
        monkeypatch.delenv(name)
    threads = torch.get_num_threads()
    assert outcome_of(None, monkeypatch) == Outcome()
    assert (os.environ["GLOO_SOCKET_IFNAME"], os.environ["NCCL_SOCKET_IFNAME"]) == ("eth0", "=eth0"), "NCCL takes names for prefixes"
    gpu = outcome_of(torch.AcceleratorError(ECC), monkeypatch)
    assert not gpu.error and not gpu.trace
    peer = outcome_of(PeerLost("Connection closed by peer"), monkeypatch)
    torch.set_num_threads(threads)
    message = find_lost_rank({0: peer, 1: gpu}, 3, str)
    assert message.startswith("worker 2 of 3 was lost (CUDA error: uncorrectable ECC error: see nvidia-smi"), "the first that ended"
    assert find_lost_rank({0: peer}, 3, str) == "worker 1 of 3 lost another (Connection closed by peer)"
    assert find_lost_rank({0: peer, 2: None}, 3, lambda _: "SIGKILL") == "worker 3 of 3 was lost (SIGKILL)"


def test_lost_workers_say_nothing_of_a_configuration(tmp_path: Path) -> None:
    """So that what compares configurations does not take them for a bad one."""
    with pytest.raises(WorkersLost, match=r"training: worker 1 of 2 was lost \(x\), and restarts: 0 of runtime.yaml are used up") as error:
        retry_lost_ranks(lambda: "worker 1 of 2 was lost (x)", Runtime(restarts=0), 2, scratch=tmp_path, outs=[], what="training")
    assert error.value.problem.kind in OF_MACHINE


def test_a_node_that_has_just_died_is_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray lists it as alive for some seconds, and a task there is lost."""
    ray_error = type("RayError", (Exception,), {})
    monkeypatch.setitem(
        sys.modules, "ray.exceptions", SimpleNamespace(RayError=ray_error, RayTaskError=type("RayTaskError", (ray_error,), {}))
    )
    strategies = SimpleNamespace(NodeAffinitySchedulingStrategy=lambda name, **_: name)
    monkeypatch.setitem(sys.modules, "ray.util.scheduling_strategies", strategies)
    alive = {"one": True, "two": False}

    def get(node: str) -> str:
        if not alive[node]:
            raise ray_error("the node died")
        return f"said by {node}"

    ray: Any = SimpleNamespace(
        remote=lambda scheduling_strategy: lambda _: SimpleNamespace(remote=lambda: scheduling_strategy),
        get=get,
        wait=lambda refs, **_: (refs, []),
        nodes=lambda: [{"NodeID": name, "Alive": is_alive} for name, is_alive in alive.items()],
    )
    nodes = [Node("one", "first", 2), Node("two", "second", 3)]
    cluster = Cluster(ray, Runtime(workers="all", threads=1, device="cpu"), nodes, Session("", "", "", ""))
    assert cluster.count == 5
    assert cluster._everywhere(str, {}, arguments_of=lambda _: ()) == [("first", "said by one")]
    assert cluster.count == 2
    alive["one"] = False
    with pytest.raises(WorkersLost, match="the node died"):
        cluster._everywhere(str, {}, arguments_of=lambda _: ())


def test_idle_workers_are_told_of_once(capsys: pytest.CaptureFixture[str]) -> None:
    gang._warn_idle.cache_clear()
    Gang(1, 3, CPU).deal([5])
    Gang(0, 3, CPU).deal([5, 5, 5])
    assert not capsys.readouterr().out
    assert Gang(0, 3, CPU).deal([5]) == [[0], [], []]
    Gang(0, 3, CPU).deal([5, 5])
    output = capsys.readouterr().out
    assert output.startswith("some of the 3 workers are idle, because a step has fewer chunks") and output.count("\n") == 1


def test_gpus_of_workers_are_looked_at_without_a_context(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would take memory of the first rank's GPU, or all of it in exclusive mode."""
    kinds = ["one, 80 GiB", "one, 80 GiB", "other, 40 GiB"]
    monkeypatch.setattr(devices, "hardware", lambda device: kinds[device.index])
    monkeypatch.setattr(each, "compute_dtype", lambda *_: torch.bfloat16)
    begins: list[bool] = []
    monkeypatch.setattr(each, "choose_device", lambda _, begin: begins.append(begin) or torch.device("cuda"))
    assert each.machine(Runtime(), "bf16", gpus=2) == each.Machine("cuda", "one, 80 GiB", "torch.bfloat16")
    message = "runtime.yaml: workers: found GPUs of several kinds (one, 80 GiB; other, 40 GiB), expected one kind"
    with pytest.raises(UserError, match=re.escape(message)):
        each.machine(Runtime(), "bf16", gpus=3)
    assert begins == [False, False]


def test_outcomes_are_told_from_bugs() -> None:
    with pytest.raises(together.RankFailed, match="worker 2 of 2"):
        find_lost_rank({0: Outcome(lost="lost another (x)", at=1.0), 1: Outcome(trace="Traceback", at=2.0)}, 2, str)
