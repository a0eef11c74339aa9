"""What is edited while a stage runs: the stage is recorded with the inputs that it read, never with ones it has not seen."""

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from flows.storage.cache import object_path
from flows.storage.dvc import TURNS, UNPUSHED, earlier_results
from tasks.core.stage.frozen import freeze_parameters

Executed = Callable[[dict[str, str]], set[str]]


def lock_entry(folder: Path, stage: str) -> dict[str, Any]:
    entry: dict[str, Any] = YAML(typ="safe").load(folder / "dvc.lock")["stages"][stage]
    return entry


def test_parameters_edited_during_a_run_count_for_the_next_run(served_toy: Any, executed: Executed) -> None:
    served_toy.set_acts(encoders__a="sleep 3")
    process = served_toy.start("run")
    served_toy.wait_for_start("encoders/a")
    served_toy.set_rounds(b="1")  # for evaluate@a, which begins later, DVC had no such stage
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, out + err
    assert lock_entry(served_toy.folder, "evaluate@a")["cmd"] == "python step.py data/metrics/a.json evaluated data/encoders/a"
    served_toy.set_rounds(a="9", b="1")
    assert lock_entry(served_toy.folder, "train@a")["params"]["data/params.json"] == {"rounds.a": {"value": 1}}
    assert (served_toy.folder / "data/encoders/a").read_text().startswith("1(")
    served_toy.set_acts()
    assert executed(served_toy.run()) == {"train@a", "evaluate@a", "report"}
    assert (served_toy.folder / "data/encoders/a").read_text().startswith("9(")
    served_toy.set_rounds(a="1", b="1")
    assert executed(served_toy.run()) == set()
    assert (served_toy.folder / "data/encoders/a").read_text().startswith("1("), "from the run cache, under the inputs it was made from"


@pytest.mark.parametrize("act", ["sleep 4", "fail"])
def test_one_of_two_runs_computes_a_stage_and_the_other_takes_its_outs(toy: Any, tmp_path: Path, act: str) -> None:
    """If the first one fails, the other stops waiting and tries itself."""
    toy.set_acts(data__corpus=act)
    (toy.folder / ".dvc/config.local").write_text(f"[cache]\n    dir = {tmp_path / 'cache'}\n")
    trees = [shutil.copytree(toy.folder, tmp_path / name) for name in ("one", "other")]
    for tree in trees:
        freeze_parameters(tree)
    command = [sys.executable, "-m", "flows.storage.dvc", "repro", "prepare"]
    environment = toy.environment | {TURNS: str(tmp_path / "turns")}
    processes = [subprocess.Popen(command, cwd=tree, env=environment, stdout=subprocess.PIPE, text=True) for tree in trees]
    output = "".join(process.communicate(timeout=300)[0] for process in processes)
    assert [process.returncode == 0 for process in processes] == [act != "fail"] * 2, output
    assert output.count("at work on data/corpus") == (2 if act == "fail" else 1), output
    assert (output.count("is cached - skipping run") == 1) == (act != "fail")
    if act != "fail":
        assert {(tree / "data/corpus").read_text() for tree in trees} == {"one()"}
        locks = [json.dumps(lock_entry(tree, "prepare")) for tree in trees]
        assert locks[0] == locks[1]


def test_a_stage_that_waits_its_turn_is_not_taken_for_the_one_of_the_lock(toy: Any) -> None:
    """As in a sweep: the worktree's dvc.lock has the stage with the same command and another parameter, and its outs are in the cache."""
    (toy.folder / "dvc.yaml").write_text("stages: {copy: {cmd: cp params.yaml out, deps: [step.py], params: [x], outs: [out]}}\n")
    environment = toy.environment | {TURNS: str(toy.folder / "turns")}

    def reproduce(value: int) -> str:
        (toy.folder / "params.yaml").write_text(f"x: {value}\n")
        command = [sys.executable, "-m", "flows.storage.dvc", "repro", "copy"]
        output = subprocess.run(command, cwd=toy.folder, env=environment, check=True, capture_output=True, text=True, timeout=300).stdout
        assert lock_entry(toy.folder, "copy")["params"] == {"params.yaml": {"x": value}}
        assert (toy.folder / "out").read_text() == f"x: {value}\n"
        return output

    reproduce(1)
    reproduce(2)
    assert "is cached - skipping run" in reproduce(1), "from the run cache"


FULL = """
import errno, sys
from dvc_objects.fs import local
copyfile = local.copyfile
def full(source, *rest, **named):
    if source.endswith(sys.argv[1]):
        raise OSError(errno.ENOSPC, "No space left on device", source)
    return copyfile(source, *rest, **named)
local.copyfile = full
from flows.storage.dvc import main
raise SystemExit(main(["push"]))
"""


