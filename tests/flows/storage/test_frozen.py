"""The graph of a run stays as the run found it."""

import subprocess
import sys
from pathlib import Path
from typing import Any

from flows.storage.frozen import COPIES, GRAPH, keep_graph
from tasks.core.stage.frozen import freeze_parameters


def reproduce(toy: Any, *stages: str, **environment: str) -> None:
    for stage in stages:
        command = [sys.executable, "-m", "flows.storage.dvc", "repro", stage]
        result = subprocess.run(command, cwd=toy.folder, env=toy.environment | environment, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stdout + result.stderr


def test_an_edit_of_the_graph_counts_for_the_next_run(toy: Any, monkeypatch: Any) -> None:
    """DVC filled the templates of dvc.yaml from params.yaml as it was when a stage began: a command that the parameters did not say."""
    monkeypatch.chdir(toy.folder)
    freeze_parameters()
    reproduce(toy, "prepare", "train@a", "train@b")
    expected = Path("dvc.lock").read_text()
    assert "cmd: python step.py data/encoders/a 1 data/corpus\n" in expected
    Path("dvc.lock").unlink()
    keep_graph()
    graph = {GRAPH: str(COPIES)}
    reproduce(toy, "prepare", **graph)
    toy.set_rounds(first="two", a="9")  # b is gone
    Path("dvc.yaml").write_text(Path("dvc.yaml").read_text().replace("${item.value}", "another"))
    reproduce(toy, "train@a", "train@b", **graph)
    assert Path("dvc.lock").read_text() == expected
    out = Path("data/encoders/b")
    out.unlink()
    command = [sys.executable, "-m", "flows.storage.dvc", "checkout", "--quiet", "--force", "train@b"]
    subprocess.run(command, env=toy.environment | graph, check=True)
    assert out.exists(), "after a failed stage, its former outs come back"
    reproduce(toy, "train@a")
    assert "cmd: python step.py data/encoders/a another data/corpus\n" in Path("dvc.lock").read_text(), "without a run"
