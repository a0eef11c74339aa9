"""A stage whose sources change while its command runs fails, and its outs are not cached."""

import json
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace

import pytest
from dvc.stage import run
from dvc.stage.exceptions import StageCmdFailedError

from flows.storage import outside
from tasks.core.errors import PROBLEM
from tasks.core.stage.entry import SOURCES


@pytest.mark.parametrize(("changed", "named"), [([], ""), (["/a"], "/a"), (list("abcde"), "a, b, c and 2 more")])
def test_a_stage_whose_sources_changed_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], changed: list[str], named: str
) -> None:
    ran: list[str] = []
    record = {"problem": "", "files": {"corpus.jsonl": [1]}}
    (tmp_path / "watched.json").write_text(json.dumps(record))
    monkeypatch.setenv(SOURCES, str(tmp_path / "watched.json"))
    monkeypatch.setenv(outside.KINDS, "dataset,encoder")
    monkeypatch.setenv(PROBLEM, str(tmp_path / "problems.json"))
    monkeypatch.setattr(run, "cmd_run", lambda stage, **_: ran.append(stage.addressing))

    def compare(files: object, kinds: Iterable[str]) -> list[str]:
        return changed if (files, [*kinds]) == (record["files"], ["dataset", "encoder"]) and ran else ["compared too early"]

    monkeypatch.setattr(outside, "changes", compare)
    outside.refuse_changed_sources()
    stage = SimpleNamespace(addressing="prepare", cmd="python -m tasks.prepare")
    if not changed:
        run.cmd_run(stage, dry=False)
        assert ran == ["prepare"] and not (tmp_path / "problems.json").exists()
        return
    with pytest.raises(StageCmdFailedError):
        run.cmd_run(stage, dry=False)
    message = f"{named}: changed while prepare ran; its output was discarded, run again"
    assert capsys.readouterr().err == f"retemper: {message}\n"
    [problem] = json.loads((tmp_path / "problems.json").read_text())
    assert problem["message"] == message and problem["kind"] == "changed"


def test_without_a_record_nothing_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    before = run.cmd_run
    monkeypatch.delenv(SOURCES, raising=False)
    outside.refuse_changed_sources()
    assert run.cmd_run is before
