"""Where relative paths of `retemper new` lead: to the files that the user typed, also where a link is on the way."""

import subprocess
from contextlib import chdir
from pathlib import Path

import pytest

from flows.projects import new
from flows.projects.answers import relative_answer, relative_data
from tasks.core.params.safe_yaml import parse_yaml
from tests.forks import retemper

TINY = "package:cognition/model"


@pytest.fixture
def linked(tmp_path: Path) -> Path:
    """A home whose folder `shelf` is on a large disk. Beside both there are folders `data`."""
    home, disk = tmp_path / "home", tmp_path / "mnt/disk"
    for folder, text in ((home, "mine"), (disk, "another's")):
        (folder / "data").mkdir(parents=True)
        (folder / "data/corpus.jsonl").write_text(text)
    (disk / "shelf").mkdir()
    (home / "shelf").symlink_to(disk / "shelf")
    return home


def test_a_project_behind_a_link_reads_the_data_that_was_typed(linked: Path) -> None:
    with chdir(linked):
        project = Path("shelf/project")
        places = [relative_data(project, "beir:data").removeprefix("beir:"), relative_answer(project, "data")]
        project.mkdir()
    assert [(linked / "shelf/project" / place / "corpus.jsonl").read_text() for place in places] == ["mine", "mine"]


@pytest.mark.parametrize("typed", ["shelf/../data", "shelf/.."])
def test_data_behind_a_link_are_those_that_were_typed(linked: Path, typed: str) -> None:
    """The folder above a link's target, not the one that the link is in."""
    with chdir(linked):
        expected, place = Path(typed).resolve(), relative_answer(Path("project"), typed)
        Path("project").mkdir()
    assert not Path(place).is_absolute()
    assert (linked / "project" / place).resolve() == expected == linked.parent / "mnt/disk" / Path(typed).name.replace("..", "")


def test_a_link_to_the_data_stays_one(linked: Path) -> None:
    (linked / "current").symlink_to("data")
    with chdir(linked):
        assert relative_answer(Path("project"), "current") == "../current", "it may lead to other data next week"


def test_a_relative_share_starts_where_it_was_typed(linked: Path) -> None:
    with chdir(linked):
        assert new._shared("store") == new._shared("cache:store") == linked / "store"
        assert new._shared("shelf/../store") == linked.parent / "mnt/disk/store"
        assert new._shared(f"cache:{linked}/shelf/store") == linked / "shelf/store", "as typed"


def test_new_behind_a_link(linked: Path, tiny_corpus: Path, toy_environment: dict[str, str], checkout: Path) -> None:
    (linked / "data/corpus.jsonl").unlink()
    (linked / "data").rmdir()
    (linked / "data").symlink_to(tiny_corpus.beir)  # type: ignore[attr-defined]
    (linked / "shelf/my team").mkdir()
    flags = ["--data", "data", "--encoder", TINY, "--defaults", "--share", "store", "--set", "fuse={}"]
    result = retemper(["new", "shelf/my team/a b", *flags, "--code", str(checkout)], linked, toy_environment)
    assert (result.returncode, result.stderr) == (0, "")
    project = linked / "shelf/my team/a b"
    source = parse_yaml((project / "params.yaml").read_text())["dataset"]["source"]
    assert (project / source.removeprefix("beir:")).samefile(linked / "data")
    assert f"url = {linked / 'store'}\n" in (project / ".dvc/config").read_text()
    assert (linked / "store").is_dir() and not (linked.parent / "mnt/disk/shelf/my team/store").exists()
    (line,) = (line for line in result.stdout.splitlines() if line.startswith("next: "))
    enter = line.removeprefix("next: ").partition(" && ")[0]
    assert subprocess.run(["sh", "-c", f"{enter} && pwd -P"], cwd=linked, capture_output=True, text=True, check=True).stdout == (
        f"{project.resolve()}\n"
    )


def test_the_first_commit_has_files_that_the_user_ignores_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without data/source.json, a retraining would not know the data."""
    (tmp_path / "ignored").write_text("data/\n*.toml\n")
    (tmp_path / "gitconfig").write_text(f"[core]\n\texcludesFile = {tmp_path}/ignored\n[user]\n\tname = a\n\temail = a@b\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    project = tmp_path / "project"
    (project / "data").mkdir(parents=True)
    monkeypatch.chdir(project)
    files = {".gitignore": "/runtime.yaml\n", "data/.gitignore": "/*\n!/source.json\n!/.gitignore\n", "data/source.json": "{}"}
    files |= {"retemper.toml": "", "runtime.yaml": "", "data/corpus": ""}
    for name, text in files.items():
        Path(name).write_text(text)
    subprocess.run(["git", "init", "--quiet"], check=True)
    new._commit("1")
    listed = subprocess.run(["git", "ls-files"], check=True, capture_output=True, text=True).stdout.split()
    assert listed == [".gitignore", "data/.gitignore", "data/source.json", "retemper.toml"]
