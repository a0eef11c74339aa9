"""Two branches that each add a round: their params.yaml and dvc.lock are merged, and nothing is computed again."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from flows.repository.merge import is_recorded, merge_locks, merge_params
from tasks.core.errors import UserError


def git(toy: Any, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *words], cwd=toy.folder, env=toy.environment, capture_output=True, text=True)


def test_two_branches_that_each_add_a_round_are_merged_by_one_command(finished_toy: Any, executed: Callable[..., set[str]]) -> None:
    git(finished_toy, "add", "dvc.lock")
    git(finished_toy, "commit", "--quiet", "-m", "computed")
    for name in ("c", "d"):
        git(finished_toy, "checkout", "--quiet", "-b", name, "HEAD" if name == "c" else "HEAD~1")
        finished_toy.set_rounds(a="1", b="2", **{name: name})
        assert executed(finished_toy.run()) == {f"train@{name}", f"evaluate@{name}", "report"}
        assert git(finished_toy, "commit", "--quiet", "-am", name).returncode == 0
    assert git(finished_toy, "merge", "c").returncode == 1
    for command in (("run",), ("search", "x")):
        conflict = finished_toy.call(*command)
        assert conflict.returncode == 2
        assert "take both sides (retemper merge)" in conflict.stderr
    result = finished_toy.call("merge")
    assert (result.returncode, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[0] == "dvc.lock: 10 entries, 2 of them from theirs: train@c, evaluate@c"
    assert lines[1] == "dvc.lock: computed on both sides, one was taken: report (ours)"
    assert lines[2] == "dvc.lock: the runs of 10 entries are recorded in the cache"
    assert lines[-1] == "resolved; git commit, then retemper run"
    assert git(finished_toy, "commit", "--quiet", "--no-edit").returncode == 0
    rounds = YAML(typ="safe").load(finished_toy.folder / "params.yaml")["rounds"]
    assert {name: section["value"] for name, section in rounds.items()} == {"a": 1, "b": 2, "c": "c", "d": "d"}
    assert executed(finished_toy.run()) == {"report"}, "its inputs are new; everything else is in the cache"
    second = finished_toy.call("merge")
    assert (second.returncode, second.stdout) == (2, "")
    assert "found no git conflict in them" in second.stderr


def entry(out: str, dep: str = "d") -> dict[str, Any]:
    return {"cmd": "x", "deps": [{"path": "dep", "md5": dep}], "outs": [{"path": "out", "md5": out}]}


def test_an_entry_is_taken_whole_from_the_side_that_changed_it() -> None:
    base = {name: entry("0") for name in ("same", "ours", "theirs", "both", "verified")}
    ours = {**base, "ours": entry("1"), "both": entry("1"), "verified": entry("1"), "new": entry("1")}
    theirs = {**base, "theirs": entry("2"), "both": entry("2"), "verified": entry("2", "v"), "other": entry("2")}
    merged = merge_locks(base, ours, theirs, known=lambda stage: stage == theirs["verified"])
    digests = {name: stage["outs"][0]["md5"] for name, stage in merged.lock.items()}
    assert digests == {"same": "0", "ours": "1", "theirs": "2", "both": "1", "verified": "2", "new": "1", "other": "2"}
    assert merged.both == {"both": "ours", "verified": "theirs"}
    assert merged.added == ("theirs", "other")
    assert merge_locks(base, ours, theirs, known=lambda _: True).both == {"both": "ours", "verified": "ours"}
    assert merge_locks({}, {}, {"only": entry("2")}, known=lambda _: False).lock == {"only": entry("2")}


def test_an_entry_is_recorded_only_as_it_was_computed(finished_toy: Any) -> None:
    root = finished_toy.folder / ".dvc/cache"
    stages = YAML().load(finished_toy.folder / "dvc.lock")["stages"]
    assert all(is_recorded(stage, root) for stage in stages.values())
    changed = json.loads(json.dumps(stages["train@a"]))
    changed["outs"][0]["md5"] = "0" * 32
    assert not is_recorded(changed, root)
    del changed["outs"]
    assert not is_recorded(changed, root)


BASE = """\
# the whole
rounds:
  init: {steps: 0}  # as it came
  star: {lr: 1e-05}

