"""The project in the current folder: what it cannot be."""

from pathlib import Path

import pytest

from flows.repository.project import project_folder
from tasks.core.stage.errors import UserError


def test_a_colon_in_the_path_of_a_project_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PYTHONPATH would be two folders, so that the installed code ran in place of the project's."""
    folder = tmp_path / "a:b/project"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    with pytest.raises(UserError, match=rf"^{folder}: found ':' in the folder's name, which separates folders in PYTHONPATH; rename it$"):
        project_folder()
