"""What a failed retraining says: of the data that it had merged, and of settings."""

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from dvc.config import Config

from flows.batches import merge
from flows.champions import history, machines
from flows.champions import tree as retraining_tree
from flows.pipeline.run import StagesFailed
from flows.retraining import retrain
from tasks.core.errors import Problem, UserError


def test_an_error_in_the_merged_data_set_names_the_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    (tmp_path / "batch").mkdir()
    (tmp_path / "batch/corpus.jsonl").write_text('{"_id": "d1", "text": "one"}\n')
    folder = retraining_tree.folder_of(tmp_path)
    merge.merge_folders([tmp_path / "batch"], folder / merge.OUT, folder / merge.STAMP)
    problem = Problem("stage", f"prepare: {folder / merge.OUT}/corpus.jsonl:1: wrong", 2)

    def fail_retraining(*_: Any, **__: Any) -> Any:
        raise StagesFailed([problem], 2)

    monkeypatch.setattr(retrain, "_retrain_once", fail_retraining)
    monkeypatch.setattr(retraining_tree, "prepare", lambda *_: retraining_tree.Tree(tmp_path, tmp_path, "", None))
    reason = retrain.retrain(tmp_path).reason
    assert reason.startswith(f"{problem.message} (merged from {tmp_path}/batch/corpus.jsonl; to exclude a batch"), reason


def test_settings_that_dvc_refuses_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    (tmp_path / "config").write_text("[core]\n    foo = 1\n")
    monkeypatch.setattr(retrain, "_retrain_until_settled", lambda *_, **__: Config(str(tmp_path)))
    outcome = retrain.retrain(tmp_path)
    assert outcome.result == "failed" and outcome.reason.startswith(".dvc/config (or config.local there): refused by DVC (extra keys"), (
        outcome
    )
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(("problem", "result"), [(UserError("disk: full"), "failed"), (KeyboardInterrupt(), "stopped")])
def test_what_goes_wrong_after_a_superseded_promotion_is_an_entry_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: BaseException, result: str
) -> None:
    """The first attempt promotes, another machine was first, and the second one fails or is stopped."""
    attempts: list[history.Ended] = []

    def retrain_once(_: Path, __: Any, begun: history.Ended, **___: Any) -> history.Ended:
        attempts.append(begun)
        if len(attempts) == 2:
            raise problem
        return replace(begun, result="promoted", reason="better", commit="c0ffee")

    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    monkeypatch.setattr(retrain, "_retrain_once", retrain_once)
    monkeypatch.setattr(retraining_tree, "prepare", lambda *_: retraining_tree.Tree(tmp_path, tmp_path, "", None))
    monkeypatch.setattr(machines, "push", lambda _: machines.Met(again=True))
    if result == "stopped":
        with pytest.raises(KeyboardInterrupt):
            retrain.retrain(tmp_path)
    else:
        assert retrain.retrain(tmp_path).id == attempts[1].id
    entries = [(entry.id, entry.result) for entry in history.read_history(tmp_path)]
    assert entries == [(attempts[0].id, "promoted"), (attempts[1].id, result)] and attempts[0].id != attempts[1].id