mine: {}
"""


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        (
            BASE.replace("\nmine", "  c: {lr: 2e-05}  # of c\n\nmine"),
            BASE.replace("\nmine", "  d: {lr: 3e-05}  # of d\n\nmine"),
            BASE.replace("\nmine", "  c: {lr: 2e-05}  # of c\n  d: {lr: 3e-05}  # of d\n\nmine"),
        ),
        (BASE.replace("1e-05", "2e-05"), BASE.replace("{lr: 1e-05}", "{lr: 1e-05, steps: 7}"), BASE.replace("1e-05}", "2e-05, steps: 7}")),
        (BASE.replace("  star: {lr: 1e-05}\n", ""), BASE.replace("mine: {}", "mine: {init: 1}"), None),
    ],
    ids=["a round each", "a key each of one line", "one removed"],
)
def test_parameters_of_both_sides_are_merged_with_their_comments(ours: str, theirs: str, expected: str | None) -> None:
    expected = expected or ours.replace("mine: {}", "mine: {init: 1}")
    assert merge_params(BASE, ours, theirs) == expected


def test_a_parameter_with_two_values_is_the_users_to_settle(finished_toy: Any) -> None:
    with pytest.raises(UserError, match=r"params.yaml: rounds.star.lr: ours 2e-05, theirs 3e-05; choose in params.yaml") as refusal:
        merge_params(BASE, BASE.replace("1e-05", "2e-05"), BASE.replace("1e-05", "3e-05"))
    assert "\n" not in str(refusal.value)
    git(finished_toy, "add", "dvc.lock")
    git(finished_toy, "commit", "--quiet", "-m", "computed")
    for branch, value in (("c", "7"), ("d", "8")):
        git(finished_toy, "checkout", "--quiet", "-b", branch, "HEAD" if branch == "c" else "HEAD~1")
        finished_toy.set_rounds(a="1", b=value)
        git(finished_toy, "commit", "--quiet", "-am", branch)
    git(finished_toy, "merge", "c")
    before = (finished_toy.folder / "params.yaml").read_text()
    result = finished_toy.call("merge")
    assert (result.returncode, len(result.stderr.splitlines())) == (2, 1)
    assert "rounds.b.value: ours 8, theirs 7" in result.stderr
    assert (finished_toy.folder / "params.yaml").read_text() == before
    assert Path(finished_toy.folder / ".git/MERGE_HEAD").exists()


@pytest.mark.parametrize("deleted_by", ["ours", "theirs"])
def test_a_dvc_lock_that_one_side_deleted_is_kept(toy: Any, deleted_by: str) -> None:
    """And a parameter that both changed is settled first, as the refusal says."""
    for branch, value in (("theirs", "7"), ("ours", "8")):
        git(toy, "checkout", "--quiet", "-b", branch, "HEAD" if branch == "theirs" else "base")
        if branch == "theirs":
            (toy.folder / "dvc.lock").write_text("schema: '2.0'\nstages: {}\n")
            git(toy, "add", "dvc.lock")
            git(toy, "commit", "--quiet", "-m", "computed")
            git(toy, "tag", "base")
        toy.set_rounds(a="1", b=value)
        if branch == deleted_by:
            git(toy, "rm", "--quiet", "dvc.lock")
        else:
            (toy.folder / "dvc.lock").write_text(f"schema: '2.0'\nstages:\n  {branch}: {{cmd: x}}\n")
        git(toy, "commit", "--quiet", "-am", branch)
    assert git(toy, "merge", "theirs").returncode == 1
    conflict = toy.call("merge")
    assert (conflict.returncode, len(conflict.stderr.splitlines())) == (2, 1)
    assert "choose in params.yaml, git add params.yaml, then retemper merge again" in conflict.stderr
    toy.set_rounds(a="1", b="9")
    git(toy, "add", "params.yaml")
    result = toy.call("merge")
    side = "theirs" if deleted_by == "ours" else "ours"
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        f"dvc.lock: kept as {side}; the other side deleted it",
        "resolved; git commit, then retemper run",
    ]
    assert f"  {side}: " in (toy.folder / "dvc.lock").read_text()
    second = toy.call("merge")
    assert (second.returncode, second.stdout) == (0, "resolved; git commit, then retemper run\n"), "nothing is left to merge"
    assert git(toy, "commit", "--quiet", "--no-edit").returncode == 0
