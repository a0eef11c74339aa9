"""Schedules: what is refused, and the real thing: a lasting server, a cron of one minute, a kill, a worse corpus, restarts."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from flows.pipeline import server
from flows.process.prepared import FORKS
from flows.process.processes import Processes
from flows.retraining import retrain
from flows.scheduling import schedule
from flows.scheduling.times import Schedule
from tasks.core.errors import UserError


def test_refusals(retraining: Any) -> None:
    for arguments, line in (
        (("--cron", "every day"), '--cron "every day": expected five cron fields'),
        (("--cron", ""), '--cron "": expected five cron fields'),
        (("--cron", "* * * * * *"), '--cron "* * * * * *": expected five cron fields'),
        (("--cron", "0 3 31 2 *"), '--cron "0 3 31 2 *": expected five cron fields that match a date'),
        (("--interval", "60", "--follow", "nope"), "retemper: nope: no such commit, branch or tag; commit the project first, or name one"),
        (("--interval", "60", "--follow", ""), 'retemper: --follow "": no such commit, branch or tag'),
        (("--interval", "60", "--name", "a/b"), "--name a/b: found /, expected a name without any of / % & < >"),
        (("--cron", "* * * * *", "--timezone", "Mars/Base"), "--timezone Mars/Base: expected a name such as"),
        (("--interval", "0"), "--interval 0: expected 1 to 31,622,400 seconds"),
        (("--interval", "100000000000000"), "expected 1 to 31,622,400 seconds (a year)"),
        (("--interval", "60", "--pool", "gpus"), "--pool: expected a Prefect server"),
    ):
        errors = retraining.call("schedule", *arguments, status=2)[1]
        assert len(errors.splitlines()) == 1, errors
        assert line in errors
    errors = retraining.call("schedule", "--interval", "60", status=2, RETEMPER_WEBHOOK="ftp://secret")[1]
    assert "RETEMPER_WEBHOOK: expected an address" in errors
    assert "secret" not in errors
    errors = retraining.call("schedule", "--interval", "60", status=2, PREFECT_API_URL="http://127.0.0.1:9/api")[1]
    assert errors.splitlines()[-1].startswith("retemper: PREFECT_API_URL: no Prefect server answers there")


def test_an_unknown_block_or_pool_is_refused(retraining: Any, server_url: str) -> None:
    environment = {"PREFECT_API_URL": server_url}
    errors = retraining.call("schedule", "--interval", "60", status=2, RETEMPER_NOTIFY_BLOCK="slack-webhook/nobody", **environment)[1]
    assert errors == "retemper: RETEMPER_NOTIFY_BLOCK: slack-webhook/nobody: no such block on the Prefect server, " + (
        "expected KIND/NAME; create it on the server's page\n"
    )
    assert (
        "--pool nowhere: no such work pool"
        in retraining.call("schedule", "--interval", "60", "--pool", "nowhere", status=2, **environment)[1]
    )


def test_a_lasting_server_keeps_its_port(tmp_path: Path) -> None:
    memory = tmp_path / "home" / "port"
    port = server._port(memory)
    assert server._port(memory) == port
    memory.write_text("no port")
    assert server._port(memory) > 0


def test_a_lasting_server_keeps_leases_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "client"))
    monkeypatch.setattr(server.Processes, "start", lambda *_: None)
    lock = server.LASTING / "concurrency_leases/expirations.lock"  # of a server that was killed
    lock.parent.mkdir(parents=True)
    lock.touch()
    env = server.Server(lasting=True)._env
    assert not lock.exists()
    storage = import_module(env["PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE"]).ConcurrencyLeaseStorage
    assert storage.__module__.endswith("filesystem")
    assert Path(env["PREFECT_HOME"]) == tmp_path / server.LASTING
    assert "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE" not in server.Server()._env


def test_an_interval_needs_no_time_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC0")
    zones: list[str] = []

    def check(found: Schedule) -> None:
        zones.append(found.timezone)
        raise UserError("seen")

    monkeypatch.setattr(schedule, "check", check)
    with pytest.raises(UserError, match=r"^seen$"):
        schedule.serve(None, 3600, "n", follow="main")
    assert zones == ["UTC"]
    with pytest.raises(UserError, match=r"^TZ=UTC0: "):
        schedule.serve("0 3 * * 1", None, "n", follow="main")


class Served:
    """A running `retemper schedule`, its output, and its server's API."""

    def __init__(self, project: Any, *arguments: str) -> None:
        self.project, self.lines = project, list[str]()
        self.process = project.start("schedule", *arguments)
        self.reader = threading.Thread(target=lambda: self.lines.extend(iter(self.process.stdout.readline, "")), daemon=True)
        self.reader.start()

    def wait_for_output(self, pattern: str, seconds: float) -> str:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if match := re.search(pattern, "".join(self.lines)):
                return match[0]
            assert self.process.poll() is None, "".join(self.lines) + self.process.stderr.read()
            time.sleep(0.2)
        raise AssertionError(f"{pattern} was not said:\n" + "".join(self.lines))

    @property
    def url(self) -> str:
        return self.wait_for_output(r"http://127.0.0.1:\d+", 400) + "/api"

    def ask(self, path: str, **query: Any) -> Any:
        request = urllib.request.Request(
            self.url + path, json.dumps(query).encode() if query else None, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=300) as answer:
            return json.load(answer)

    def runs(self) -> list[tuple[str, str]]:
        """Name and message of the state of every retraining that has begun, in order."""
        flows = self.ask("/flow_runs/filter", flows={"name": {"any_": ["retemper-retraining"]}}, sort="EXPECTED_START_TIME_ASC")
        started = [run["state"] for run in flows if run["state"]["type"] != "SCHEDULED"]
        return [(state["name"], state["message"] or "") for state in started]

    def stop(self, number: int) -> None:
        """Stop it by the signal; no process is left."""
        self.process.send_signal(number)
        assert self.process.wait(timeout=300) == (0 if number != signal.SIGKILL else -9)
        assert self.project.wait_for_end(), self.project.processes()