def test_a_file_of_two_folders_that_a_push_could_not_send_goes_with_the_next(tmp_path: Path) -> None:
    """DVC would send the listing of one of the two folders all the same, and then take the file for sent."""
    project, remote = tmp_path / "project", tmp_path / "remote"
    for name in ("one", "two"):
        (project / name).mkdir(parents=True)
        (project / name / "shared").write_text("weights")
        (project / name / "own").write_text(name)
    md5 = remote / "files/md5"
    remote.mkdir()
    (remote / "retemper.json").write_text("{}")

    def call(*command: str) -> int:
        return subprocess.run([sys.executable, *command], cwd=project, capture_output=True, check=False).returncode

    for command in (["init", "--no-scm"], ["add", "one", "two"], ["remote", "add", "--default", "team", str(remote)]):
        assert call("-m", "dvc", *command) == 0
    oid = hashlib.md5(b"weights", usedforsecurity=False).hexdigest()
    call("-c", FULL, oid[2:])
    assert len(list(md5.glob("*/*"))) == 2, "what only one folder has; no listing, since both lack a file"
    assert call("-m", "flows.storage.dvc", "push") == 0
    assert (md5 / oid[:2] / oid[2:]).read_text() == "weights"
    assert len(list(md5.glob("*/*"))) == 5


HALF = """
import os, sys
from dvc_data.index import collect
whole, seen = collect._collect_from_index, []
def half(*given, **named):
    seen.append(1)
    if len(seen) > 2:
        os._exit(137)
    return whole(*given, **named)
collect._collect_from_index = half
from flows.storage.dvc import main
sys.exit(main(sys.argv[1:]))
"""


def test_what_a_killed_push_or_pull_has_collected_is_not_taken_for_all(
    finished_toy: Any, tmp_path: Path, executed: Executed, states_of: Callable[[str], dict[str, str]]
) -> None:
    """What is to be transferred is collected out by out."""
    remote, stages = tmp_path / "remote", ["prepare", "train@a", "train@b", "evaluate@a", "evaluate@b", "report"]
    assert finished_toy.call("remote", "add", "team", str(remote)).returncode == 0
    assert finished_toy.call("push", script=HALF).returncode == 137
    assert executed(finished_toy.run()) == set()
    digests = {out["md5"] for stage in stages for out in lock_entry(finished_toy.folder, stage)["outs"]}
    assert {digest for digest in digests if not object_path(remote / "files/md5", digest).is_file()} == set()
    finished_toy.command("git", "add", "--all")
    finished_toy.command("git", "commit", "--quiet", "-m", "computed")
    finished_toy.command("git", "clone", "--quiet", str(finished_toy.folder), str(tmp_path / "clone"))
    clone = type(finished_toy)(tmp_path / "clone", finished_toy.environment)
    assert clone.call("pull", *stages, script=HALF).returncode == 137
    result = clone.call("run")
    assert (result.returncode, result.stderr, executed(states_of(result.stdout))) == (0, "", set())


def test_what_a_killed_run_computed_is_sent_though_git_replaces_its_lock(finished_toy: Any, tmp_path: Path, executed: Executed) -> None:
    assert finished_toy.call("remote", "add", "team", str(tmp_path / "remote")).returncode == 0
    finished_toy.run()
    finished_toy.command("git", "add", ".")
    finished_toy.command("git", "commit", "--quiet", "-m", "computed")
    (tmp_path / "remote").rename(tmp_path / "away")  # its push fails as it does where a kill comes first: nothing is sent
    finished_toy.set_rounds(a="1", b="9")
    assert executed(finished_toy.run()) == {"train@b", "evaluate@b", "report"}
    for path in (finished_toy.folder / UNPUSHED).glob("*.lock"):
        if "train@a" in path.read_text():  # of the whole dvc.lock, which a killed run does not keep
            path.unlink()
    finished_toy.command("git", "checkout", "--quiet", "--", "dvc.lock", "params.yaml")
    (tmp_path / "away").rename(tmp_path / "remote")
    assert executed(finished_toy.run()) == set()
    finished_toy.command("git", "clone", "--quiet", str(finished_toy.folder), str(tmp_path / "colleague"))
    colleague = type(finished_toy)(tmp_path / "colleague", finished_toy.environment)
    colleague.set_rounds(a="1", b="9")
    assert executed(colleague.run()) == set()


KILLED = """
import os
from dvc.dvcfile import Lockfile
dump = Lockfile.dump_stages
def dump_and_die(*given, **named):
    dump(*given, **named)
    os._exit(137)
Lockfile.dump_stages = dump_and_die
import sys
from flows.storage.dvc import main
sys.exit(main(sys.argv[1:]))
"""


