"""What all commands share: they work in the project's folder, and take some options in argparse's form."""

from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

Check = Callable[[], None]  # what must hold of params.yaml before a run
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


class ProjectCommand(TyperCommand):
    """A command that works in the project's folder. Its usage is checked, and its help shown, before the folder is."""

    merging = False  # whether it works despite git conflicts in the project's files

    def invoke(self, ctx: Any) -> Any:
        from flows.repository.project import project_folder

        project_folder(merging=self.merging)
        return super().invoke(ctx)


def group(**settings: Any) -> typer.Typer:
    """An empty group of commands. flows.cli.main handles their errors, not typer."""
    return typer.Typer(pretty_exceptions_enable=False, add_completion=False, **settings)
