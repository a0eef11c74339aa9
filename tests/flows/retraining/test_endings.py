"""What people are sent about how a retraining ended: before all that may be slow, and also if it was stopped or killed."""

import json
import subprocess
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from flows.champions import history
from flows.champions import tree as retraining_tree
from flows.retraining import retrain


@pytest.fixture
def events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A repository's notices, pushes, and pages, in order."""
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    happened: list[str] = []
    push = retrain.machines.push
    monkeypatch.setattr(retrain.notify, "notify", lambda event, *_, **__: happened.append(event))
    monkeypatch.setattr(retrain.machines, "push", lambda project: happened.append("push") or push(project))
    monkeypatch.setattr(retrain, "read_export", lambda _: None)
    monkeypatch.setattr(retrain.outcome, "show", lambda *_: happened.append("page"))
    return happened


def test_a_notice_waits_for_no_remote_and_no_page(events: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A remote that does not answer may be why it failed."""
    ended = history.Ended("1", "failed", "no room", "now")
    monkeypatch.setattr(retrain, "_retrain_until_settled", lambda *_, **__: ended)
    retrain.retrain(tmp_path)
    assert events == ["failed", "push"]
    monkeypatch.setattr(retrain, "_retrain_until_settled", lambda *_, **__: replace(ended, id="2", result="refused", commit="f" * 40))
    retrain.retrain(tmp_path)
    assert events == ["failed", "push", "refused", "page"]


@pytest.mark.parametrize(("recorded", "expected"), [(True, ["promoted"]), (False, [])])
def test_a_promotion_is_reported_even_if_its_push_is_stopped(
    events: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, recorded: bool, expected: list[str]
) -> None:
    """By the next run, as after a kill: the branch has the record, and the champion is crowned."""
    on_branch: list[history.Ended] = []

    def stop_in_push(_project: Path, _follow: str, attempt: Any, **_: object) -> None:
        if recorded:
            on_branch.append(replace(attempt.begun, result="promoted", reason="it is better", commit="f" * 40))
        raise KeyboardInterrupt

    monkeypatch.setattr(retrain, "_retrain_until_settled", stop_in_push)
    monkeypatch.setattr(history, "read_history", lambda _: on_branch)
    with pytest.raises(KeyboardInterrupt):
        retrain.retrain(tmp_path)
    assert (tmp_path / history.AT_WORK).exists() == recorded
    assert (tmp_path / history.HISTORY).exists() != recorded, "a run that recorded nothing is stopped"
    assert events == []
    unchanged = history.Ended("2", "unchanged", "as it was", "now")
    monkeypatch.setattr(retrain, "_retrain_until_settled", lambda *_, **__: unchanged)
    retrain.retrain(tmp_path)
    assert events == [*expected, "push"]


def test_a_killed_run_is_reported_once_and_never_while_it_works(events: list[str], tmp_path: Path) -> None:
    retrain.report_killed(tmp_path)
    assert not events, "none was killed"
    note = tmp_path / history.AT_WORK
    note.parent.mkdir()
    note.write_text(json.dumps(asdict(history.Ended("1", "killed", "killed half-way", "then"))))
    for hold in (retraining_tree.hold_for_retraining, retraining_tree.hold_for_dry_run):
        with hold(tmp_path):
            retrain.report_killed(tmp_path)
    assert not events and note.exists()
    for _ in range(2):
        retrain.report_killed(tmp_path)
    assert events == ["killed"]
    assert not note.exists()
    assert [entry.result for entry in history.read_history(tmp_path)] == ["killed"]
