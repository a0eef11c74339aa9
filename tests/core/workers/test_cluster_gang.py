"""A gang on a Ray cluster: two ranks compute what one process does, and a lost one, or a lost node, costs only time."""

import socket
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file

from tasks.core.errors import Unavailable, UserError
from tasks.core.files import folder_digest
from tasks.core.params.runtime import Runtime
from tasks.core.training.checkpoints import CHECKPOINT, checkpoint_step
from tasks.core.training.ranks import open_ranks
from tasks.core.workers import cluster_gang
from tasks.core.workers.cluster_gang import FirstOutput, address_of, interface
from tasks.core.workers.together import RankFailed
from tests import gangs
from tests.core.workers.test_cluster import start

CPU = torch.device("cpu")


class Training:
    """A small training on a cluster, in a folder of its own; `outs` begin with a file of an earlier start."""

    def __init__(self, folder: Path) -> None:
        self.scratch, self.curves = folder / "scratch", folder / "curves"
        for path in (self.scratch, self.curves):
            path.mkdir(parents=True)
        (self.curves / "former").write_text("")

    def run(self, address: str, trouble: dict[str, int], *, workers: int = 2, restarts: int = 3) -> None:
        runtime = Runtime(engine="ray", address=address, workers=workers, threads=1, device="cpu", restarts=restarts)
        with open_ranks(runtime, "fp32") as ranks:
            assert (ranks.count, ranks.counted) == (workers, [{"ranks": workers}])
            assert ranks.machine.hardware.endswith("1 threads")
            ranks.run(
                partial(gangs.small_training, self.scratch, self.curves, trouble), scratch=self.scratch, outs=[self.curves], what="small"
            )


class Two(NamedTuple):
    """A cluster, and the node of it that a test may lose: a process that runs on the other would end with that."""

    cluster: Any
    second: Any


@pytest.fixture
def two_nodes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Two]:
    monkeypatch.chdir(tmp_path)
    ray_cluster, (_, second) = start(monkeypatch, 2)
    yield Two(ray_cluster, second)
    ray_cluster.shutdown()


def test_a_small_training_with_a_lost_rank_has_the_bits_of_an_undisturbed_one(
    two_nodes: Two, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    torch.set_num_threads(1)
    (tmp_path / "alone").mkdir()
    expected = gangs.small_training(tmp_path / "alone", tmp_path / "alone", {}, CPU)
    training = Training(tmp_path)
    capfd.readouterr()
    training.run(two_nodes.cluster.address, {"kill": 7})
    stderr = capfd.readouterr().err
    assert "small: worker 2 of 2 was lost (WorkerCrashedError: " in stderr
    assert "all 2 start again (restart 1 of 3 allowed)" in stderr
    assert stderr.index("start again") < stderr.index("resuming from step 7") < stderr.index("small: 12/12 steps"), "the first rank's words"
    for rank in (0, 1):
        weights = load_file(training.scratch / f"weights-{rank}.safetensors")
        assert all(torch.equal(weights[name], weight) for name, weight in expected.items()), rank
    assert folder_digest(training.curves / "plots") == folder_digest(tmp_path / "alone/plots"), "one writes the curves"
    assert not (training.curves / "former").exists()


@pytest.mark.heavy
def test_what_ends_a_training(two_nodes: Two, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    for name, trouble, error, words in (
        ("user", {"user": 3}, UserError, "^a.tsv:7: found 2 columns, expected 3"),
        ("bug", {"bug": 3}, RankFailed, "worker 2 of 2:\nTraceback (.|\n)*ZeroDivisionError: a bug"),
        ("always", {"always": 3}, UserError, r"small: worker 2 of 2 was lost \(.*\), and restarts: 1 of runtime.yaml are used up"),
    ):
        training = Training(tmp_path / name)
        with pytest.raises(error, match=words):
            training.run(two_nodes.cluster.address, trouble, restarts=1)
        assert checkpoint_step(training.scratch / CHECKPOINT) == 3
    hung = Training(tmp_path / "hung")
    hung.run(two_nodes.cluster.address, {"first": 5, "wait": 5})
    assert (hung.scratch / "weights-1.safetensors").exists(), "Ray ended the one that waited for the lost one, and both started again"
    monkeypatch.setattr(cluster_gang, "ROOM_SECONDS", 1.0)
    runtime = Runtime(engine="ray", address=two_nodes.cluster.address, workers=2, threads=1, device="cpu")
    with open_ranks(runtime, "fp32") as ranks:
        two_nodes.cluster.remove_node(two_nodes.second, allow_graceful=False)
        with pytest.raises(
            Unavailable,
            match=r"^the Ray cluster: found room for only 1 workers after waiting 1 s, expected room for 2; start a node, or",
        ):
            ranks.run(partial(gangs.small_training, tmp_path, tmp_path, {}), scratch=tmp_path, outs=[], what="small")


@pytest.mark.heavy
def test_after_a_lost_node_all_start_again(two_nodes: Two, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    torch.set_num_threads(1)
    (tmp_path / "alone").mkdir()
    expected = gangs.small_training(tmp_path / "alone", tmp_path / "alone", {}, CPU)
    training = Training(tmp_path)

    with ThreadPoolExecutor(1) as pool:  # Ray starts nodes in the main thread alone
        trained = pool.submit(training.run, two_nodes.cluster.address, {"wait": 5})
        while not (training.scratch / "happened-wait").exists() and not trained.done():
            time.sleep(0.05)
        two_nodes.cluster.remove_node(two_nodes.second, allow_graceful=False)
        two_nodes.cluster.add_node(num_cpus=1)
        trained.result()
    stderr = capfd.readouterr().err
    assert "all 2 start again (restart 1 of 3 allowed)" in stderr
    for rank in (0, 1):
        weights = load_file(training.scratch / f"weights-{rank}.safetensors")
        assert all(torch.equal(weights[name], weight) for name, weight in expected.items()), rank


def test_whole_lines_of_the_first_rank_are_shown_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "worker-1.log"
    log.write_text("of a former start\n")
    output = FirstOutput(log)
    output.show()
    for text, expected in (
        (b"one\ntw", "one\n"),
        (b"", ""),
        (b"o\nthree\n", "two\nthree\n"),
        (b"\xf0\x9f", ""),
        (b"\xa6\x94\n", "\U0001f994\n"),
    ):
        with log.open("ab") as file:
            file.write(text)
        output.show()
        assert capsys.readouterr().err == expected


def test_the_interface_of_an_address() -> None:
    if sys.platform == "linux":
        assert interface("127.0.0.1") in dict(map(reversed, socket.if_nameindex())), "the loopback's"
        assert address_of(interface("127.0.0.1")) == "127.0.0.1"
    assert interface("192.0.2.1") == "", "none has it"
    assert address_of("") == address_of("no-such") == ""
