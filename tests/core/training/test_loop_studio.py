"""A training tells DVC Studio nothing, whatever token the user has: its texts and its repository's address may be private."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dvclive import Live

from flows.process.processes import environment
from tasks.core.training.loop import live_curves, log_point
from tests.loopback import on_loopback


def plain_curves(folder: Path) -> Live:
    return Live(str(folder), dvcyaml=None, save_dvc_exp=False, report=None, monitor_system=False)


@pytest.mark.parametrize(("curves", "posts"), [(plain_curves, True), (live_curves, False)])
def test_curves_stay_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, curves: Callable[[Path], Live], posts: bool) -> None:
    requests: list[str] = []

    async def app(scope: Any, _receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            requests.append(scope["path"])
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"{}"})

    for command in (
        "init -q",
        "remote add origin https://example.invalid/me/private.git",
        "-c user.name=a -c user.email=a commit -q --allow-empty -m one",
    ):
        subprocess.run(["git", *command.split()], cwd=tmp_path, check=True)
    subprocess.run([sys.executable, "-m", "dvc", "init", "-q"], cwd=tmp_path, check=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DVC_STUDIO_OFFLINE", "0")
    with on_loopback(app) as address:
        monkeypatch.setenv("DVC_STUDIO_URL", address)
        monkeypatch.setenv("DVC_STUDIO_TOKEN", "token")
        with curves(tmp_path / "curves") as live:
            log_point(live, {"step": 0, "loss": 1.0})
    assert bool(requests) is posts, requests


def test_commands_are_told_too() -> None:
    assert environment()["DVC_STUDIO_OFFLINE"] == "1"
