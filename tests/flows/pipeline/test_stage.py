"""DVC's output as recorded (3.67), and which stage has the device."""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from flows.pipeline import stage as stages
from flows.pipeline.flow import Devices
from flows.pipeline.stage import Slots, Transcript, devices_needed, find_devices, ray_environment, run_stage, spares_gpus
from flows.process.processes import Processes
from flows.repository.graph import Stage
from tasks.core.errors import PROBLEM, Invalid, Problem, report

RAN = """\
Running stage 'train@a':
> python -m tasks.train --name a
> a line of its own
epoch 1
Updating lock file 'dvc.lock'

To track the changes with git, run:

	git add dvc.lock
Use `dvc push` to send your updates to remote storage."""
FAILED = """\
Running stage 'train@a':
> python -m tasks.train --name a
retemper: corpus.tsv:7: bad
ERROR: failed to reproduce 'train@a': failed to run: python -m tasks.train --name a, exited with 2"""
MISSING = "ERROR: failed to reproduce 'train@a': missing data 'source': data/corpus"
CHECKED_OUT = (0, "")  # what a failed stage made last time
BUSY = "ERROR: failed to reproduce 'train@a': Unable to acquire lock. Most likely another DVC process is running"


def read(text: str) -> tuple[Transcript, list[str]]:
    transcript = Transcript()
    return transcript, [own_line for line in text.splitlines() if (own_line := transcript.read(line)) is not None]


def test_a_stage_that_ran() -> None:
    transcript, lines = read(RAN)
    assert (transcript.ran, transcript.exited, lines) == (True, None, ["> a line of its own", "epoch 1"])


def test_our_own_warning_is_shown_outside_the_stages_output_too() -> None:
    line = "retemper: warning: remote team: object 0a is corrupt"
    assert read(f"{line}\n{RAN}\n{line}")[1] == [line, "> a line of its own", "epoch 1", line]


@pytest.mark.parametrize(
    "line", ["Stage 'train@a' didn't change, skipping", "Stage 'train@a' is cached - skipping run, checking out outputs"]
)
def test_a_stage_that_need_not_run(line: str) -> None:
    transcript, lines = read(line)
    assert (transcript.ran, lines) == (False, [])


def test_a_stage_that_failed() -> None:
    transcript, lines = read(FAILED)
    assert (transcript.ran, transcript.exited) == (True, 2)
    assert lines == ["retemper: corpus.tsv:7: bad"]
    transcript, _ = read(MISSING)
    assert (transcript.ran, transcript.exited, transcript.busy) == (False, None, False)
    assert transcript.errors == [MISSING.removeprefix("ERROR: ")]


PROBLEM_OF_TRAIN = Invalid("corpus.tsv:7: found 2 columns", where="corpus.tsv:7", found="2 columns").problem


