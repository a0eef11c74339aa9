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
        help="Edit params.yaml, lastingly: section.key=value (YAML 1.2); no value takes the key away. May be repeated.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
TestFigures = Annotated[bool, typer.Option("--test", help="Show test figures as well; choose by dev.")]


class ProjectCommand(TyperCommand):
    """A command that works in the project's folder. Its usage is checked, and its help shown, before one is looked for."""

    merging = False  # whether git's conflicts in the project's files are no hindrance

    def invoke(self, ctx: Any) -> Any:
        from flows.repository.project import project_folder

        project_folder(merging=self.merging)
        return super().invoke(ctx)


def group(**settings: Any) -> typer.Typer:
    """An empty group of commands. What goes wrong in one is no business of typer's: see flows.cli.main."""
    return typer.Typer(pretty_exceptions_enable=False, add_completion=False, **settings)
