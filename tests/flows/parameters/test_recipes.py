"""Recipes go into params.yaml and out again, byte for byte."""

import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from flows.cli.main import main
from flows.parameters import edit, recipes
from flows.parameters.checks import check
from flows.parameters.sources import SOURCE
from tasks.core.errors import UserError
from tasks.core.params.sections import read_yaml

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checkout: Path) -> Path:
    shutil.copy(checkout / "params.yaml", tmp_path)
    shutil.copy(checkout / "dvc.yaml", tmp_path)
    (tmp_path / ".dvc").mkdir()
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    shutil.copytree(ROOT / "docs/recipes", tmp_path / "docs/recipes")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "params.yaml"


@pytest.mark.parametrize(("name", "start", "rounds", "steps"), [("ance_firstp", "warmup", 60, 600_000), ("ance_maxp", "init", 10, 100_000)])
def test_the_command_in_a_recipe_of_ance_writes_its_rounds(project: Path, name: str, start: str, rounds: int, steps: int) -> None:
    recipes.apply(name)
    command = re.search(
        r"^#   retemper (rounds ance .*)$", project.read_text() + Path(f"docs/recipes/{name}.yaml").read_text(), re.MULTILINE
    )
    assert command and main(shlex.split(command[1])) == 0
    sections = read_yaml(project)
    chain = [sections["rounds"][f"ance{number}"] for number in range(1, rounds + 1)]
    assert f"ance{rounds + 1}" not in sections["rounds"]
    assert sum(entry["steps"] for entry in chain) == steps
    assert [entry["negatives"] for entry in chain[:4]] == [start, start, "ance1", "ance2"], "the lag is one"
    assert {entry["schedule_steps"] for entry in chain} == {1_000_000}
    assert {entry["optimizer_from"] for entry in chain[1:]} == {"continue"}


@pytest.mark.parametrize("name", ["simlm", "nv_retriever", "gist", "spar"])
def test_recipes_for_clean_supervision_are_valid(name: str, checkout: Path) -> None:
    check(read_yaml(checkout / "params.yaml") | read_yaml(ROOT / f"docs/recipes/{name}.yaml"))


@pytest.mark.parametrize("name", recipes.names(ROOT / "docs/recipes"))
@pytest.mark.parametrize("end", [b"\n", b"\r\n"], ids=["lf", "crlf"])
def test_each_recipe_goes_in_and_out_again(project: Path, name: str, end: bytes) -> None:
    project.write_bytes(before := project.read_bytes().replace(b"\n", end))
    former, recipe = read_yaml(project), read_yaml(Path(f"docs/recipes/{name}.yaml"))
    with recipes.apply_edits([], name, lasting=True):
        assert read_yaml(project) == former | recipe
    assert read_yaml(project) == former | recipe, "it lasts"
    assert project.read_bytes().count(end) == project.read_bytes().count(b"\n")
    for line in before.decode().splitlines():
        if line.startswith("#"):
            assert line in project.read_text(), "comments between sections stay"
    with recipes.apply_edits([], "none", lasting=True):
        pass
    assert project.read_bytes() == before
    assert not recipes.MEMORY.exists()


def test_a_second_recipe_replaces_the_first_and_other_edits_stay(project: Path) -> None:
    former = read_yaml(project)
    with recipes.apply_edits(["bm25.k1=1.2"], "zero_shot", lasting=True):
        pass
    assert list(read_yaml(project)["rounds"]) == ["init"]
    with recipes.apply_edits([], "squadshifts", lasting=True):
        pass
    assert read_yaml(project)["mine"] == {"warmup": {"search": "embeddings", "depth": 200}}
    edit.apply(["bm25.b=0.7"], project, check)
    with recipes.apply_edits(["seedless=", "rounds.star.lr=1e-5"], "none", lasting=True):
        pass
    former["bm25"] |= {"k1": 1.2, "b": 0.7}
    former["rounds"]["star"]["lr"] = 1e-5
    assert read_yaml(project) == former
    with pytest.raises(UserError, match="found no recipe applied to"):
        recipes.apply("none")


def test_what_was_taken_back_by_git_is_not_taken_back_again(project: Path) -> None:
    """Otherwise it would overwrite later edits with old sections."""
    committed = project.read_text()
    recipes.apply("zero_shot")
    project.write_text(committed)
    edit.apply(["rounds.star.lr=0.5"], project, check)
    with pytest.raises(UserError, match="found no recipe applied to"):
        recipes.apply("none")
    recipes.apply("squadshifts")
    recipes.apply("none")
    assert read_yaml(project)["rounds"]["star"]["lr"] == 0.5


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("nowhere", [], r"--recipe nowhere: docs/recipes/nowhere.yaml not found, expected one of ance_firstp, .*zero_shot, none"),
        ("zeroshot", [], r"--recipe zeroshot: docs/recipes/zeroshot.yaml not found, did you mean zero_shot$"),
        ("none", [], "found no recipe applied to"),
        ("zero_shot", ["report.metric=P@7"], r"report\.metric: found 'P@7'"),
        ("unfit", [], "rescore.x.round"),
        (None, ["rounds.star.steps=4", "rounds.star.epochs=2"], "has no effect, because rounds.star.steps is 4"),
    ],
)
def test_an_invalid_recipe_or_setting_changes_nothing(project: Path, name: str | None, settings: list[str], message: str) -> None:
    Path("docs/recipes/unfit.yaml").write_text("rescore: {x: {run: bm25, round: nobody, encoder: star}}\n")
    before = project.read_bytes()
    with pytest.raises(UserError, match=message), recipes.apply_edits(settings, name, lasting=True):
        pass
    assert project.read_bytes() == before
    assert not recipes.MEMORY.exists()


