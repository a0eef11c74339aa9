"""A refused parameter, where the project's own code may know it."""

from pathlib import Path
from shutil import copytree, ignore_patterns

import pytest

import tasks.params
from flows.parameters.checks import check_file
from tasks.core.stage.errors import Invalid

INSTALLED = Path(tasks.params.__file__).parent


def refused(project: Path, monkeypatch: pytest.MonkeyPatch, old: str) -> str:
    """The message for a loss that only a project's own tasks/train/params.py has, where `old` is in it."""
    copytree(INSTALLED, project / "tasks", ignore=ignore_patterns("__pycache__"))
    params = project / "tasks/train/params.py"
    params.write_text(params.read_text().replace(old, '"nll", "focal"'))
    text = (INSTALLED.parent / "params.yaml").read_text().replace("loss: nll", "loss: focal", 1)
    (project / "params.yaml").write_text(text)
    monkeypatch.chdir(project)
    with pytest.raises(Invalid) as error:
        check_file(Path("params.yaml"))
    return str(error.value)


def test_a_loss_of_the_projects_own_code_names_the_code_that_refused_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    message = refused(tmp_path, monkeypatch, '"nll"')

    assert message.startswith("params.yaml: rounds.warmup.loss: found 'focal'")
    assert f"refused by the Retemper in {INSTALLED.parent}" in message and ".venv/bin/retemper" in message and "\n" not in message


def test_a_copy_of_the_same_code_is_not_blamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    message = refused(tmp_path, monkeypatch, "not in the file")

    assert "Retemper in" not in message
