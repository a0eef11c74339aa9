"""What DVC links with is what works between the cache and the project, in the order it is told."""

from pathlib import Path

import pytest
from dvc.config import Config
from dvc_objects.fs import system

from flows.storage import links


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / ".dvc").mkdir()
    (tmp_path / ".dvc" / "config").write_text("")
    return tmp_path


def refuse(*_: str) -> None:
    raise OSError(95, "Operation not supported")


def test_the_first_type_that_works(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "reflink", refuse)
    assert links.kind(project) == "copy", "DVC's own choice: reflink, copy"
    assert links.choose(project) == "disk: one copy of each artifact (hard links between data/ and the cache)"
    assert Config(dvc_dir=str(project / ".dvc"))["cache"]["type"] == ["reflink", "hardlink", "copy"]
    assert links.kind(project) == "hardlink"
    monkeypatch.setattr(system, "hardlink", refuse)
    assert links.kind(project) == "copy"
    assert links.choose(project).startswith("disk: two copies of each artifact")
    assert sorted(str(path.relative_to(project)) for path in project.rglob("*")) == [
        ".dvc",
        ".dvc/cache",
        ".dvc/config",
        ".dvc/config.local",
        ".retemper",
    ]


def test_links_are_tried_between_the_cache_and_the_project(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shared").mkdir()
    (project / ".dvc" / "config").write_text(f"[cache]\n    dir = {tmp_path / 'shared'}\n    type = symlink\n")
    calls = list[tuple[str, str]]()
    monkeypatch.setattr(system, "symlink", lambda source, target: calls.append((source, target)))
    assert links.kind(project) == "symlink"
    assert calls[0][0].startswith(str(tmp_path / "shared")) and not calls[0][1].startswith(str(tmp_path / "shared"))
