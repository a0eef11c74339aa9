"""When a Prefect server of ours ends: what the user is told."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flows.pipeline import run, server
from flows.pipeline.plan import Plan
from flows.process.display import Display
from flows.process.processes import Processes
from flows.repository.graph import Graph, Stage


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("import os; os.kill(os.getpid(), 9)", r"was killed \(SIGKILL\)"),
        ("raise SystemExit(3)", "ended with status 3"),
        ("import time; time.sleep(600)", "has not answered in 0.2 s"),
    ],
)
def test_a_server_that_never_answers_is_one_line(script: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(server, "SERVER", [sys.executable, "-c", script])
    monkeypatch.setattr(server, "START_SECONDS", 0.2 if "sleep" in script else 300)
    ours = server.Server()
    try:
        with pytest.raises(server.Ended, match=rf"^Prefect's server, started by this run, {reason}; run again .*its log: ") as error:
            ours.wait()
        assert "\n" not in str(error.value)
    finally:
        ours.close()


@pytest.mark.parametrize("alive", [False, True])
def test_a_server_killed_during_a_run_is_named_instead_of_prefects_error(alive: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = server.Server.__new__(server.Server)
    ours._process = SimpleNamespace(poll=lambda: None if alive else -9)  # type: ignore[assignment]

    def execute(*_: Any, **__: Any) -> None:
        raise ConnectionError("All connection attempts failed")

    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setattr(server, "use_server", lambda: ours)
    monkeypatch.setitem(sys.modules, "flows.pipeline.flow", SimpleNamespace(execute=execute))  # type: ignore[arg-type]
    monkeypatch.setattr(run, "refuse_full_disk", lambda _: None)
    plan = Plan(Graph({"a": Stage("a", (), ())}), frozenset({"a"}), None, False, None)
    with pytest.raises(ConnectionError if alive else server.Ended):
        run._execute(plan, Processes(), Display(), clock=None, gate=lambda: None)  # type: ignore[arg-type]


def test_runs_on_a_server_of_ours_send_no_heartbeats() -> None:
    from prefect.settings import PREFECT_API_URL, get_current_settings, temporary_settings

    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:1/api"}), server.without_heartbeats():
        assert get_current_settings().flows.heartbeat_frequency is None
        assert PREFECT_API_URL.value() == "http://127.0.0.1:1/api"
    assert get_current_settings().flows.heartbeat_frequency
