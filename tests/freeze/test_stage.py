"""Plain `dvc repro` in a project with its own code: it sees every edit, and no stage executes code that its digest does not cover."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from dvc.repo import Repo
from ruamel.yaml import YAML

from tasks.core.stage.run_lock import RUN_LOCK, hold_run_lock

ROOT = Path(__file__).resolve().parents[2]
ENTRY = """
import json, sys, time
from pathlib import Path
from tasks.core.stage.entry import stage
def main():
    with stage():
        value = json.loads(Path("data/params.json").read_text())["value"]
        Path("began").touch()
        while Path("hold").exists():
            time.sleep(0.05)
        from tasks.one.later import factor
        Path(sys.argv[1]).write_text(str(value * factor))
if __name__ == "__main__":
    main()
"""
GRAPH = """
stages:
  freeze:
    cmd: python -m tasks.freeze
    always_changed: true
    outs:
      - data/params.json: {cache: false}
      - data/code.json: {cache: false}
  one:
    cmd: python -m tasks.one data/one
    params: [{data/params.json: [value]}, {data/code.json: [one]}]
    outs: [data/one]
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    package = "from pkgutil import extend_path\n__path__ = extend_path(__path__, __name__)\n"  # core comes from this checkout
    for name, text in {"__init__": package, "one/__init__": "", "one/__main__": ENTRY, "one/later": "factor = 2\n"}.items():
        path = tmp_path / f"tasks/{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "params.yaml").write_text("value: 3\n")
    (tmp_path / "dvc.yaml").write_text(GRAPH)
    (tmp_path / "data").mkdir()
    (tmp_path / ".gitignore").write_text(".retemper/\n__pycache__/\ndata/params.json\ndata/code.json\n")
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    Repo.init(str(tmp_path)).close()
    return tmp_path


def repro(project: Path) -> tuple[int, str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    result = subprocess.run(
        [sys.executable, "-m", "dvc", "repro"], cwd=project, env=environment, capture_output=True, text=True, check=False
    )
    return result.returncode, result.stdout + result.stderr


def locked_stage(project: Path) -> Any:
    return YAML(typ="safe").load(project / "dvc.lock")["stages"]["one"]


def test_dvc_repro_sees_edits_of_code_and_of_parameters(project: Path) -> None:
    assert repro(project)[0] == 0
    assert (project / "data/one").read_text() == "6"
    digest = locked_stage(project)["params"]["data/code.json"]["one"]
    assert digest == json.loads((project / "data/code.json").read_text())["one"]

    (project / "tasks/one/later.py").write_text("# a comment\nfactor = 2\n")
    assert "Running stage 'one'" not in repro(project)[1]
    (project / "tasks/one/later.py").write_text("factor = 5\n")
    assert "Running stage 'one'" in repro(project)[1]
    assert (project / "data/one").read_text() == "15"
    (project / "params.yaml").write_text("value: 4\n")
    assert "Running stage 'one'" in repro(project)[1]
    assert (project / "data/one").read_text() == "20"
    (project / "params.yaml").write_text("value: 3\n")
    (project / "tasks/one/later.py").write_text("factor = 2\n")
    assert "is cached - skipping run" in repro(project)[1]
    assert (project / "data/one").read_text() == "6"


def test_code_edited_while_a_stage_runs_is_not_executed(project: Path) -> None:
    """The stage imports a module long after its digest was taken."""
    (project / "hold").touch()
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    process = subprocess.Popen([sys.executable, "-m", "dvc", "repro"], cwd=project, env=environment, stdout=subprocess.PIPE, text=True)
    while not (project / "began").exists():
        assert process.poll() is None
    (project / "tasks/one/later.py").write_text("factor = -2\n")
    (project / "hold").unlink()
    process.communicate()
    assert process.returncode == 0
    assert (project / "data/one").read_text() == "6"
    assert "Running stage 'one'" in repro(project)[1]
    assert (project / "data/one").read_text() == "-6"


def test_a_digest_of_other_code_is_refused(project: Path) -> None:
    assert repro(project)[0] == 0
    (project / "tasks/one/later.py").write_text("factor = 7\n")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "DVC_STAGE": "one"}
    result = subprocess.run(
        [sys.executable, "-m", "tasks.one", "data/one"], cwd=project, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 2
    assert result.stderr.startswith("retemper: data/code.json: does not match the current code of one"), result.stderr
    assert (project / "data/one").read_text() == "6"


def test_a_run_in_progress_is_left_its_frozen_code_and_parameters(project: Path) -> None:
    """Its next stage would execute the frozen code, and dvc.lock would name the edited one."""
    assert repro(project)[0] == 0
    frozen = [(project / name).read_bytes() for name in ("data/params.json", "data/code.json")]
    (project / "tasks/one/later.py").write_text("factor = 7\n")
    (project / "params.yaml").write_text("value: 4\n")
    with hold_run_lock(project / RUN_LOCK):
        status, output = repro(project)
    assert status != 0
    assert "another run is in progress in this folder" in output
    assert (project / "data/one").read_text() == "6"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tasks.freeze"]
    with hold_run_lock(project / RUN_LOCK):
        assert subprocess.run(command, cwd=project, env=environment, capture_output=True, check=False).returncode == 2
    for name, content in zip(("data/params.json", "data/code.json"), frozen, strict=True):
        assert not (project / name).exists() or (project / name).read_bytes() == content


def test_a_stage_of_a_run_refuses_a_digest_of_other_code_than_it_executes(project: Path) -> None:
    assert repro(project)[0] == 0
    (frozen,) = (project / ".retemper/code").iterdir()
    environment = os.environ | {"PYTHONPATH": f"{frozen}{os.pathsep}{ROOT}", "DVC_STAGE": "one", "RETEMPER_CODE": str(frozen)}
    environment["PYTHONSAFEPATH"] = "1"
    command = [sys.executable, "-m", "tasks.one", "data/other"]
    assert subprocess.run(command, cwd=project, env=environment, capture_output=True, check=False).returncode == 0
    (project / "data/other").unlink()
    codes = json.loads((project / "data/code.json").read_text())
    (project / "data/code.json").write_text(json.dumps(codes | {"one": "of an edit"}))
    result = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert result.stderr.startswith("retemper: data/code.json: no longer matches the code of one"), result.stderr


def test_other_code_of_a_function_that_parameters_name_is_refused(project: Path) -> None:
    """No stage imports it, so no stage's digest has it."""
    (project / "params.yaml").write_text("value: 3\nrounds: {star: {loss: 'tasks.one.mine:loss'}}\n")
    mine = project / "tasks/one/mine.py"
    mine.write_text("def loss(): return 1\n")
    assert repro(project)[0] == 0
    mine.write_text("def loss(): return 2\n")
    for stage, status in (("one@star", 2), ("one@other", 0)):
        environment = os.environ | {"PYTHONPATH": str(ROOT), "DVC_STAGE": stage}
        command = [sys.executable, "-m", "tasks.one", f"data/{stage}"]
        result = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)
        assert result.returncode == status, result.stderr
        message = "retemper: data/params.json: does not match the current code of tasks.one.mine:loss"
        assert result.stderr.startswith(message) == (status == 2), result.stderr