def ancestors(process: int) -> list[tuple[int, str]]:
    """Process ids and command lines, from `process` upwards."""
    processes = []
    while process > 1:
        processes.append((process, Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode()))
        process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    return processes


@contextmanager
def running_scheduler(project: Any, *arguments: str) -> Iterator[Served]:
    scheduler = Served(project, *arguments)
    try:
        yield scheduler
    finally:
        scheduler.process.kill()
        scheduler.process.wait()


def test_a_killed_retraining_is_reported_by_its_schedule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next run, which would report it, may be a week away. A failure of that ends no schedule."""
    reports: list[Path] = []

    def report_killed(project: Path) -> None:
        reports.append(project)
        raise UserError("no git")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(retrain, "report_killed", report_killed)
    monkeypatch.setattr(schedule, "_tidy", lambda _: None)
    monkeypatch.setattr(schedule, "_run_runner", lambda *_: None)
    monkeypatch.setattr(schedule, "AGAIN_SECONDS", 0.0)
    for seconds, times in ((3600.0, 1), (0.0, schedule.MOST_FAILURES)):
        reports.clear()
        monkeypatch.setattr(schedule, "LOOK_SECONDS", seconds)
        schedule._watch(Schedule("a", "0 3 * * 1", None, "UTC", "HEAD"), Processes(), None)
        assert reports == [tmp_path] * times


@pytest.mark.heavy
@pytest.mark.timeout(3600)  # eight minutes of a cron at least, and the machine may be busy
def test_three_scheduled_retrainings_a_kill_and_a_worse_corpus(retraining: Any) -> None:
    project = retraining
    del project.environment[FORKS]  # each run starts a server of its own, as a scheduled one does
    every_minute = ("--cron", "* * * * *")
    with running_scheduler(project, *every_minute) as scheduler:
        scheduler.wait_for_output("retraining promoted: a is the first champion", 600)
        first = project.champion()
        assert first.number == 1
        project.add(*[0.9] * 10)
        project.set_act("hang")
        stage = project.wait_for_start(400)
        above = ancestors(stage)
        runner = next(place for place, (_, command) in enumerate(above) if "flows.scheduling.schedule" in command)
        run = above[runner - 1][0]
        os.kill(run, signal.SIGKILL)  # half-way
        assert project.wait_until(lambda: not Path(f"/proc/{stage}").exists(), 30), "the stage ended with it"
        assert project.champion() == first
        project.set_act("")
        scheduler.wait_for_output("retraining promoted: a against champion/1", 600)
        second = project.champion()
        assert (second.number, second.replaced) == (2, 1)
        project.add(*[0.0] * 20)
        scheduler.wait_for_output("retraining refused: a against champion/2", 600)
        assert project.champion() == second
        assert project.wait_until(lambda: "Refused" in dict(scheduler.runs()), 60)
        states = scheduler.runs()
        names = [name for name, _ in states if name in ("Promoted", "Crashed", "Refused")]
        assert names == ["Promoted", "Crashed", "Promoted", "Refused"]
        url, deployments = scheduler.url, scheduler.ask("/deployments/filter", limit=10)
        keys = {artifact["key"] for artifact in scheduler.ask("/artifacts/filter", limit=200)}
        assert {"retraining", "report", "metrics"} <= keys
        print("\n".join(scheduler.lines), states, keys)
        scheduler.stop(signal.SIGTERM)

    with running_scheduler(project, *every_minute) as scheduler:
        assert scheduler.url == url, "the page has kept its address"
        scheduler.wait_for_output(" as retemper-retraining/", 400)
        assert [deployment["id"] for deployment in scheduler.ask("/deployments/filter", limit=10)] == [
            deployment["id"] for deployment in deployments
        ]
        assert scheduler.runs()[: len(states)] == states, "the history has outlived the server"
        project.add(*[2.0] * 40)
        project.set_act("hang")
        project.wait_for_start(400)
        scheduler.stop(signal.SIGKILL)  # all of it, with a run in progress
        assert project.champion() == second
    project.set_act("")

    with running_scheduler(project, *every_minute) as scheduler:
        scheduler.wait_for_output("1 killed runs are marked Crashed", 400)
        assert [name for name, _ in scheduler.runs()].count("Running") == 0
        scheduler.wait_for_output("retraining promoted: a against champion/2", 600)
        assert project.champion().number == 3
        print(scheduler.runs())
        scheduler.stop(signal.SIGINT)
    history = json.loads(project.call("champion", "history", "--json")[0])
    results = [entry["result"] for entry in history if entry["result"] != "unchanged"]
    assert results == ["promoted", "killed", "promoted", "refused", "killed", "promoted"]
    assert len(project.git("tag", "--list", "champion/*").splitlines()) == 3


POOL = """
import sys
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate, WorkPoolCreate
from prefect.workers.process import ProcessWorker
with get_client(sync_client=True) as client:
    template = ProcessWorker.get_default_base_job_template()
    client.create_work_pool(WorkPoolCreate(name="retraining", type="process", base_job_template=template))
    client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name="gpu-here", limit=1))
