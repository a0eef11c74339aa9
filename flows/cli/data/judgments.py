"""`retemper judgments`."""

from pathlib import Path
from typing import Annotated

import typer

from flows.cli.command import ProjectCommand, group
from flows.cli.train.compare import Split
from tasks.core.plurals import counted

app = group()


@app.command(cls=ProjectCommand)
def judgments(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="CSV with query-id, corpus-id, score; rows without a score are ignored.")],
    batch: Annotated[Path, typer.Argument(metavar="BATCH", help="The folder to write, a batch for the inbox of `retemper retrain`.")],
    *,
    split: Annotated[Split, typer.Option(help="The split that the queries belong to.")] = Split.DEV,
) -> int:
    """Turn judged suspects (data/failures/suspects/SPLIT.csv with scores filled in) into the qrels of a batch."""
    from flows.feedback.judgments import take_in

    judged, blank = take_in(file, batch, split.value)
    print(f"{batch / 'qrels' / f'{split.value}.tsv'}: {counted(judged, 'judgments')}; ignored: {counted(blank, 'rows without a score')}")
    return 0
