"""What all commands share: they work in the project's folder, and take some options in argparse's form."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from tasks.core.errors import UserError

Check = Callable[[], None]  # checks params.yaml before a run
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Edit params.yaml permanently: section.key=value (YAML 1.2); an empty value removes the key. May be repeated.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
TestFigures = Annotated[bool, typer.Option("--test", help="Show test figures as well; choose by dev.")]


def refuse_place(option: str, file: Path | None) -> None:
    """UserError where `file` cannot be written: a folder is there, or the folder above it is missing."""
    if file is not None and file.is_dir():
        raise UserError(f"{option} {file}: found a folder, expected the name of a file")
    if file is not None and not file.parent.is_dir():
        raise UserError(f"{option} {file}: {file.parent} is not a folder, expected one to write the file to; make it first")


class ProjectCommand(TyperCommand):
    """A command that works in the project's folder. Its usage is checked, and its help shown, before the folder is."""

    merging = False  # whether it works despite git conflicts in the project's files

    def invoke(self, ctx: Any) -> Any:
        from flows.repository.project import project_folder, settings_errors

        project_folder(merging=self.merging)
        with settings_errors():
            return super().invoke(ctx)


def group(**settings: Any) -> typer.Typer:
    """An empty group of commands. flows.cli.main handles their errors, not typer."""
    return typer.Typer(pretty_exceptions_enable=False, add_completion=False, **settings)