def test_a_recipe_can_be_undone_later(project: Path) -> None:
    """By a run that finds the data set unfit, unless someone has saved something in the meantime."""
    before = project.read_bytes()
    with recipes.apply_edits(["dataset.source=demo", "bm25.k1=2"], "zero_shot", lasting=True) as undo:
        pass
    saved = project.read_bytes()
    assert saved != before
    project.write_bytes(saved + b"# mine\n")
    undo()
    assert project.read_bytes() == saved + b"# mine\n"
    project.write_bytes(saved)
    undo()
    assert project.read_bytes() == before


@pytest.mark.parametrize("recipe", [None, "zero_shot"])
def test_the_edit_of_a_dry_run_that_was_killed_is_undone_by_the_next(project: Path, recipe: str | None) -> None:
    """Unless someone has saved another params.yaml since. data/source.json may be newer, from git; the next run brings it up to date."""
    before = project.read_bytes()
    with recipes.apply_edits(["bm25.k1=2"], recipe, lasting=False):
        SOURCE.parent.mkdir()
        SOURCE.write_text("{}\n")
        contents = {path: path.read_bytes() for path in (project, SOURCE, recipes.TRIAL, recipes.MEMORY) if path.exists()}
    assert project.read_bytes() == before and not recipes.TRIAL.exists()

    def leave_killed_run(params: bytes) -> None:
        for path, content in contents.items():
            path.write_bytes(content)
        project.write_bytes(params)

    assert contents[project] != before
    leave_killed_run(contents[project])
    SOURCE.write_text('{"from": "git"}')
    with recipes.apply_edits(["bm25.b=0.7"], lasting=False):
        assert read_yaml(project)["bm25"]["k1"] != 2
    assert project.read_bytes() == before
    assert SOURCE.read_text() == '{"from": "git"}'
    assert not any(path.exists() for path in (recipes.TRIAL, recipes.MEMORY))
    leave_killed_run(contents[project] + b"# mine\n")
    with recipes.apply_edits([], lasting=True):
        pass
    assert project.read_bytes() == contents[project] + b"# mine\n"
    assert not recipes.TRIAL.exists()


def test_sections_are_found_in_any_form() -> None:
    text = "# head\na: 1 # one\n\n# of b\nb:\n  # within\n  c: |\n    # text\n\n    d: 2\n\n# of e\ne: {x: 1,\n    y: 2}\n# last\n"
    assert recipes.blocks(text) == {
        "a": "a: 1 # one",
        "b": "b:\n  # within\n  c: |\n    # text\n\n    d: 2",
        "e": "e: {x: 1,\n    y: 2}",
    }
    assert recipes.replace_sections(text, recipes.blocks(text)) == text
    changed = recipes.replace_sections(text, {"b": "b: 3", "f": "f: 4"})
    assert changed == "# head\na: 1 # one\n\n# of b\nb: 3\n\n# of e\ne: {x: 1,\n    y: 2}\n# last\n\nf: 4\n"
    assert recipes.replace_sections(changed, {"f": None}).strip() == recipes.replace_sections(text, {"b": "b: 3"}).strip()


@pytest.mark.parametrize(("recipe", "lasting"), [(None, False), ("zero_shot", False), ("zero_shot", True)])
@pytest.mark.parametrize("file", ["trial.json", "recipe.json", "params.yaml"])
def test_an_edit_that_is_killed_at_any_write_is_undone_by_the_next(
    project: Path, monkeypatch: pytest.MonkeyPatch, recipe: str | None, file: str, lasting: bool
) -> None:
    """Killed just before and just after it. A lasting one without a recipe is one write."""

    class Killed(BaseException):
        """Nothing of ours runs after it."""

    def kill_at_write(path: Path, content: object, *, after: bool, write: Callable[[Path, Any], None]) -> None:
        if path.name != file or after:
            write(path, content)
        if path.name == file:
            monkeypatch.setattr(recipes, "_undo", lambda _: None)
            raise Killed

    with recipes.apply_edits([], "squadshifts", lasting=True):
        pass
    before, memory = project.read_bytes(), recipes.MEMORY.read_bytes()
    for after in (False, True):
        with monkeypatch.context() as patch:
            for name in ("write_text", "write_json"):
                patch.setattr(recipes, name, partial(kill_at_write, after=after, write=getattr(recipes, name)))
            undo = recipes._undo
            with suppress(Killed), recipes.apply_edits(["bm25.k1=2"], recipe, lasting=lasting):
                assert (recipe, file) == (None, "recipe.json"), "killed before"
        monkeypatch.setattr(recipes, "_undo", undo)
        with recipes.apply_edits([], lasting=True):
            pass
        assert project.read_bytes() == before and recipes.MEMORY.read_bytes() == memory
        assert not recipes.TRIAL.exists()
