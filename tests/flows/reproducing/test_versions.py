"""Which Python a revision is run with: this one where its versions are those installed here, else one that is built once."""

import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from flows.process.processes import Processes
from flows.reproducing import versions
from tasks.core.errors import UserError


def test_versions_that_differ_are_named() -> None:
    numpy = metadata.version("numpy")
    text = f"# numpy==1\nnumpy=={numpy}+cpu\nnot-installed-anywhere==1.0\npyarrow==0.1 ; python_version > '3'\n"
    assert versions.differing_packages(text) == [("pyarrow", "0.1", metadata.version("pyarrow"))]


class Fake(Processes):
    """Records commands; `status`: pip's exit status."""

    def __init__(self, status: int = 0) -> None:
        self.commands: list[list[str]] = []
        self.status = status

    def run(self, command: Any, read: Any, *_: Any, **__: Any) -> int:
        self.commands.append(list(command))
        if "venv" in command:
            Path(command[-1], "bin").mkdir(parents=True)
            Path(command[-1], "bin/python").symlink_to(sys.executable)
            return 0
        read("ERROR: No matching distribution found for numpy==0.1")
        return self.status


def test_an_environment_is_built_once_and_a_failed_one_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(versions, "_forget_source", lambda _: None)
    lines: list[str] = []
    tree = tmp_path / "tree"
    tree.mkdir()
    assert versions.python_of(tree, Fake(), lines.append) == sys.executable
    assert "has no constraints.txt" in lines[0]
    (tree / "constraints.txt").write_text(f"numpy=={metadata.version('numpy')}\n")
    assert versions.python_of(tree, Fake(), lines.append) == sys.executable, "nothing differs"
    (tree / "constraints.txt").write_text("numpy==0.1\n")
    with pytest.raises(UserError, match=r"cannot be installed \(No matching distribution found for numpy==0.1\).*--environment present"):
        versions.python_of(tree, Fake(1), lines.append)
    first = Fake()
    python = versions.python_of(tree, first, lines.append)
    assert [Path(python).name, len(first.commands)] == ["python", 2]
    assert first.commands[1][-3:-1] == [str(tree / "constraints.txt"), "-e"]
    second = Fake()
    assert versions.python_of(tree, second, lines.append) == python
    assert second.commands == []
    (tree / "constraints.txt").write_text("numpy==0.2\n")
    assert versions.python_of(tree, second, lines.append) != python
    python = versions.python_of(tree, second, lines.append)
    monkeypatch.setattr(versions, "extras", lambda: ["cpu", "lora", "one more"])
    assert versions.python_of(tree, second, lines.append) != python, "an extra was installed here since: the revision needs it, too"
