"""`retemper evaluate`."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from flows.cli.command import ProjectCommand, group, refuse_place
from tasks.core.errors import UserError

RELEVANCE = "--relevance"
NUMBER = re.compile(r"-?\d+")
app = group()


class EvaluateCommand(ProjectCommand):
    """Accepts `--relevance 1 2` as `--relevance 1 --relevance 2`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, list(repeated(args, RELEVANCE)))


def repeated(arguments: Sequence[str], option: str) -> Iterator[str]:
    """`arguments` with `option` before each of the numbers that follow it."""
    follows = 0  # one more than the numbers seen so far; 0: none is expected
    for argument in arguments:
        if follows and NUMBER.fullmatch(argument):
            yield from (option, argument) if follows > 1 else (argument,)
            follows += 1
        else:
            yield argument
            follows = 2 if argument.startswith(f"{option}=") else int(argument == option)


@app.command(cls=EvaluateCommand)
def evaluate(
    *,
    model: Annotated[
        list[str],
        typer.Option(
            metavar="MODEL", help="An encoder's folder, another form of encoder.source, an entry of fuse, or bm25. May be repeated."
        ),
    ],
    data: Annotated[
        list[str],
        typer.Option(
            metavar="SPEC",
            help="demo | beir:PATH | csv:PATH | msmarco:PATH | parquet:PATH | pairs:FILE | irds:ID, or a PATH alone. May be repeated.",
        ),
    ],
    query_prefix: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Text before every query (default: the model's own prompt, if it has one).")
    ] = None,
    query_length: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Maximum tokens of a query (default: tokenize.query_length, or the model's limit if that is lower)."
        ),
    ] = None,
    document_prefix: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Text before every document (default: the model's own prompt, if it has one).")
    ] = None,
    document_length: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Maximum tokens of a document (default: tokenize.document_length, or the model's limit if that is lower)."
        ),
    ] = None,
    titles: Annotated[bool, typer.Option("--titles", help="Put titles before the documents' texts (default: text.titles).")] = False,
    no_titles: Annotated[bool, typer.Option("--no-titles", help="Omit titles.")] = False,
    drop: Annotated[
        bool, typer.Option("--drop", help="Drop and count empty texts, and qrels of unknown ids, instead of refusing them.")
    ] = False,
    ignore_identical_ids: Annotated[
        bool,
        typer.Option(
            "--ignore-identical-ids",
            help="Exclude the document with the query's own id, as BEIR does (default: retrieve.ignore_identical_ids).",
        ),
    ] = False,
    no_ignore_identical_ids: Annotated[bool, typer.Option("--no-ignore-identical-ids", help="Rank that document like any other.")] = False,
    relevance: Annotated[
        list[int] | None,
        typer.Option(
            RELEVANCE,
            metavar="GRADE...",
            help="Lowest relevant grade, or one each for dev and test (default: 1; on dataset.source, evaluate.relevance).",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the metrics to this JSON file.")] = None,
    mteb: Annotated[
        Path | None,
        typer.Option(
            metavar="PLACE",
            help="Also write them in MTEB's form: to this JSON file; for several models or data sets, to MODEL/DATA.json in this folder.",
        ),
    ] = None,
) -> int:
    """Evaluate any model folder on any dataset, zero-shot; data/ is unchanged. Several models or data sets give one table."""
    from flows.evaluating.evaluate import Settings, evaluate
    from flows.evaluating.several import evaluate_all
    from flows.parameters.specs import spec_of

    data = [spec_of(one) for one in data]
    several = len(model) > 1 or len(data) > 1
    refuse_place("--out", out)
    if not several:
        refuse_place("--mteb", mteb)
    elif mteb is not None and not mteb.is_dir():
        refuse_place("--mteb", mteb)
        if mteb.exists():
            raise UserError(f"--mteb {mteb}: found a file, expected a folder: several models or data sets have a file each")
    settings = Settings(
        {"query": query_prefix, "document": document_prefix},
        {"query": query_length, "document": document_length},
        parse_flag_pair("titles", titles, no_titles),
        drop,
        parse_flag_pair("ignore-identical-ids", ignore_identical_ids, no_ignore_identical_ids),
        relevance or None,
    )
    if several:
        return evaluate_all(model, data, settings, out=out, mteb=mteb)
    return evaluate(model[0], data[0], settings, out=out, mteb=mteb)


def parse_flag_pair(name: str, yes: bool, no: bool) -> bool | None:
    """What `--NAME` and `--no-NAME` say: None where neither is given; UserError where both are."""
    if yes and no:
        raise UserError(f"evaluate: found --{name} and --no-{name}, expected one of them")
    return yes if yes or no else None
