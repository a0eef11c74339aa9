"""`retemper intake [check | accept]`."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli.command import Json, ProjectCommand, group
from tasks.core.errors import printable

if TYPE_CHECKING:
    from flows.intake.settings import Intake
    from flows.intake.verdict import Batch

SHOWN = 10  # lines of a batch that are printed; --json has gate.MOST of them
app = group(name="intake", invoke_without_command=True)


@app.callback()
def show(context: typer.Context, as_json: Json = False) -> int:
    """The batches of the inbox: accepted, quarantined and why, being written, left out, or not checked yet; check one, accept one."""
    context.obj = as_json
    if context.invoked_subcommand:
        return 0
    from flows.intake.inbox import list_batches
    from flows.process.display import fitted_table, terminal_width
    from flows.repository.project import project_folder

    project_folder()
    batches = list_batches(*rule(), Path.cwd())
    rows = [
        [batch.name, f"{batch.state}{' by hand' * (batch.by == 'hand')}", batch.reason or batch.figures * bool(batch.when)]
        for batch in batches
    ]
    text = fitted_table(["batch", "state", "what"], rows, terminal_width()) if rows else "no batch yet"
    print(json.dumps([asdict(batch) for batch in batches], indent=2, ensure_ascii=False) if as_json else printable(text))
    return 0


@app.command(cls=ProjectCommand)
def check(
    context: typer.Context,
    batch: Annotated[Path, typer.Argument(help="A folder or a file of pairs, or the name of a batch in the inbox.")],
    as_json: Json = False,
) -> int:
    """Check a batch as the next retraining would; status 1 if it would be quarantined. Nothing is kept."""
    from flows.intake.inbox import check_folder

    verdict = check_folder(*rule(), Path.cwd(), folder=batch)
    _show(verdict, as_json or context.obj)
    return 0 if verdict.state == "accepted" else 1


@app.command(cls=ProjectCommand)
def accept(
    context: typer.Context, batch: Annotated[str, typer.Argument(help="Name of a quarantined batch in the inbox.")], as_json: Json = False
) -> int:
    """Accept a quarantined batch: the next retraining takes it in. Refused if prepare would refuse the merged data set."""
    from flows.intake.inbox import accept

    _show(accept(*rule(), Path.cwd(), name=batch), as_json or context.obj)
    return 0


def rule() -> "tuple[Intake, str]":
    from flows.parameters.checks import PARAMS
    from flows.retraining.settings import read_retraining
    from tasks.core.params.sections import read_yaml

    return read_retraining().intake, str((read_yaml(PARAMS).get("dataset") or {}).get("source", "demo"))


def _show(batch: "Batch", as_json: bool) -> None:
    if as_json:
        print(json.dumps(asdict(batch), indent=2, ensure_ascii=False))
        return
    output = [batch.line, *(f"  {line}" for line in batch.lines[:SHOWN] if line not in batch.wrong)]
    if (remaining := len(batch.lines) - SHOWN) > 0:
        output.append(f"  and {remaining} more line{'s' * (remaining != 1)}: --json")
    if batch.state != "accepted" or batch.by == "hand":
        output.append(f"  {batch.figures}")
    print(printable("\n".join(output)))
