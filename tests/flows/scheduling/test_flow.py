"""The flow that a schedule starts."""

import errno
import logging
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flows.champions import tree as retraining_tree
from flows.champions.history import Ended
from flows.pages import measured
from flows.process import locks
from flows.repository.git import git
from flows.retraining import pipeline, retrain
from flows.scheduling import flow


def test_a_retraining_without_change_is_one_dated_line_and_no_notice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A schedule may start one every minute."""

    def run_unchanged(_project: Path, _tree: Any, record: Any, **options: Any) -> Any:
        pipeline.run_pipeline(**options)
        return replace(record, result="unchanged", reason="as it was")

    events: list[str] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(retrain, "_retrain_once", run_unchanged)
    monkeypatch.setattr(pipeline.run, "run", lambda *_, nested, **__: None if nested else print("a table"))
    monkeypatch.setattr(retraining_tree, "prepare", lambda *_: retraining_tree.Tree(tmp_path, tmp_path, "", None))
    monkeypatch.setattr(retrain.notify, "notify", lambda event, *_, **__: events.append(event))
    monkeypatch.setattr(flow, "get_run_logger", lambda: logging.getLogger("a test's"))
    monkeypatch.setattr(flow, "_publish", lambda *_: None)
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    assert flow.scheduled.fn().name == "Unchanged"
    (line,) = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"[\dT:.-]+\+00:00 retraining unchanged: as it was", line)
    assert events == []


@pytest.mark.parametrize("where", [flow, retrain.retraining_tree])
def test_a_lock_that_belongs_to_root_is_one_line_and_a_notice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: Any) -> None:
    """After one `sudo retemper retrain`, each run ended in a traceback on Prefect's page, and nobody was told."""

    @contextmanager
    def refuse(*_: Any) -> Iterator[None]:
        raise PermissionError(errno.EACCES, "Permission denied", "retrain.lock")
        yield

    notices: list[tuple[str, str]] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(where, "hold_for_retraining", refuse)
    monkeypatch.setattr(flow.notify, "notify", lambda event, text, *_, **__: notices.append((event, text)))
    state = flow.scheduled.fn()
    assert state.name == "Failed" and str(state.message).startswith("retrain.lock: Permission denied; ")
    assert notices == [("failed", f"{tmp_path.name}: retraining failed: {state.message}")]


def test_only_a_run_that_finds_another_one_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A suspended dry run made every scheduled retraining end as Skipped, for weeks, without a notice."""
    notices: list[str] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(retraining_tree, "WAIT_SECONDS", 0.0)
    monkeypatch.setattr(flow.notify, "notify", lambda event, *_, **__: notices.append(event))
    with locks.hold_run_lock(tmp_path / retraining_tree.LOCK):
        assert (flow.scheduled.fn().name, notices) == (flow.SKIPPED, [])
    with locks.hold_run_lock(tmp_path / retraining_tree.LOOK):
        state = flow.scheduled.fn()
    assert (state.name, notices) == ("Failed", ["failed"])
    assert "another process has held it for 0 s" in str(state.message)


def test_the_page_of_a_project_in_a_subfolder_is_linked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folder in the worktree has the same prefix. The page is the one with the outcome and the batches."""
    project, links = tmp_path / "law", list[str]()
    page = project / retraining_tree.FOLDER / "law" / measured.PAGE
    page.parent.mkdir(parents=True)
    page.touch()
    git("init", "--quiet", folder=tmp_path)
    monkeypatch.setattr(flow, "create_markdown_artifact", lambda *_, **__: None)
    monkeypatch.setattr(flow, "create_link_artifact", lambda link, *_, **__: links.append(link))
    flow._publish(project, Ended("1", "refused", "worse", "now"))
    assert links == [page.as_uri()]
