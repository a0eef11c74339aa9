"""After a failed run, only what it has measured counts, never what an earlier one left in the cache."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from flows.evaluating import evaluate
from flows.evaluating.evaluate import Plan
from flows.evaluating.finished import discard_earlier_metrics
from flows.process.problems import RunFailed
from flows.process.processes import Processes
from flows.repository.graph import read_graph, read_status
from flows.repository.lock import read_lock
from flows.repository.project import repository
from flows.team import sync
from tasks.core.errors import Problem

ENCODE = "import sys, pathlib as p; s = p.Path(sys.argv[1]).read_text(); 'fail' in s and sys.exit(1); p.Path(sys.argv[2]).write_text(s)"
EVALUATE = "import sys, pathlib as p; f = p.Path(sys.argv[2]); f.parent.mkdir(exist_ok=True, parents=True); f.write_text('{}')"
GRAPH = """stages:
  encode:
    foreach: [one, two]
    do:
      cmd: {python} encode.py ${{item}}.txt data/${{item}}.run
      deps: ["${{item}}.txt"]
      outs: ["data/${{item}}.run"]
  evaluate:
    foreach: [one, two]
    do:
      cmd: {python} evaluate.py data/${{item}}.run data/metrics/${{item}}.json
      deps: ["data/${{item}}.run"]
      outs: ["data/metrics/${{item}}.json"]
"""


def dvc(*words: str) -> int:
    return subprocess.run([sys.executable, "-m", "dvc", *words], capture_output=True, check=False).returncode


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh tree with the dvc.lock and the cache of an earlier run of both models, of which `one` is another one since."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    for name, text in {"encode.py": ENCODE, "evaluate.py": EVALUATE, "one.txt": "1", "two.txt": "2"}.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "dvc.yaml").write_text(GRAPH.format(python=sys.executable))
    assert dvc("init", "--no-scm") == 0 and dvc("repro") == 0
    shutil.rmtree("data")
    (tmp_path / "data").mkdir()
    (tmp_path / "one.txt").write_text("fail")
    with repository() as repo:
        sync.restore(Processes(), sync.restorable(read_status(repo, read_graph(repo).stages), read_lock()))
    assert {file.stem for file in (tmp_path / "data/metrics").iterdir()} == {"one", "two"}, "as before a run's first stage"
    assert dvc("repro", "encode@one") != 0
    return tmp_path


def test_metrics_of_a_former_model_are_discarded_if_its_successor_fails(tree: Path) -> None:
    Path("data/two.run").unlink()  # missing, not changed
    discard_earlier_metrics(tree)
    assert [file.stem for file in (tree / "data/metrics").iterdir()] == ["two"]


def test_a_partial_evaluation_yields_a_tree_without_them(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tree / "params.yaml").write_text("dataset: {source: demo}\n")
    kept = tree.parent / "kept"
    kept.mkdir()
    shutil.copy("dvc.lock", kept / "several-0.lock")
    for name in ("make_worktree", "temp_tree"):
        monkeypatch.setattr(evaluate, name, lambda *_: tree)
    for name in ("carry_changes", "read_changes", "equip", "remove_worktree", "commit_of", "write_source"):
        monkeypatch.setattr(evaluate, name, lambda *_: None)
    monkeypatch.setattr(evaluate, "_run", lambda *_, **__: Problem("stage", "encode@one: failed", 1))
    plan, left = Plan("several-0", ["evaluate"], ["evaluate.relevance=1"], [], partial=True), list[str]()
    with pytest.raises(RunFailed), evaluate.second_run(plan, kept, processes=Processes(), display=None) as project:  # type: ignore[arg-type]
        left += [file.stem for file in (project / "data/metrics").iterdir()]
    assert left == ["two"]