def test_a_kill_after_dvc_wrote_its_lock_leaves_no_stage_unsent(finished_toy: Any, tmp_path: Path, executed: Executed) -> None:
    """Git then replaces dvc.lock, so the entry must have been noted before."""
    assert finished_toy.call("remote", "add", "team", str(tmp_path / "remote")).returncode == 0
    finished_toy.run()
    finished_toy.command("git", "add", ".")
    finished_toy.command("git", "commit", "--quiet", "-m", "computed")
    finished_toy.set_rounds(a="1", b="9")
    (finished_toy.folder / "data/params.json").write_text(json.dumps({"first": "one", "rounds": {"a": {"value": 1}, "b": {"value": 9}}}))
    assert finished_toy.call("repro", "train@b", script=KILLED).returncode == 137
    assert lock_entry(finished_toy.folder, "train@b")["params"]["data/params.json"]["rounds.b"] == {"value": 9}
    finished_toy.command("git", "checkout", "--quiet", "--", "dvc.lock", "params.yaml")
    assert executed(finished_toy.run()) == set()
    finished_toy.command("git", "clone", "--quiet", str(finished_toy.folder), str(tmp_path / "colleague"))
    colleague = type(finished_toy)(tmp_path / "colleague", finished_toy.environment)
    colleague.set_rounds(a="1", b="9")
    assert executed(colleague.run()) == {"evaluate@b", "report"}


def test_where_records_were_forgotten_no_earlier_result_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    subprocess.run(["git", "init", "--quiet"], check=True)
    entry = Path(".dvc/cache/runs/ab/abc/one")
    entry.parent.mkdir(parents=True)
    entry.write_text("outs: [{path: x, md5: y}]")
    assert earlier_results(Path(".dvc/cache")) == [{"outs": [{"path": "x", "md5": "y"}]}]
    Path("forgotten.txt").write_text(f"document {'0' * 64} 2026-11-28\n")
    assert earlier_results(Path(".dvc/cache")) == []


def test_what_was_pulled_is_sent_to_a_new_remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no recorded run: git knows it. An invalid dvc.lock in another branch stops nothing, and hides no other branch."""
    monkeypatch.chdir(tmp_path)
    subprocess.run(["git", "init", "--quiet", "--initial-branch=main"], check=True)
    Path(".dvc").mkdir()
    Path(".gitignore").write_text("/.dvc/\n")

    def commit(text: str) -> None:
        Path("dvc.lock").write_text(text)
        subprocess.run(["git", "add", "."], check=True)
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "-m", "x"], check=True)

    commit("stages: {old: {outs: [{path: x, md5: y}]}}")
    assert {"outs": [{"path": "x", "md5": "y"}]} in earlier_results(Path(".dvc/cache"))
    subprocess.run(["git", "checkout", "--quiet", "-b", "other"], check=True)
    commit("stages: {: [")
    subprocess.run(["git", "checkout", "--quiet", "-b", "third"], check=True)
    commit("stages: {new: {outs: [{path: z, md5: w}]}}")
    results = earlier_results(Path(".dvc/cache"))
    assert {"outs": [{"path": "x", "md5": "y"}]} in results
    assert {"outs": [{"path": "z", "md5": "w"}]} in results


def test_results_from_before_the_remote_are_sent(finished_toy: Any, tmp_path: Path, executed: Executed) -> None:
    """Whoever adds it, and whoever takes its setting from git: two values were tried here, the third by a colleague."""
    finished_toy.command("git", "clone", "--quiet", str(finished_toy.folder), str(tmp_path / "second"))
    second = type(finished_toy)(tmp_path / "second", finished_toy.environment)
    second.set_rounds(a="1", b="3")
    second.run()
    second.command("git", "checkout", "--quiet", "--", "params.yaml")
    finished_toy.set_rounds(a="1", b="9")
    assert executed(finished_toy.run()) == {"train@b", "evaluate@b", "report"}
    result = finished_toy.call("remote", "add", "team", str(tmp_path / "remote"))
    assert "\nthe next run sends what was computed here before: 9 files, 0.00" in result.stdout, result
    finished_toy.command("git", "add", "--all")
    finished_toy.command("git", "commit", "--quiet", "-m", "computed")
    (tmp_path / "remote").rename(tmp_path / "away")
    finished_toy.run()  # which can send nothing
    (tmp_path / "away").rename(tmp_path / "remote")
    assert executed(finished_toy.run()) == set()
    (second.folder / "dvc.lock").unlink()
    second.command("git", "pull", "--quiet", "--ff-only")
    assert executed(second.run()) == set()
    finished_toy.command("git", "clone", "--quiet", str(finished_toy.folder), str(tmp_path / "colleague"))
    colleague = type(finished_toy)(tmp_path / "colleague", finished_toy.environment)
    for value in ("2", "9", "3"):
        colleague.set_rounds(a="1", b=value)
        assert executed(colleague.run()) == set(), value
