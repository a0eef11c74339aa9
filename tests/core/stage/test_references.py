"""Functions that parameters name: frozen with the digest of their code, imported by name."""

from pathlib import Path

import pytest

from tasks.core.errors import UserError
from tasks.core.files import read_json
from tasks.core.stage.code import Reader
from tasks.core.stage.frozen import freeze
from tasks.core.stage.references import freeze_references, frozen_references, named_code, without_digests

MINE = "tasks.train.mine:loss"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in {
        "__init__": "",
        "train/__init__": "",
        "train/mine": "from tasks.train.scaled import factor\n\n\ndef loss(scores):\n    return scores * factor\n",
        "train/scaled": "factor = 2\n",
        "train/other": "x = 1\n",
    }.items():
        path = tmp_path / f"tasks/{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def freeze_mine(project: Path) -> str:
    text: str = freeze_references(MINE, Reader(project))
    return text


def test_only_references_change_wherever_they_are(project: Path) -> None:
    def value(loss: str) -> dict[str, object]:
        return {"rounds": {"star": {"loss": loss, "lr": 1e-5}}, "list": ["nll", loss], "source": "beir:tasks.x:y", "none": None}

    digest = freeze_mine(project).removeprefix(f"{MINE}@")
    assert len(digest) == 16
    text = freeze_references(value(MINE), Reader(project))
    assert text == value(f"{MINE}@{digest}")
    assert frozen_references(text) == {MINE: digest}
    assert frozen_references(value(MINE)) == {}


@pytest.mark.parametrize(
    ("name", "old", "new", "same"),
    [
        ("mine", "scores * factor", "scores + factor", False),
        ("scaled", "2", "3", False),
        ("__init__", "", "y = 1\n", False),
        ("mine", "\n    return", "  # why\n    return", True),
        ("other", "1", "2", True),
    ],
)
def test_a_digest_is_of_the_code_that_computes(project: Path, name: str, old: str, new: str, same: bool) -> None:
    before, file = freeze_mine(project), project / f"tasks/train/{name}.py"
    file.write_text(file.read_text().replace(old, new) if old else new)
    assert (freeze_mine(project) == before) is same


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("from tasks.core.stage.errors import UserError", "tasks.core.stage.errors"),
        ("import tasks.train.scaled, tasks.train.lost", "tasks.train.lost"),
        ("from .lost import loss as other", "tasks.train.lost"),
        ("from tasks.train.scaled import factor as other", None),
        ("from tasks.train import scaled", None),
        ("from . import scaled", None),
        ("import tasks.train.scaled, json", None),
    ],
)
def test_a_missing_module_is_named_with_its_line(project: Path, line: str, name: str | None) -> None:
    """As when the imports of a user's own loss have moved: refused before the run, not in the middle of it."""
    file = project / "tasks/train/mine.py"
    file.write_text(f"{file.read_text()}\n\n{line}\n")
    if name is None:
        assert freeze_mine(project)
        return
    with pytest.raises(UserError, match=rf"^tasks/train/mine\.py:8: imports {name}, which does not exist"):
        freeze_mine(project)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("tasks.train.missing:loss", "there is no tasks/train/missing.py"),
        ("tasks.train.mine:missing", "tasks/train/mine.py defines no missing"),
        (f"{MINE}@0123456789abcdef", "remove the @"),
    ],
)
def test_what_cannot_be_named(project: Path, value: str, message: str) -> None:
    with pytest.raises(UserError, match=r"^params.yaml: rounds.star.loss: found ") as error:
        freeze_references({"rounds": {"star": {"loss": value}}}, Reader(project))
    assert message in str(error.value)


def test_only_what_names_changed_code_is_frozen_anew(project: Path) -> None:
    (project / "tasks/train/__main__.py").write_text("x = 1\n")
    (project / "params.yaml").write_text(f"rounds: {{own: {{loss: '{MINE}'}}, other: {{loss: nll}}}}\n")
    freeze(project)
    before, code = read_json(project / "data/params.json")["rounds"], (project / "data/code.json").read_bytes()
    (project / "tasks/train/scaled.py").write_text("factor = 3\n")
    freeze(project)
    after = read_json(project / "data/params.json")["rounds"]
    assert before["own"] != after["own"]
    assert before["other"] == after["other"] == {"loss": "nll"}
    assert (project / "data/code.json").read_bytes() == code


def test_any_name_of_a_module_may_be_named(project: Path) -> None:
    (project / "tasks/train/mine.py").write_text("from tasks.train.scaled import factor\nif factor:\n    loss = min\n")
    for name in ("factor", "loss"):
        assert frozen_references(freeze_references(f"tasks.train.mine:{name}", Reader(project))).keys() == {f"tasks.train.mine:{name}"}
    with pytest.raises(UserError, match="defines no min"):
        freeze_references("tasks.train.mine:min", Reader(project))


def test_a_frozen_value_as_it_was_written(project: Path) -> None:
    value = {"a": [MINE, "nll"], "b": {"c": MINE}, "d": 1}
    assert without_digests(freeze_references(value, Reader(project))) == value


def test_a_reference_is_imported() -> None:
    from tasks.train.losses import nll

    assert named_code("tasks.train.losses:nll") is nll
    assert named_code("tasks.train.losses:nll@0123456789abcdef") is nll
    assert named_code("nll") is None
