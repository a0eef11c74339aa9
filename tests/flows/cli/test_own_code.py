"""Whose code a command runs, started as the installed script starts it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flows.cli import main as cli

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = "import sys; from flows.cli.main import main; sys.exit(main())"
OWN = "import os, sys; print('own', *sys.argv[1:]); sys.exit(7)"


def run_script(folder: Path, *arguments: str, path: str = str(ROOT)) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-c", SCRIPT, *arguments]  # as a script: the current folder is not searched
    return subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project whose own command line prints its arguments."""
    package = tmp_path / "project/flows/cli"
    package.mkdir(parents=True)
    for name in ("flows/__init__.py", "flows/cli/__init__.py"):
        (tmp_path / "project" / name).touch()
    (package / "__main__.py").write_text(OWN)
    (tmp_path / "project/tasks").mkdir()
    for name in ("dvc.yaml", "params.yaml"):
        (tmp_path / "project" / name).touch()
    return tmp_path / "project"


def test_a_project_runs_by_its_own_code(project: Path) -> None:
    result = run_script(project, "run", "--set", "rounds.star.lr=1e-5")
    assert (result.returncode, result.stdout) == (7, "own run --set rounds.star.lr=1e-5\n")
    assert run_script(project, "--version").stdout == "own --version\n"
    assert run_script(project, "added", "--help").stdout == "own added --help\n"  # a command that the installed one does not know


@pytest.mark.parametrize("command", ["new", "upgrade"])
def test_commands_that_bring_code_are_the_installed_ones(project: Path, command: str) -> None:
    result = run_script(project, command, "--help")
    assert result.returncode == 0
    assert "Usage: retemper" in result.stdout


def test_elsewhere_the_installed_code_runs(tmp_path: Path) -> None:
    shown = run_script(tmp_path, "--version")
    assert (shown.returncode, f", {ROOT}\nPython " in shown.stdout) == (0, True)
    assert "Usage: retemper" in run_script(tmp_path, "--help").stdout
    other = tmp_path / "other/flows/cli/__main__.py"  # of another program
    other.parent.mkdir(parents=True)
    other.write_text(OWN)
    assert "Usage: retemper" in run_script(tmp_path / "other", "--help").stdout
    link = tmp_path / "linked"
    link.symlink_to(ROOT)  # the code that runs, by another name
    assert "Usage: retemper" in run_script(link, "--help").stdout


def test_a_project_that_is_not_what_python_imports_does_not_start_again_for_ever(project: Path) -> None:
    hidden = project / "flows/cli/__init__.py"
    hidden.write_text(f"__path__ = [{str(ROOT / 'flows/cli')!r}]\n")  # its entry is there, and other code is what runs
    result = run_script(project, "--help", path=os.pathsep.join([str(project), str(ROOT)]))
    assert "Usage: retemper" in result.stdout


def test_a_missing_package_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def build() -> None:
        raise ModuleNotFoundError("No module named 'further'", name="further.part")

    monkeypatch.setattr(cli, "build", build)
    with pytest.raises(SystemExit) as error:
        cli.main(["run"])
    output = capsys.readouterr().err
    assert error.value.code == 2
    assert output.startswith(f"retemper: further.part: not installed in {sys.prefix}, expected what {ROOT} needs; run make setup there")
    assert len(output.splitlines()) == 1