@contextmanager
def stage_environment(env: Mapping[str, str]) -> Iterator[None]:
    """`report` in the environment of a stage."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PROBLEM, env[PROBLEM])
        yield


class Scripted(Processes):
    """Replays what DVC printed once, in turn; a stage that ends with status 2 writes its problem."""

    def __init__(self, *answers: tuple[int, str]) -> None:
        super().__init__()
        self.answers = list(answers)

    def run(self, command: Sequence[str], tell: Callable[[str], None], env: Mapping[str, str] | None = None) -> int:
        assert env is not None
        assert command[-1] == "train@a"
        if "checkout" in command:  # of what was there before the stage failed
            return 0
        status, text = self.answers.pop(0)
        for line in text.splitlines():
            tell(line)
        if "bad" in text and "with 2" in text:
            with stage_environment(env):
                report([Problem("invalid", "an earlier one"), PROBLEM_OF_TRAIN])
        return status


def test_how_a_stage_ended(tmp_path: Path) -> None:
    def outcome_of(*answers: tuple[int, str]) -> tuple[str, int, str]:
        outcome = run_stage("train@a", Scripted(*answers), lambda _: None, logs=tmp_path)
        assert [file.name for file in tmp_path.iterdir()] == ["train@a.log"], "no record is left"
        return outcome.state, outcome.status, outcome.problem.message if outcome.problem else ""

    assert outcome_of((0, RAN)) == ("Ran", 0, "")
    assert (tmp_path / "train@a.log").read_text() == RAN.replace("\n\n", "\n\n") + "\n"
    assert outcome_of((0, "Stage 'train@a' didn't change, skipping")) == ("Cached", 0, "")
    assert "epoch 1" in (tmp_path / "train@a.log").read_text(), "the log of the last real run is kept"
    assert outcome_of((255, FAILED), CHECKED_OUT) == ("Failed", 2, "corpus.tsv:7: found 2 columns"), "not the line that it printed"
    log = tmp_path / "train@a.log"
    assert outcome_of((255, FAILED.replace("with 2", "with 1")), CHECKED_OUT) == (
        "Failed",
        1,
        f"train@a: failed with status 1; its log: {log}",
    )
    assert (
        outcome_of((255, FAILED.replace("with 2", "with -9")), CHECKED_OUT)[2]
        == f"train@a: failed with status -9 (killed; out of memory?); its log: {log}"
    )
    silent = FAILED.replace("bad", "printed only")
    assert outcome_of((255, silent), CHECKED_OUT) == ("Failed", 1, f"train@a: failed with status 2; its log: {log}"), (
        "no printed line is read"
    )
    lost = "ERROR: failed to transfer 'ab' - [Errno 28] No space left on device: 'x'\n"
    assert outcome_of((0, RAN + "\n" + lost))[:2] == ("Failed", 2), "DVC ends with status 0 where its cache is full"
    assert outcome_of((0, lost + RAN)) == ("Ran", 0, ""), "what the remote lacks is computed"
    assert outcome_of((255, MISSING)) == ("Failed", 1, f"train@a: {MISSING.removeprefix('ERROR: ')}; its log: {log}")
    problem = run_stage("train@a", Scripted((255, FAILED), CHECKED_OUT), lambda _: None, logs=tmp_path).problem
    assert problem == PROBLEM_OF_TRAIN, "every field comes through"
    assert outcome_of((255, BUSY), (255, BUSY), (0, RAN)) == ("Ran", 0, ""), "a lock that someone held is tried again"


def test_a_device_serves_one_stage_at_a_time() -> None:
    slots, guard, barrier = Slots(["0", "1"]), threading.Lock(), threading.Barrier(2, timeout=300)
    busy: set[str] = set()
    peak = 0

    def use_device() -> None:
        nonlocal peak
        with slots.take() as env:
            device = env["CUDA_VISIBLE_DEVICES"]
            with guard:
                assert device not in busy
                busy.add(device)
                peak = max(peak, len(busy))
            barrier.wait()  # for another stage that has the other device
            with guard:
                busy.remove(device)

    threads = [threading.Thread(target=use_device) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert peak == 2
    assert not busy


def test_several_devices_are_taken_at_once() -> None:
    """One that needs two waits until both are free, and then comes before those that asked later."""
    slots, order = Slots(["0", "1", "2"]), list[str]()
    release = {name: threading.Event() for name in "abcd"}

    def take_devices(name: str, count: int) -> None:
        with slots.take(count) as env:
            order.append(f"{name} {env['CUDA_VISIBLE_DEVICES']}")
            assert release[name].wait(60)

    threads = []
    for name, count in (("a", 1), ("b", 1), ("c", 5), ("d", 1)):
        threads.append(threading.Thread(target=take_devices, args=(name, count)))
        threads[-1].start()
        if name in "ab":
            wait_until(lambda: len(order) == len(threads))
        elif name == "c":
            wait_until(slots._turn.locked)  # it waits
    assert order == ["a 0", "b 1"], "one is free, but c needs all three, and d came after c"
    release["a"].set()
    time.sleep(0.2)
    assert len(order) == 2
    release["b"].set()
    wait_until(lambda: len(order) == 3)
    assert {*order[2].removeprefix("c ").split(",")} == {"0", "1", "2"}, "of five, the three that there are"
    release["c"].set()
    wait_until(lambda: len(order) == 4)
    release["d"].set()
    for thread in threads:
        thread.join()


def test_trainings_on_a_cluster_take_turns_and_pieces_of_work_do_not_wait() -> None:
    gangs, started, order = Slots([""]), threading.Event(), list[str]()

    def run_second() -> None:
        started.set()
        with ray_environment(gangs, "together"):
            order.append("second")

    thread = threading.Thread(target=run_second)
    with ray_environment(gangs, "together") as env:
        assert env == {"CUDA_VISIBLE_DEVICES": ""}
        thread.start()
        assert started.wait(60)
        with ray_environment(gangs, "pieces") as env:
            assert env == {"CUDA_VISIBLE_DEVICES": ""}
        time.sleep(0.2)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def wait_until(condition: Callable[[], bool]) -> None:
    ends = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.01)


def test_how_many_devices_a_stage_with_workers_takes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert devices_needed(["0", "1"], "pieces") == devices_needed(["0", "1"], "together") == 1
    for text, gpus, cpus in (
        ("workers: 2", 2, 1),
        ("workers: 9", 3, 1),
        ("workers: all", 3, 1),
    ):
        Path("runtime.yaml").write_text(f"{text}\n")
        for kind in ("pieces", "together"):
            assert devices_needed(["0", "1", "2"], kind) == gpus
            assert devices_needed([""], kind) == cpus
        assert devices_needed(["0", "1", "2"], None) == 1
        assert devices_needed(["MIG-a", "MIG-b", "MIG-c"], "pieces") == gpus
        assert devices_needed(["MIG-a", "MIG-b", "MIG-c"], "together") == 1, "NCCL connects no two slices of one GPU"
    Path("runtime.yaml").write_text("engine: ray\nworkers: all\n")
    for devices in (["0", "1", "2"], [""]):
        assert [devices_needed(devices, kind) for kind in ("pieces", "together", None)] == [0, 0, 1]
    Path("runtime.yaml").write_text("engine: ray\n")
    assert [devices_needed(["0", "1"], kind) for kind in ("pieces", "together", None)] == [0, 1, 1], "one worker trains here"


def test_devices(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2, 5")
    assert find_devices() == ["2", "5"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert find_devices() == [""], "one: the stage finds it by itself"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setenv("PATH", "")
    assert find_devices() == [""]
    Path("runtime.yaml").write_text("threads: 1\nslots: 3\n")
    assert find_devices() == ["", "", ""], "three at once on the CPU"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    assert find_devices() == ["2", "5"], "slots are for machines without GPUs"
    Path("runtime.yaml").write_text("device: cpu\nslots: 2\n")
    assert find_devices() == ["", ""], "no GPU is used"
    Path("runtime.yaml").write_text("device: cuda:1\n")
    assert find_devices() == [""], "that one of the two, which the stage finds by itself"


def test_an_index_that_is_built_on_the_cpu_waits_for_no_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    for params, expected in (
        ({}, True),
        ({"index": None}, True),
        ({"index": {"build": "cpu"}}, True),
        ({"index": {"build": "gpu"}}, False),
    ):
        Path("data/params.json").write_text(json.dumps(params))
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
        assert spares_gpus("index@warmup") == expected
        devices = Devices({name: Stage(name, (), (), "device") for name in ("index@warmup", "encode@warmup")})
        assert (devices.slot("index@warmup"), devices.slot("encode@warmup")) == (None if expected else "device", "device")
        assert not spares_gpus("train@index")
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        assert not spares_gpus("index@warmup"), "on a machine without GPUs it takes its turn"


def test_a_driver_that_hangs_is_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\nexec sleep 60\n")
    tool.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(stages, "ANSWER_SECONDS", 0.2)
    assert find_devices() == [""]
    assert "nvidia-smi has not answered in 0.2 s; stages run one at a time" in capsys.readouterr().err
    monkeypatch.setattr(stages, "ANSWER_SECONDS", 60)
    tool.write_text("#!/bin/sh\nprintf '0\\n1\\n2\\n'\n")
    assert find_devices() == ["0", "1", "2"]
