"""`retemper convert`."""

import shlex
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.cli.command import group
from tasks.core.plurals import counted

if TYPE_CHECKING:
    from flows.converting.convert import Converted
    from tasks.core.text.plain import Shares

app = group()
Files = list[Path] | None
SHARE = "Share of the training queries to move to {split}, by a hash of their text (default: 0.1, or 0 if {split} has files)."


@app.command()
def convert(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A new or empty folder, which becomes a BEIR folder.")],
    train: Annotated[
        Files,
        typer.Argument(
            metavar="FILE",
            exists=True,
            dir_okay=False,
            help="Training files of Tevatron, FlagEmbedding, or sentence-transformers: JSON lines, plain or gzip, or Parquet.",
        ),
    ] = None,
    *,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="SPEC",
            help="A data set instead of files: demo | csv:PATH | msmarco:PATH | parquet:PATH | pairs:FILE | irds:ID, or a PATH alone.",
        ),
    ] = None,
    dev: Annotated[
        Files, typer.Option(exists=True, dir_okay=False, metavar="FILE", help="Files of the same forms for dev; may be repeated.")
    ] = None,
    test: Annotated[
        Files, typer.Option(exists=True, dir_okay=False, metavar="FILE", help="Files of the same forms for test; may be repeated.")
    ] = None,
    corpus: Annotated[
        Files,
        typer.Option(
            exists=True,
            dir_okay=False,
            metavar="FILE",
            help="More documents (Tevatron, Pyserini, BEIR); may be repeated. Default: only the passages in the other files.",
        ),
    ] = None,
    queries: Annotated[
        Files,
        typer.Option(
            exists=True, dir_okay=False, metavar="FILE", help="Queries for --qrels: id and text, separated by a tab; may be repeated."
        ),
    ] = None,
    qrels: Annotated[
        list[str] | None, typer.Option(metavar="SPLIT=FILE", help="TREC qrels (query 0 document grade) of a split; may be repeated.")
    ] = None,
    dev_share: Annotated[float | None, typer.Option(help=SHARE.format(split="dev"), show_default=False)] = None,
    test_share: Annotated[float | None, typer.Option(help=SHARE.format(split="test"), show_default=False)] = None,
) -> int:
    """Convert a data set, or the training data of another tool, to a BEIR folder, for `retemper new` or dataset.source."""
    from flows.converting.convert import Inputs, convert, convert_source, parse_qrels, shares_of
    from flows.parameters.specs import spec_of
    from tasks.core.errors import UserError

    if data is not None:
        if any((train, dev, test, corpus, queries, qrels)) or dev_share is not None or test_share is not None:
            raise UserError(
                "convert: found --data and other files or options, expected --data alone: its data set is copied as it is; drop one"
            )
        with _unwritten():
            _print_result(folder, convert_source(folder, spec_of(data)))
        return 0
    examples = [(split, path) for split, files in (("train", train), ("dev", dev), ("test", test)) for path in files or ()]
    inputs = Inputs(examples, corpus or (), queries or (), [parse_qrels(option) for option in qrels or ()])
    shares = shares_of(inputs, dev_share, test_share)
    with _unwritten():
        converted = convert(folder, inputs, shares)
    _next(folder, _report(folder, converted, shares, without_corpus=not corpus))
    return 0


