"""`retemper clicks`."""

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from flows.cli.command import ProjectCommand, group
from tasks.core.plurals import counted

app = group()


class Method(Enum):
    """Where propensities come from."""

    HARVEST = "harvest"
    POWER = "power"


@app.command(cls=ProjectCommand)
def clicks(
    log: Annotated[
        Path, typer.Argument(metavar="LOG", help="JSON lines, or .csv: query, shown, clicked (or position); or the server's log.")
    ],
    batch: Annotated[Path, typer.Argument(metavar="BATCH", help="The folder to write, a batch for the inbox of `retemper retrain`.")],
    *,
    propensities: Annotated[
        Method, typer.Option(help="harvest: from documents shown at several ranks for one query; power: 1 / rank^eta.")
    ] = Method.HARVEST,
    eta: Annotated[
        float, typer.Option(min=0, help="Exponent of 1 / rank^eta; with harvest, used only where the log has too little data.")
    ] = 1.0,
    max_weight: Annotated[float, typer.Option(min=1, help="Maximum weight of a click.")] = 10.0,
    min_impressions: Annotated[int, typer.Option(min=1, help="Minimum number of times that a document was shown for a query.")] = 5,
    min_clicks: Annotated[int, typer.Option(min=1, help="Minimum number of clicks on it.")] = 1,
    dev_share: Annotated[float, typer.Option(min=0, max=1, help="Share of the queries to hold out as dev, by a hash of their text.")] = 0.0,
    dev_relevance: Annotated[
        float, typer.Option(min=0, help="Minimum relevance of a dev pair: the estimated clicks per view, minus the standard error.")
    ] = 0.2,
) -> int:
    """Turn a click log into a batch of training queries, with pairs weighted against position bias."""
    from flows.cli.data.intake import rule
    from flows.feedback.clicks import Rule, take_in
    from flows.intake.inbox import known_records
    from tasks.core.errors import printable

    intake, source = rule()
    click_rule = Rule(propensities.value, eta, max_weight, min_impressions, min_clicks, dev_share, dev_relevance)
    result = take_in(log, batch, click_rule, known=known_records(intake, source, Path.cwd()))
    estimates = result.propensities
    by_rank = ", ".join(f"{rank}: {estimates.values[rank]:.2f}" for rank in sorted(estimates.values)[:10])
    method = (
        f"measured at {counted(len(estimates.measured), 'ranks')}, eta {estimates.eta:.2f} fitted"
        if estimates.measured
        else f"1 / rank^{estimates.eta:g}"
    )
    pairs = ", ".join(counted(count, f"pairs of {split}") for split, count in result.pairs.items())
    print(f"{batch}: {counted(result.queries, 'queries')}, {pairs}, of {counted(result.log.searches, 'searches')}")
    print(f"propensities by rank ({method}): {by_rank}")
    for reason, count in result.left_out.items():
        print(f"left out: {counted(count, f'pairs {reason}')}")
    if result.log.skipped:
        print(printable(f"skipped: {counted(result.log.skipped, 'lines')}, the first: {result.log.first}"))
    return 0
