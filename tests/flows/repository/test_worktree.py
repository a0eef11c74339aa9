"""Second trees: what killed commands left is removed, new code comes along, and a run there has the code of its tree."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flows.process.processes import Processes
from flows.repository.lock import commit_of
from flows.repository.worktree import carry_changes, make_worktree, passing_tree, read_changes, remove_worktree, run_in


def test_trees_of_ended_processes_are_removed(toy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(toy.folder)
    gone = subprocess.Popen(["true"])
    gone.wait()
    alive, dead, strange = (Path(f".retemper/{name}-x") for name in (f"reproduce-{os.getpid()}", f"evaluate-{gone.pid}", "evaluate-no"))
    for tree in (alive, dead):
        make_worktree(tree, commit_of("HEAD"))
    strange.mkdir()
    for kept in (Path(".retemper/evaluate/store"), Path(".retemper/sweep")):
        kept.mkdir(parents=True)
    mine = passing_tree("evaluate")
    found = {path.relative_to(toy.folder / ".retemper").as_posix() for path in (toy.folder / ".retemper").iterdir()}
    assert found == {alive.name, mine.name, "evaluate", "sweep"} and mine.is_dir()
    listed = subprocess.run(["git", "worktree", "list"], capture_output=True, text=True, check=True).stdout
    assert alive.name in listed and dead.name not in listed
    remove_worktree(alive)
    assert not alive.exists()


def test_uncommitted_code_comes_along_and_is_executed(toy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(toy.folder)
    (toy.folder / "tasks").mkdir()
    (toy.folder / "tasks/fresh.py").write_text("print('fresh code of', __file__)\n")
    tree = make_worktree(Path(".retemper/tree"), commit_of("HEAD"))
    carry_changes(read_changes(commit_of("HEAD")), tree)
    assert (tree / "tasks/fresh.py").exists()
    lines: list[str] = []
    code = "import os, json, runpy, sys; print(sys.path[1]); runpy.run_path('tasks/fresh.py'); p = os.environ['RETEMPER_PROBLEM']; "
    code += "open(p, 'w').write(json.dumps([{'kind': 'invalid', 'message': 'a: b', 'status': 2}])); sys.exit(2)"
    status, problems = run_in(tree, [sys.executable, "-c", code], Processes(), show=lines.append, env={"X": "1"})
    assert (status, [problem.message for problem in problems]) == (2, ["a: b"])
    assert lines == [str(tree.absolute()), "fresh code of tasks/fresh.py"]