def _report(folder: Path, converted: "Converted", shares: "Shares", *, without_corpus: bool) -> list[str]:
    """Print what was written, and what is odd about it; return the `--set` options needed. `without_corpus`: no corpus file was given."""
    from tasks.core.errors import printable

    by_form: dict[str, list[Path]] = {}
    for path, form in converted.forms.items():
        by_form.setdefault(form, []).append(path)
    for form, paths in by_form.items():
        print(printable(f"{form}: {paths[0]}{f' and {len(paths) - 1:,} more' if paths[1:] else ''}"))
    queries_by_split, judgments = (
        ", ".join(f"{split} {count:,}" for split, count in counts.items()) for counts in (converted.queries, converted.judgments)
    )
    print(
        printable(
            f"{folder}: {counted(converted.documents, 'documents')}; queries: {queries_by_split}; judgments: {judgments}; "
            f"negatives: {converted.negatives:,}"
        )
    )
    if shares.dev or shares.test:
        print(f"dev and test queries: {shares.dev:g} and {shares.test:g} of the training queries, by a hash of their text")
    for split, share in (("dev", shares.dev), ("test", shares.test)):
        if share and not converted.queries[split]:
            print(f"{split} has no queries: too few in train for a share of {share:g}; give --{split} FILE, or a larger --{split}-share")
    for reason, count in converted.left_out.items():
        print(f"left out: {reason}: {count:,}")
    if without_corpus:
        print("the corpus has only passages of these files: it is smaller than a real one, so figures on it are too high; add --corpus")
    options = []
    if converted.titled:
        print(f"documents with a title: {converted.titled:,}; read only with text.titles=true (title before text, as in Tevatron)")
        options.append("--set text.titles=true")
    if converted.leaks:
        all_leak = converted.leaks >= converted.queries["train"]  # dropping them would leave nothing to train on
        remedy = (
            "they are the entire train split; use other files for dev and test"
            if all_leak
            else "prepare.leaks=drop removes them from train"
        )
        print(f"training queries that are also in dev or test: {converted.leaks:,}; {remedy}")
        options += [] if all_leak else ["--set prepare.leaks=drop"]
    if converted.white:
        print(f"ids with white space: {converted.white:,}; prepare.ids=escape accepts them")
        options.append("--set prepare.ids=escape")
    if converted.negatives:
        options.append("--set rounds.warmup.negatives=official")
    return options


@contextmanager
def _unwritten() -> Iterator[None]:
    """Print that nothing was written if the command is stopped."""
    try:
        yield
    except KeyboardInterrupt as stopped:
        if not stopped.args:  # otherwise the signal's handler has said so
            print("\nretemper: stopped; nothing was written", file=sys.stderr)
        raise KeyboardInterrupt(*(stopped.args or (signal.SIGINT,))) from None


def _print_result(folder: Path, answer: Mapping[str, Any]) -> None:
    """Print what was written of a data set (the answer of tasks.prepare.commands.beir_folder), and the next command."""
    from tasks.core.errors import printable

    parts = [counted(answer["documents"], "documents")]
    for kind in ("queries", "judgments"):
        if answer[kind]:
            by_split = (f"{split} {count:,}".lstrip() for split, count in answer[kind].items())
            parts.append(f"{kind}: {', '.join(by_split)}")
    parts.append(f"negatives: {answer['negatives']:,}")
    print(printable(f"{folder}: {'; '.join(parts)}"))
    for reason, count in answer["left_out"].items():
        print(f"left out: {reason}: {count:,}")
    options = []
    if not answer["judgments"]:
        print("no queries with judgments; recipe cold_start makes queries from the documents")
    if answer["white"]:
        print(f"ids with white space: {answer['white']:,}; prepare.ids=escape accepts them")
        options.append("--set prepare.ids=escape")
    if answer["empty"]:
        print(f"documents and queries without text: {answer['empty']:,}; prepare.empty_texts=drop drops them")
        options.append("--set prepare.empty_texts=drop")
    _next(folder, [*options, *(["--set rounds.warmup.negatives=official"] if answer["negatives"] else [])])


def _next(folder: Path, options: Sequence[str]) -> None:
    from tasks.core.errors import printable

    if _inbox() == folder.resolve().parent:
        print("next: retemper intake")
    else:
        print(printable(" ".join(["next: retemper new my-project --data", shlex.quote(str(folder)), *options])))


def _inbox() -> Path | None:
    """The inbox of the project in the current folder; None if there is none, or retraining.yaml is malformed."""
    from flows.explaining.data import intake
    from tasks.core.errors import UserError

    try:
        place = intake().inbox
    except UserError:
        return None
    return Path(place).expanduser().resolve() if place else None