"""
TRIGGER = """
import sys
from prefect.client.orchestration import get_client
with get_client(sync_client=True) as client:
    for name in sys.argv[1:]:
        client.create_flow_run_from_deployment(client.read_deployment_by_name(f"retemper-retraining/{name}").id)
"""


@pytest.mark.heavy
def test_two_workers_share_a_pool_and_a_device(retraining: Any, server_url: str) -> None:
    """Two clones stand for two projects of a team, and two workers for two machines that share one device."""
    first = retraining
    first.environment["PREFECT_API_URL"] = server_url
    first.set_act("linger")
    folder = first.folder.parent / "other"
    first.git("clone", "--quiet", str(first.folder), str(folder))
    second = type(first)(folder, first.source, first.environment)

    def run_python(*arguments: str) -> None:
        subprocess.run([sys.executable, *arguments], env=first.environment, cwd=first.folder, check=True, capture_output=True, timeout=300)

    run_python("-c", POOL)
    for project, name in ((first, "one"), (second, "two")):
        out, _ = project.call("schedule", "--cron", "0 3 * * 1", "--pool", "retraining", "--name", name)
        assert out.startswith(f"retemper-retraining/{name} is deployed to pool retraining")
    run_python("-c", TRIGGER, "one", "two")
    worker = [sys.executable, "-m", "prefect", "worker", "start", "--pool", "retraining", "--limit", "1", "--name"]
    env = first.environment | {"RETEMPER_DEVICE_LIMIT": "gpu-here"}
    workers = [subprocess.Popen([*worker, name], env=env, cwd=first.folder.parent, start_new_session=True) for name in ("w1", "w2")]
    file = first.folder.parent / "times"
    try:  # not until both have a champion: the clone asks the other for its own
        assert first.wait_until(lambda: file.exists() and len(file.read_text().splitlines()) == 2, 900)
    finally:
        for process in workers:  # all is done; asked to end (SIGTERM), a worker may take minutes
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    times = sorted(tuple(map(float, line.split())) for line in file.read_text().splitlines())
    (_, end), (start, _) = times
    assert end <= start, "one at a time had the device"
