"""What is checked before a run."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flows.parameters import sources
from flows.parameters.edit import apply as apply_edits
from flows.parameters.edit import setting
from flows.pipeline.plan import check_parameters, with_analyses, with_report
from flows.repository.graph import Graph, Stage
from flows.repository.lock import LOCK, read_lock
from flows.repository.worktree import SECOND
from flows.storage import cache
from tasks.core.errors import UserError
from tasks.core.stage.frozen import freeze_parameters


def test_names_of_what_is_compared_are_not_checked_in_a_second_tree(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`retemper evaluate` measures one model under the project's settings, which may name others."""
    shutil.copy(checkout / "params.yaml", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sources, "write_source", lambda **_: None)
    apply_edits([setting("failures.model", "gone")], Path("params.yaml"), json.dumps)
    with pytest.raises(UserError, match=r"^params\.yaml: failures\.model: found 'gone', expected one of bm25, "):
        check_parameters()
    monkeypatch.setenv(SECOND, "1")
    check_parameters()


def test_what_runtime_says_is_refused_before_any_stage_begins(checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(checkout / "params.yaml", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sources, "write_source", lambda **_: None)
    Path("runtime.yaml").write_text("treads: 2\n")
    with pytest.raises(UserError, match=r"^runtime\.yaml: treads: unknown key, expected one of device, threads, "):
        check_parameters()
    Path("runtime.yaml").write_text("threads: 2\n")
    check_parameters()


def test_pages_show_what_the_report_needs_whatever_the_targets() -> None:
    reads = {"train": (), "pretrain": (), "study": ("train",), "report": ("train", "pretrain"), "analyses": ("train",)}
    graph = Graph({name: Stage(name, above, ()) for name, above in reads.items()})
    assert list(with_report(graph.upstream_of(["study"]), graph).stages) == ["train", "pretrain", "study", "report"]
    assert list(with_report(graph.upstream_of(["report"]), graph).stages) == ["train", "pretrain", "report"]
    alone = Graph({"train": Stage("train", (), ())})
    assert with_report(alone, alone) == alone


ANALYSES = """
  analyses:
    foreach: {one: {round: a}, other: {round: b}, third: {round: b}}
    do:
      cmd: python step.py data/analyses/${key} analyzed data/encoders/${item.round}
      deps: ["data/encoders/${item.round}"]
      outs: ["data/analyses/${key}"]
"""


def test_pages_keep_an_analysis_until_its_round_changes(finished_toy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = finished_toy.folder / "dvc.yaml"
    graph.write_text(graph.read_text() + ANALYSES)
    finished_toy.run("analyses@one", "analyses@other")
    monkeypatch.chdir(finished_toy.folder)
    prepare_only = Graph({"prepare": Stage("prepare", (), ())})
    assert set(with_analyses(prepare_only).stages) == {"prepare", "train@a", "train@b", "analyses@one", "analyses@other"}
    finished_toy.set_rounds(a="9", b="2")
    finished_toy.run()
    assert set(with_analyses(prepare_only).stages) == {"prepare", "train@b", "analyses@other"}


def test_a_dry_run_in_a_clone_says_what_a_run_looks_for_on_the_remote(finished_toy: Any, tmp_path: Path, executed: Any) -> None:
    remote = tmp_path / "remote"
    assert finished_toy.call("remote", "add", "team", str(remote)).returncode == 0
    finished_toy.run()
    finished_toy.command("git", "add", "--all")
    finished_toy.command("git", "commit", "--quiet", "-m", "shared")
    finished_toy.command("git", "clone", "--quiet", str(finished_toy.folder), str(tmp_path / "clone"))
    clone = type(finished_toy)(tmp_path / "clone", finished_toy.environment)
    remote.rename(tmp_path / "away")
    result = clone.call("run", "--dry-run")
    message = "remote team was not asked: if it has the files that dvc.lock names, 6 of these will not run"
    assert (result.returncode, result.stderr, result.stdout.splitlines()[-1]) == (0, "", message), "it works offline"
    clone.set_rounds(a="1", b="7")
    assert "3 of these will not run" in clone.call("run", "--dry-run").stdout, "prepare, train@a, evaluate@a"
    clone.set_rounds(a="1", b="2")
    assert not list((clone.folder / "data").rglob("*.txt"))
    (tmp_path / "away").rename(remote)
    assert executed(clone.run()) == set()
    clone.set_rounds(a="1", b="7")
    assert "dvc.lock names" not in clone.call("run", "--dry-run").stdout, "nothing is to be pulled"


def test_a_dry_run_names_no_stage_whose_outs_are_only_to_be_checked_out(finished_toy: Any, executed: Any) -> None:
    """As in a new worktree, such as that of the first retraining."""
    objects = finished_toy.folder / ".dvc/cache/files/md5"
    outs = {out["path"]: out["md5"] for entry in read_lock(finished_toy.folder / LOCK).values() for out in entry["outs"]}
    shutil.rmtree(finished_toy.folder / "data")
    assert finished_toy.call("run", "--dry-run").stdout == "0 stages may run: everything is up to date\n"
    finished_toy.set_rounds(a="7", b="2")
    expected = {"train@a", "evaluate@a", "report"}
    assert {stage["stage"] for stage in json.loads(finished_toy.call("run", "--dry-run", "--json").stdout)} == expected
    finished_toy.set_rounds(a="1", b="2")
    for oid in cache.contents(objects, outs["data/encoders/b"]):
        cache.object_path(objects, oid).unlink()
    expected = {"train@b", "evaluate@b", "report"}
    assert {stage["stage"] for stage in json.loads(finished_toy.call("run", "--dry-run", "--json").stdout)} == expected
    assert "train@b" in executed(finished_toy.run())


PLAN_DURING_AN_EDIT = """
from pathlib import Path
from flows.pipeline import plan
from flows.process.processes import Processes

restore, graph = plan.sync.restore, Path("dvc.yaml")

def restore_and_edit(processes, stages):
    restore(processes, stages)
    graph.write_text(graph.read_text().replace("evaluated", "another"))

plan.sync.restore = restore_and_edit
print("changed:", *plan.make_plan(["report"], Processes(), print, check=lambda: None).changed)
"""


def test_an_edit_while_outs_are_fetched_counts_for_the_next_run(toy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The status after it was of the edited graph: stages ran that had not changed when the run began."""
    monkeypatch.chdir(toy.folder)
    freeze_parameters()
    toy.command(sys.executable, "-m", "dvc", "repro", "report")
    shutil.rmtree("data/encoders")
    command = [sys.executable, "-c", PLAN_DURING_AN_EDIT]
    planned = subprocess.run(command, env=toy.environment, capture_output=True, text=True, check=False)
    assert (planned.stdout, planned.stderr) == ("changed:\n", "")
    assert Path("data/encoders/b").exists() and "another" in Path("dvc.yaml").read_text()


def test_a_remote_does_not_lack_what_nobody_has_made(served_toy: Any, tmp_path: Path) -> None:
    """Stages without parameters, before their first run: to DVC, their files are missing, as in a clone."""
    served_toy.command(sys.executable, "-m", "dvc", "remote", "add", "--default", "team", str(tmp_path / "remote"))
    (tmp_path / "remote").mkdir()
    (tmp_path / "remote/retemper.json").write_text("{}")
    assert "the remote" not in served_toy.call("run", "evaluate@a", "--dry-run").stdout
    result = served_toy.call("run", "evaluate@a")
    assert (result.returncode, result.stderr) == (0, "")
