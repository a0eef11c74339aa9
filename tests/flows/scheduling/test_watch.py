"""What the scheduler survives: a server or a runner that ends, and a Prefect API that is unavailable for a while."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from flows.pipeline.server import Ended
from flows.process.processes import Processes
from flows.scheduling import missed, schedule
from flows.scheduling.schedule import Stop
from flows.scheduling.times import Schedule

GONE = httpx.ConnectError("All connection attempts failed")


class FakeServer:
    """A server that has ended, or is `alive`. Each start takes one of `starts`: whether it answers then."""

    def __init__(self, *starts: bool, alive: bool = False) -> None:
        self.starts, self.alive, self.answers = list(starts), alive, threading.Event()

    def is_alive(self) -> bool:
        return self.alive

    def start(self) -> None:
        self.alive = self.starts.pop(0)
        if self.alive:
            self.answers.set()

    def wait(self) -> None:
        if not self.alive:
            raise Ended("ended with status 1")


class Watched:
    """The scheduler with a clock of its own. `events`: its runners, and its pauses in seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events, self.now = list[Any](), 1000.0
        self.patch = monkeypatch
        monkeypatch.setattr(schedule, "time", SimpleNamespace(sleep=self._sleep, monotonic=lambda: self.now))

    def _sleep(self, seconds: float) -> None:
        self.now += seconds
        if seconds:
            self.events.append(seconds)

    def watch(self, answers: Sequence[Exception | None], server: Any = None, run: Callable[[], object] = lambda: None) -> list[Any]:
        """Watch until `answers`, the API's before each runner, are used up, or the scheduler gives up: then the last event is `end`."""
        left = list(answers)

        def tidy(*_: Any) -> tuple[int, int]:
            if not left:
                raise Stop
            if answer := left.pop(0):
                raise answer
            return 0, 0

        def run_runner(*_: Any) -> None:
            self.events.append("runner")
            run()

        self.patch.setattr(missed, "tidy", tidy)
        self.patch.setattr(schedule, "_run_runner", run_runner)
        try:
            schedule._watch(Schedule("n", None, 60, "UTC", "main"), Processes(), server)
        except Stop:
            return self.events
        return [*self.events, "end"]


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


def test_an_api_that_is_unavailable_for_a_while_is_asked_again(watched: Watched, capsys: pytest.CaptureFixture[str]) -> None:
    """A configured server restarts, and the runner ends with it."""
    assert watched.watch([None, GONE, GONE, None]) == ["runner", 5, 10, 20, "runner", 5]
    assert capsys.readouterr().err.count("retemper: warning: Prefect: ConnectError: All connection attempts failed\n") == 2


def test_an_api_that_stays_unavailable_ends_the_schedule(watched: Watched, capsys: pytest.CaptureFixture[str]) -> None:
    assert watched.watch([GONE] * 9) == [5, 10, 20, 40, "end"]
    assert capsys.readouterr().err.splitlines()[-1] == "retemper: the runner or Prefect's server keeps ending; the lines above say why"


def test_a_server_whose_first_restart_fails_is_restarted_again(watched: Watched, capsys: pytest.CaptureFixture[str]) -> None:
    assert watched.watch([None], FakeServer(False, True)) == [5, "runner", 5]
    assert "retemper: warning: Prefect's server, started by this run, ended with status 1" in capsys.readouterr().err
    watched.events.clear()
    assert watched.watch([None], FakeServer(*[False] * 9)) == [5, 10, 20, 40, "end"]


def test_a_server_that_ends_beside_a_runner_is_restarted_alone(watched: Watched) -> None:
    server = FakeServer(False, True, alive=True)

    def run() -> None:
        server.alive = False
        assert server.answers.wait(30)

    assert watched.watch([None], server, run) == ["runner", 5, 5], "the failed restart, and the end of the runner"


@pytest.mark.parametrize(("seconds", "events"), [(59, ["runner", 5] * 4 + ["runner", "end"]), (60, ["runner", 5] * 9)])
def test_a_runner_that_keeps_ending_within_a_minute_ends_the_schedule(watched: Watched, seconds: float, events: list[Any]) -> None:
    def run() -> None:
        watched.now += seconds

    assert watched.watch([None] * 9, run=run) == events


@pytest.mark.parametrize(("counts", "texts"), [((0, 0), []), ((2, 0), []), ((0, 1), ["1 run"]), ((1, 3), ["3 runs"])])
def test_people_are_told_of_missed_runs(monkeypatch: pytest.MonkeyPatch, counts: tuple[int, int], texts: list[str]) -> None:
    """A week without a retraining was one line in the schedule's log."""
    notices: list[tuple[str, str]] = []
    monkeypatch.setattr(missed, "tidy", lambda *_: counts)
    monkeypatch.setattr(schedule.notify, "notify", lambda event, text, _warn: notices.append((event, text)))
    schedule._tidy(Schedule("n", None, 60, "UTC", "main"))
    name = Path.cwd().name
    assert notices == [("missed", f"{name}: {text} of the schedule did not start; retemper retrain makes up for them") for text in texts]
