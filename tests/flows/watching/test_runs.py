"""Runs as they are found: in the project and its worktrees, alive or not, and the time that they still need."""

import json
import os
import re
import socket
import subprocess
from dataclasses import asdict, replace
from pathlib import Path

import psutil
import pytest
from fastapi.testclient import TestClient

from flows.watching.record import BEFORE, RECORD, RunNow, StageNow
from flows.watching.runs import Seen, find, left_by_progress, progress_share, seconds_left
from flows.watching.watch import create_app, lines
from tasks.core.stage import progress

OURS = RunNow("retemper run", os.getpid(), psutil.Process().create_time(), socket.gethostname(), 100.0, (StageNow("prepare"),))


def write_record(run: RunNow, folder: Path, name: Path = RECORD) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps(asdict(run)))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project in a folder of its repository, as `retemper new` may make one, with a worktree in it."""
    folder = tmp_path / "repository" / "below"
    folder.mkdir(parents=True)
    (folder / "params.yaml").write_text("a: 1\n")
    for words in (("init", "-q"), ("add", "."), ("commit", "-qm", "start"), ("worktree", "add", "-q", "--detach", "below/.retemper/tree")):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=folder.parent, check=True)
    return folder


def test_runs_of_the_project_and_of_its_worktrees(project: Path) -> None:
    assert find(project) == []
    write_record(replace(OURS, ended=200.0, stages=()), project)
    write_record(replace(OURS, began=50.0, command="retemper retrain"), project / ".retemper/tree/below")
    runs = find(project)
    assert [(entry.place, entry.state, entry.run.command) for entry in runs] == [
        (".retemper/tree/below", "running", "retemper retrain"),
        ("this folder", "done", "retemper run"),
    ]
    assert runs[0].folder == (project / ".retemper/tree/below").resolve()


def test_names_that_are_not_utf8_are_shown(tmp_path: Path) -> None:
    """The page was an error 500: its text cannot be encoded."""
    place = Path(os.fsdecode(os.fsencode(tmp_path) + b"/Gr\xfc\xdfe"))
    tree = place / Path(os.fsdecode(b".retemper/\xfcbung"))
    place.mkdir()
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], cwd=place, check=True)
    subprocess.run([*git, "commit", "-qm", "start", "--allow-empty"], cwd=place, check=True)
    subprocess.run([*git, "worktree", "add", "-q", "--detach", os.fsencode(tree)], cwd=place, check=True)
    for folder in (place, tree):
        write_record(replace(OURS, ended=200.0), folder)
    client = TestClient(create_app(place), base_url="http://localhost")
    assert "Gr\ufffd\ufffde" in client.get("/").text
    first = client.get("/api/now").json()["parts"]
    assert ".retemper/\ufffdbung" in first["runs"]
    (link,) = re.findall(r'href="\?place=(.retemper[^"]*)"', first["runs"])
    assert ".retemper/\ufffdbung" in client.get(f"/api/now?place={link}").json()["parts"]["state"]
    assert lines(find(place)[0]).encode()


@pytest.mark.parametrize(
    ("run", "state"),
    [
        (OURS, "running"),
        (replace(OURS, born=OURS.born - 60), "killed"),  # the number is another process's now
        (replace(OURS, process=2**22 + 7), "killed"),
        (replace(OURS, host="another", process=2**22 + 7), "running"),
        (replace(OURS, ended=200.0, stages=(StageNow("a", "ran"), StageNow("b", "cached"))), "done"),
        (replace(OURS, ended=200.0, stages=(StageNow("a", "ran"), StageNow("b", "skipped"))), "failed"),  # Prefect ended it
        (replace(OURS, ended=200.0, problem="stopped"), "stopped"),
        (replace(OURS, ended=200.0, problem="no such disk"), "failed"),
        (replace(OURS, ended=200.0, stages=(StageNow("prepare", "failed"),)), "failed"),
        (replace(OURS, ended=200.0, problem="stopped", stages=(StageNow("a", "failed"),)), "failed"),
    ],
)
def test_how_a_run_stands(project: Path, run: RunNow, state: str) -> None:
    write_record(run, project)
    assert [entry.state for entry in find(project)] == [state]


def test_a_command_may_go_on_after_its_run(project: Path) -> None:
    """A retraining, for example, then compares models. It is listed before a later run whose command has ended."""
    ended = replace(OURS, ended=200.0, stages=())
    tree = project / ".retemper/tree/below"
    write_record(ended, tree)
    write_record(replace(ended, began=150.0, process=2**22 + 7), project)
    assert [(entry.place, entry.state, entry.continues) for entry in find(project)] == [
        (".retemper/tree/below", "done", True),
        ("this folder", "done", False),
    ]
    for other in (OURS, replace(ended, born=OURS.born - 60), replace(ended, host="another")):
        write_record(other, tree)
        assert not any(entry.continues for entry in find(project)), other


def test_what_a_command_does_before_its_first_run_is_shown_until_that_begins(project: Path) -> None:
    """A retraining, for example, checks batches, in the tree that has the record of the last retraining's run."""
    former = replace(OURS, began=50.0, ended=60.0, process=2**22 + 7, stages=(StageNow("report", "ran"),))
    checking = replace(OURS, stages=(StageNow("checking batches", "running"),), part=True)
    write_record(checking, project, BEFORE)
    assert [entry.state for entry in find(project)] == ["running"], "there may be no run yet"
    write_record(former, project)
    for run in (checking, replace(checking, ended=170.0)):
        write_record(run, project, BEFORE)
        assert [entry.run for entry in find(project)] == [run]
    begun = replace(OURS, began=171.0)
    write_record(begun, project)
    assert [entry.run for entry in find(project)] == [begun]
    write_record(former, project)
    write_record(replace(checking, process=2**22 + 7), project, BEFORE)
    assert [entry.run for entry in find(project)] == [former], "its process is gone"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("train star: 120/400 steps, 3.2/s, 0m40s, 1m20s left, loss 0.5", 0.3),
        ("encode: 1,500/2,000 documents, 9.1/s, 0m40s", 0.75),
        ("encode: 1,500 documents, 9.1/s", None),
        ("resumed: 0/0 steps", None),
        ("at 3/4 of a/b", None),
        ("again: 5/4 steps", 1.0),
        ("", None),
        ("train a: ,/5", None),  # a line of a stage's own
        ("train a: 5/,", None),
        (f"train a: {'9' * 400}/1", None),
    ],
)
def test_the_share_that_is_done(line: str, expected: float | None) -> None:
    assert progress_share(line) == expected


