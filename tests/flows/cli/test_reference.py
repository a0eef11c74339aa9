"""The generated pages of docs/ are current; the schema refuses what the records refuse; the walker lists every command."""

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from jsonschema import Draft202012Validator

from flows.cli.reference import COMMAND, commands_text, pages, parameter_schema, parameters_text
from tasks.core.params.sections import read_yaml
from tasks.params import Parameters

ROOT = Path(__file__).resolve().parents[3]
RECIPES = sorted((ROOT / "docs" / "recipes").glob("*.yaml"))


def faults(sections: dict[str, Any], *, partial: bool = False) -> list[str]:
    """What the schema refuses in `sections`; `partial`: sections may be missing."""
    schema = parameter_schema()
    if partial:
        del schema["required"]
    return [f"{'.'.join(map(str, error.path))}: {error.message}" for error in Draft202012Validator(schema).iter_errors(sections)]


def fields_of(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and schema of every field of every record."""
    for record, definition in schema["$defs"].items():
        for key, field in definition["properties"].items():
            yield f"{record}.{key}", field


@pytest.mark.parametrize("path", pages(), ids=str)
def test_generated_page_is_current(path: Path) -> None:
    assert (ROOT / path).read_text(encoding="utf-8") == pages()[path], f"{path} is outdated; run {COMMAND}"


def test_every_parameter_has_a_description() -> None:
    missing = [name for name, field in fields_of(parameter_schema()) if not field.get("description")]
    assert not missing


def test_page_lists_every_key_of_every_section() -> None:
    sections = dict(part.split("\n", 1) for part in parameters_text().split("\n## ")[1:])
    for name, definition in parameter_schema()["properties"].items():
        if "enum" in definition:  # a value of the file's own
            assert all(f"`{value}`" in sections[name] for value in definition["enum"])
            continue
        text = sections[f"{name}.NAME" if "additionalProperties" in definition else name]
        entry = definition.get("additionalProperties", definition)
        reference = next(option["$ref"] for option in entry.get("anyOf", [entry]) if "$ref" in option).rsplit("/", 1)[-1]
        for key in parameter_schema()["$defs"][reference]["properties"]:
            assert f"\n| `{key}` | " in text, f"{name}.{key}"
    assert "| `lr` | float > 0 | `5e-05` | peak learning rate" in sections["rounds.NAME"]
    assert "| `scratch.width` | int ≥ 8 | required | " in sections["pretrain.NAME"]
    assert "| `threads` | int ≥ 1 or `null` | `null` | " in sections["runtime.yaml"]


def test_schema_accepts_the_parameters_and_the_recipes() -> None:
    assert not faults(read_yaml(ROOT / "params.yaml"))
    assert RECIPES
    for recipe in RECIPES:
        assert not faults(read_yaml(recipe), partial=True), recipe.name


@pytest.mark.parametrize(
    ("section", "value", "message"),
    [
        ("bm25", {"k2": 1}, "k2"),
        ("bm25", {"b": 1.5}, "1.5"),
        ("rounds", {"Star": {"init": "base", "negatives": "none"}}, "Star"),
        ("rounds", {"star": {"init": "base", "negatives": "none", "loss": "mse"}}, "mse"),
        ("rounds", {}, "non-empty"),
        ("mine", {"star": {}}, "search"),
        ("evaluate", {"relevance": {"train": 1}}, "train"),
        ("evaluate", {"relevance": 0}, "0"),
    ],
)
def test_schema_refuses_what_the_records_refuse(section: str, value: Any, message: str) -> None:
    sections = deepcopy(read_yaml(ROOT / "params.yaml")) | {section: value}
    messages = faults(sections)
    assert len(messages) == 1
    assert message in messages[0]


@pytest.mark.parametrize("relevance", [2, {"test": 2}])
def test_schema_accepts_either_form_of_relevance(relevance: Any) -> None:
    sections = read_yaml(ROOT / "params.yaml") | {"evaluate": {"relevance": relevance}}
    assert not faults(sections)
    assert Parameters.model_validate(sections).evaluate.relevance["test"] == 2


def test_params_yaml_names_its_schema_for_editors() -> None:
    first = (ROOT / "params.yaml").read_text(encoding="utf-8").split("\n", 1)[0]
    label, name = first.split("$schema=")
    assert label == "# yaml-language-server: "
    assert Path(name) in pages()


def test_commands_page_lists_nested_commands_arguments_and_options() -> None:
    app = typer.Typer(help="Retrains retrievers.", add_completion=False)
    rounds = typer.Typer(help="Write many rounds at once.")
    app.add_typer(rounds, name="rounds")

    @app.command()
    def run(
        stages: Annotated[list[str] | None, typer.Argument(metavar="STAGE", help="stop at these stages")] = None,
        settings: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="edit params.yaml")] = None,
    ) -> None:
        """Bring the report up to date."""

    @rounds.command()
    def ance(lag: Annotated[int, typer.Option(min=0, help="0: wait for fresh negatives")] = 1) -> None:
        """ANCE: n rounds."""

    text = commands_text(app)
    assert text.startswith(f"# Commands\n\n<!-- Generated by `{COMMAND}`; do not edit. -->\n")
    for expected in (
        "## `retemper run`\n\nBring the report up to date.",
        "$ retemper run [OPTIONS] [STAGE]...",
        "stop at these stages",
        "* `--set KEY=VALUE`: edit params.yaml",
        "### `retemper rounds ance`",
        ": 0: wait for fresh negatives  [default: 1; x>=0]",
    ):
        assert expected in text, text
    assert "--help" not in text
