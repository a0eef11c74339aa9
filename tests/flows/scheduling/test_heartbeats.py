"""A killed worker's run becomes Crashed, one that lives never does: the automation, and the real thing."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args

import pytest
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import EventTrigger, Posture

from flows.champions.history import Result
from flows.process.prepared import FORKS
from flows.scheduling import heartbeats

TAG = "retemper-folder:0123456789ab"


def test_the_automation_awaits_every_end() -> None:
    """An end that it did not await would be followed by Crashed."""
    automation = heartbeats.silent_runs(TAG, 60)
    trigger = automation.trigger
    assert isinstance(trigger, EventTrigger)
    assert trigger.posture == Posture.Proactive
    assert trigger.within == timedelta(seconds=300), "five heartbeats"
    assert trigger.after == {"prefect.flow-run.heartbeat"}
    ends = {name.removeprefix("prefect.flow-run.") for name in trigger.expect}
    assert ends >= {"heartbeat", "Completed", "Failed", "Cancelled", "Crashed", "TimedOut", "Skipped"}
    assert ends >= {result.capitalize() for result in get_args(Result)}, "flows.scheduling.flow names the state after the result"
    assert not ends & {"Running", "Pending"}, "these would count as a sign of life once and for all"
    (action,) = automation.actions
    assert isinstance(action, ChangeFlowRunState) and action.state == StateType.CRASHED and not action.force


def test_the_frequency_is_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, seconds in (("", 60), ("120", 120), ("5", 30), ("often", 60)):
        monkeypatch.setenv(heartbeats.FREQUENCY, value)
        assert heartbeats.frequency() == seconds


REGISTER = """
import sys
from flows.pipeline.server import set_environment
set_environment()
from flows.scheduling import heartbeats
heartbeats.watch(sys.argv[1], int(sys.argv[2]))
"""


def test_registering_again_updates_the_automation(retraining: Any, server_url: str) -> None:
    for seconds in (60, 120):
        command = [sys.executable, "-c", REGISTER, TAG, str(seconds)]
        subprocess.run(
            command, env=retraining.environment | {"PREFECT_API_URL": server_url}, cwd=retraining.folder, check=True, timeout=300
        )
    ours = [automation for automation in ask(server_url, "/automations/filter", sort="CREATED_DESC") if TAG in automation["name"]]
    assert [(automation["name"], automation["trigger"]["within"], automation["enabled"]) for automation in ours] == [
        (f"Crash silent runs of {TAG}", 600, True)
    ]


def ask(url: str, path: str, **query: Any) -> Any:
    request = urllib.request.Request(url + path, json.dumps(query).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as answer:
        return json.load(answer)


def runs(url: str, deployment: str) -> list[tuple[str, str]]:
    """State and message of the deployment's run, then of the last pipeline in it: the first one only prepares the data."""
    (record,) = ask(url, "/deployments/filter", deployments={"name": {"any_": [deployment]}})
    outer = ask(url, "/flow_runs/filter", flow_runs={"deployment_id": {"any_": [record["id"]]}})
    started = [run for run in outer if run["state"]["type"] != "SCHEDULED"]
    inner = ask(url, "/flow_runs/filter", flow_runs={"parent_flow_run_id": {"any_": [run["id"] for run in started]}}) if started else []
    last = sorted(inner, key=lambda run: str(run["start_time"]))[-1:]
    return [(run["state"]["name"], run["state"]["message"] or "") for run in (*started, *last)]


def ancestors(process: int) -> list[int]:
    processes = []
    while process > 1:
        processes.append(process)
        process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    return processes


POOL = """
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.workers.process import ProcessWorker
with get_client(sync_client=True) as client:
    template = ProcessWorker.get_default_base_job_template()
    client.create_work_pool(WorkPoolCreate(name="mortal", type="process", base_job_template=template))
"""
TRIGGER = """
import sys
from prefect.client.orchestration import get_client
with get_client(sync_client=True) as client:
    for name in sys.argv[1:]:
        client.create_flow_run_from_deployment(client.read_deployment_by_name(f"retemper-retraining/{name}").id)
"""


@contextmanager
def worker(project: Any, name: str) -> Iterator[subprocess.Popen[bytes]]:
    """A worker that runs one run at a time, with the environment of `project`; only the deployment says how often a heart beats."""
    command = [sys.executable, "-m", "prefect", "worker", "start", "--pool", "mortal", "--limit", "1", "--name", name]
    environment = {name: value for name, value in project.environment.items() if name != heartbeats.FREQUENCY}
    process = subprocess.Popen(command, env=environment, cwd=project.folder.parent, start_new_session=True)
    try:
        yield process
    finally:  # asked to end (SIGTERM), a worker may take minutes
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.heavy
@pytest.mark.timeout(1800)
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_killed_worker_is_crashed_and_a_long_run_is_not(retraining: Any, server_url: str) -> None:
    """Two clones, two workers; one is killed with all its children, the other's run takes longer than the dead one's silence."""
    killed = retraining
    killed.environment |= {"PREFECT_API_URL": server_url, heartbeats.FREQUENCY: str(heartbeats.LEAST)}
    del killed.environment[FORKS]  # its stages are to be children of the worker
    top = killed.folder.parent
    killed.git("clone", "--quiet", str(killed.folder), str(top / "other"))
    living = type(killed)(top / "other", killed.source, killed.environment | {"TOY_ACTS": str(top / "other.acts")})

    def run_python(*arguments: str) -> None:
        subprocess.run(
            [sys.executable, *arguments],
            env=killed.environment,
            cwd=killed.folder,
            check=True,
            capture_output=True,
            timeout=300,
        )

    run_python("-c", POOL)
    for project, name in ((killed, "killed"), (living, "living")):
        project.set_act("wait")
        project.call("schedule", "--cron", "0 3 * * 1", "--pool", "mortal", "--name", name)
    with worker(killed, "first") as first:
        run_python("-c", TRIGGER, "killed")
        stage = killed.wait_for_start(600)
        with worker(living, "second"):  # the first one is busy
            run_python("-c", TRIGGER, "living")
            living.wait_for_start(600)
            above = ancestors(stage)
            for process in reversed(above[: above.index(first.pid) + 1]):
                os.kill(process, signal.SIGKILL)
            assert killed.wait_until(lambda: not Path(f"/proc/{stage}").exists(), 30)
            assert [name for name, _ in runs(server_url, "killed")] == ["Running", "Running"], "nobody has noticed"
            assert killed.wait_until(lambda: {name for name, _ in runs(server_url, "killed")} == {"Crashed"}, 600)
            assert runs(server_url, "killed")[0][1].startswith("no heartbeat for 150 s: its worker was killed or lost")
            assert [name for name, _ in runs(server_url, "living")] == ["Running", "Running"]
            living.set_act("")
            assert living.wait_until(lambda: "Running" not in dict(runs(server_url, "living")), 600)
            assert [name for name, _ in runs(server_url, "living")] == ["Promoted", "Completed"]
            time.sleep(180)  # longer than a silence: an end is a sign of life, too
            assert [name for name, _ in runs(server_url, "living")] == ["Promoted", "Completed"]