def test_the_time_left_is_what_stages_may_take() -> None:
    stages = (StageNow("a", "ran", 50.0, 0.0, 40.0), StageNow("b", "running", 30.0, 100.0), StageNow("c", estimate=7.0))
    run = replace(OURS, stages=stages)
    assert seconds_left(run, 110.0) == (27.0, 0), "20 of b, 7 of c"
    assert seconds_left(run, 140.0) == (7.0, 0), "b is late, and says nothing"
    resumed = replace(stages[1], said="train: 39/40 steps, 0.1/s, 0m00s, 0m10s left, loss 0.5")
    assert seconds_left(replace(run, stages=(resumed,)), 105.0) == (10.0, 0), "its own word, though 25 of its estimate are left"
    assert seconds_left(replace(run, stages=(*stages, StageNow("d"))), 110.0) == (27.0, 1), "d is unknown"
    without_estimate = replace(resumed, estimate=None)
    assert seconds_left(replace(run, stages=(without_estimate,)), 110.0) == (10.0, 0)
    assert seconds_left(replace(run, stages=(replace(without_estimate, said="train: 1/4 steps"),)), 110.0) == (0.0, 1)
    assert seconds_left(replace(run, stages=(StageNow("a", "skipped"),)), 110.0) == (0.0, 0)
    same_kinds = (
        StageNow("train@a", "ran", None, 0.0, 40.0),
        StageNow("train@b", "ran", None, 40.0, 60.0),
        StageNow("train@c"),
        StageNow("mine@c"),
    )
    assert seconds_left(replace(run, stages=same_kinds), 70.0) == (30.0, 1), "as long as those of its kind; mine is unknown"
    assert Seen("this folder", Path(), run, alive=True, recorded_at=100.0).state == "running"


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0m40s, 1m20s left, loss 0.5", 80.0), ("9.1/s, 2h03m, 1h02m left", 3720.0), ("0m40s, loss 0.5", 0.0), ("12m left", 0.0)],
)
def test_what_a_line_of_progress_says_is_left(text: str, expected: float) -> None:
    assert left_by_progress(f"train star: 1/4 steps, {text}") == expected


def test_lines_of_progress_are_understood(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """As tasks.core.stage.progress writes them."""
    clock = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    bar = progress.Progress("train star (cpu, fp32)", 5000, "steps")
    bar.skip(1000)
    for seconds, expected in ((40.0, 120.0), (4000.0, 12000.0)):
        clock[0] = 100.0 + seconds
        bar.done = 2000
        bar.reported = 0.0
        bar.advance(0, "loss 0.5")
        line = capsys.readouterr().err.strip()
        assert (progress_share(line), left_by_progress(line)) == (0.4, expected), line


def test_what_runs_here_is_known_where_git_refuses(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_record(OURS, project)
    for command in ("echo \"fatal: detected dubious ownership in repository at 'x'\" >&2; exit 128", None):
        tools = project / "tools"
        tools.mkdir(exist_ok=True)
        (tools / "git").unlink(missing_ok=True)
        if command:
            (tools / "git").write_text(f"#!/bin/sh\n{command}\n")
            (tools / "git").chmod(0o755)
        monkeypatch.setenv("PATH", str(tools))
        assert [entry.place for entry in find(project)] == ["this folder"]
