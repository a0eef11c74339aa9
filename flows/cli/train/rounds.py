"""`retemper rounds ance | remove`."""

from enum import StrEnum
from typing import Annotated

import typer

from flows.cli.command import ProjectCommand, group
from tasks.core.errors import UserError


class OptimizerOption(StrEnum):
    """What of the optimizer a refresh keeps."""

    CONTINUE = "continue"
    MOMENTS = "moments"
    FRESH = "fresh"


app = group(name="rounds", help="Write many rounds into params.yaml at once, or remove them.")


@app.command(cls=ProjectCommand)
def ance(
    *,
    n: Annotated[int, typer.Option("--n", help="Number of rounds, each a refresh of the negatives.")],
    lag: Annotated[int, typer.Option(help="0: wait for fresh negatives; 1: train while they are mined.")] = 1,
    init: Annotated[str, typer.Option(help="The round to start from, such as warmup.")],
    negatives: Annotated[str | None, typer.Option(help="Negatives of the first rounds; default: mined with --init.")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps per round; default: one epoch.")] = None,
    prefix: Annotated[str, typer.Option(help="Rounds are named PREFIX1, PREFIX2, ...")] = "ance",
    optimizer: Annotated[
        OptimizerOption | None,
        typer.Option(
            help="continue: keep the optimizer's state, and one lr schedule over all rounds; moments: keep the state, each round has its "
            "own schedule; fresh: neither. Default: continue with --steps, else moments."
        ),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting for every round, such as lr=1e-5.")
    ] = None,
) -> int:
    """ANCE: n rounds, each with negatives mined by an earlier one."""
    from flows.parameters import ance as rounds

    if n < 1 or lag < 0:
        raise UserError(f"--n {n} --lag {lag}: expected at least one round, and a lag of 0 or more")
    plan = rounds.Ance(
        n=n,
        lag=lag,
        init=init,
        negatives=negatives or init,
        steps=steps,
        prefix=prefix,
        optimizer=optimizer.value if optimizer else None,
        settings=settings or [],
    )
    print(f"params.yaml: added {', '.join(rounds.add(plan))}; retemper run trains them")
    return 0


@app.command(cls=ProjectCommand)
def remove(prefix: Annotated[str, typer.Argument(metavar="PREFIX")]) -> int:
    """Remove PREFIX1, PREFIX2, ... from params.yaml."""
    from flows.parameters import ance as rounds

    print(f"params.yaml: removed {', '.join(rounds.remove(prefix))}")
    return 0
