"""The command line: `retemper run | search | evaluate | retrain | champion | serve`. Everything heavy is imported where it is used."""

import os
import signal
import sys
from argparse import SUPPRESS, ArgumentParser, BooleanOptionalAction, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from flows.cli import team as team_commands
from flows.process.processes import ending_signals
from tasks.core.stage.errors import UserError, one_line_errors, printable

PARAMS = Path("params.yaml")
EXAMPLES = """\
examples:
  retemper run                                            bring the report up to date: only what changed runs
  retemper run --set dataset.source=beir:../scifact       a dataset (demo | beir:PATH | csv:PATH | msmarco:PATH | parquet:PATH | irds:ID)
  retemper run --set rounds.star.lr=1e-5                  one knob; the edit of params.yaml lasts
  retemper run --set rounds.x.init=star --set rounds.x.negatives=warmup    a new round; `--set rounds.x=` takes it away
  retemper rounds ance --n 5 --lag 1 --init warmup        five ANCE rounds; `retemper rounds remove ance` takes them away
  retemper run --recipe zero_shot                         docs/recipes/zero_shot.yaml; `--recipe none` takes it back
  retemper run --dry-run                                  which stages may run
  retemper search "capital of France"                     the best model's top ten
  retemper evaluate --model data/encoders/star --data beir:../nfcorpus     any model on any dataset, zero-shot
  retemper remote add team s3://bucket/path               share what is computed; whatever anyone has computed is fetched
  retemper merge                                          after a git merge that stopped: params.yaml and dvc.lock of both sides
  retemper sweep grid.yaml                                the points of a grid as DVC experiments
  retemper lineage star                                   what made a model
  retemper retrain                                        new data in, train, and crown the new model if it is not worse
  retemper champion                                       which model is served, since when, from which data
  retemper champion rollback                              the one before it is served again
  retemper serve --cron "0 3 * * 1"                       retrain every Monday at three

Interrupted runs go on where they stood: finished stages are kept.
"""


def build_parser() -> ArgumentParser:
    """The whole command line."""
    parser = ArgumentParser(
        prog="retemper",
        description="Retrains dense retrievers as a cached and orchestrated pipeline; run it in the project's folder.",
        epilog=EXAMPLES,
        formatter_class=RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="bring the report up to date", epilog=EXAMPLES, formatter_class=RawDescriptionHelpFormatter)
    run.add_argument(
        "targets", nargs="*", metavar="STAGE", help="stop at these stages of dvc.yaml (train@star, or train for all); default: report"
    )
    run.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="edit params.yaml, lastingly: section.key=value (YAML 1.2); no value takes the key away",
    )
    run.add_argument(
        "--recipe",
        metavar="NAME",
        help="put the sections of docs/recipes/NAME.yaml into params.yaml, lastingly, before --set; none: the former ones again",
    )
    run.add_argument("--dry-run", action="store_true", help="name the stages that may run, and change nothing")
    run.set_defaults(work=_run)

    rounds = commands.add_parser("rounds", help="write many rounds into params.yaml at once, or take them out")
    kinds = rounds.add_subparsers(dest="kind", required=True, metavar="KIND")
    ance = kinds.add_parser("ance", help="ANCE: n rounds, each with negatives mined by an earlier one")
    ance.add_argument("--n", type=int, required=True, help="rounds, which are refreshes of the negatives")
    ance.add_argument(
        "--lag", type=int, default=1, help="0: wait for fresh negatives; 1: train while they are mined (default: %(default)s)"
    )
    ance.add_argument("--init", required=True, help="the round to start from, such as warmup")
    ance.add_argument("--negatives", help="of the first rounds; default: mined with --init")
    ance.add_argument("--steps", type=int, help="of a round; default: an epoch")
    ance.add_argument("--prefix", default="ance", help="rounds are named PREFIX1, PREFIX2, ... (default: %(default)s)")
    ance.add_argument("--carry-on", action="store_true", help="keep the optimizer's state, and one lr schedule over all rounds")
    ance.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of every round, such as lr=1e-5")
    ance.set_defaults(work=_ance)
    removal = kinds.add_parser("remove", help="take PREFIX1, PREFIX2, ... out of params.yaml")
    removal.add_argument("prefix", metavar="PREFIX")
    removal.set_defaults(work=_remove_rounds)

    search = commands.add_parser("search", help="search the corpus with a trained model")
    search.add_argument("text", help="the query")
    search.add_argument("-k", type=int, default=10, help="hits shown (default: %(default)s)")
    search.add_argument("--model", help="a round or an adore; default: the best on dev by report.metric")
    search.set_defaults(work=_search)

    evaluate = commands.add_parser("evaluate", help="evaluate any model folder on any dataset, zero-shot; data/ stays as it is")
    evaluate.add_argument("--model", required=True, help="a folder with an encoder, or another form of encoder.source")
    evaluate.add_argument("--data", required=True, metavar="SPEC", help="demo | beir: | csv: | msmarco: | parquet:PATH | irds:ID")
    for kind in ("query", "document"):
        evaluate.add_argument(
            f"--{kind}-prefix", metavar="TEXT", help=f"before every {kind} (default: the model's own prompt, if it names one)"
        )
        evaluate.add_argument(
            f"--{kind}-length", type=int, metavar="N", help=f"tokens of a {kind} (default: tokenize.{kind}_length, or the model's longest)"
        )
    evaluate.add_argument(
        "--titles", action=BooleanOptionalAction, default=None, help="titles before the documents' texts, or not (default: text.titles)"
    )
    evaluate.add_argument(
        "--drop", action="store_true", help="drop and count empty texts, and qrels of unknown ids, rather than refuse them"
    )
    evaluate.add_argument(
        "--ignore-identical-ids",
        action=BooleanOptionalAction,
        default=None,
        help="leave a query's document of its own id out, as BEIR does (default: retrieve.ignore_identical_ids)",
    )
    evaluate.add_argument(
        "--relevance",
        type=int,
        nargs="+",
        metavar="GRADE",
        help="lowest grade that is relevant, or that of dev and that of test (default: 1; on dataset.source evaluate.relevance)",
    )
    evaluate.add_argument("--out", type=Path, help="also write the metrics to this JSON file")
    evaluate.set_defaults(work=_evaluate)

    retrain = commands.add_parser("retrain", help="one retraining now: new data, pipeline, comparison, champion; in a worktree of its own")
    retrain.add_argument(
        "--follow", default="HEAD", metavar="REV", help="branch or commit whose parameters and code are run (default: HEAD)"
    )
    retrain.set_defaults(work=_retrain)

    champion = commands.add_parser("champion", help="the model that is served: show it, set it, roll back, export it")
    champion.add_argument(
        "--history", action="store_true", help="every retraining, rollback and champion set by hand: how it ended and why"
    )
    champion.add_argument("--json", action="store_true", help="as JSON")
    champion.set_defaults(work=_champion, action="show")
    actions = champion.add_subparsers(dest="action", metavar="ACTION")
    set_it = actions.add_parser("set", help="crown a model by hand")
    set_it.add_argument("wanted", metavar="MODEL|REV", help="a model of the last retraining (or of HEAD), champion/N, or REVISION:MODEL")
    actions.add_parser("rollback", help="crown the champion before this one again")
    actions.add_parser("history", help="every retraining, rollback and champion set by hand: how it ended and why")
    export = actions.add_parser("export", help="copy its encoder and index from the cache, to be served")
    export.add_argument("folder", type=Path, help="a new folder")
    for action in actions.choices.values():
        action.add_argument("--json", action="store_true", default=SUPPRESS, help="as JSON")

    serve = commands.add_parser("serve", help="retrain again and again, on a schedule")
    when = serve.add_mutually_exclusive_group(required=True)
    when.add_argument("--cron", metavar="EXPR", help='cron expression, such as "0 3 * * *"')
    when.add_argument("--interval", type=int, metavar="SECONDS", help="seconds between two runs, counted from 2024-01-01 00:00 UTC")
    serve.add_argument("--follow", metavar="REV", help="branch or commit that each run takes up (default: the branch checked out now)")
    serve.add_argument("--timezone", metavar="ZONE", help="of the cron expression, such as Europe/Berlin (default: this machine's)")
    serve.add_argument("--name", help="of the deployment (default: FOLDER-DIGEST@HOST)")
    serve.add_argument("--pool", help="deploy to this work pool of the server at PREFECT_API_URL, and return")
    serve.set_defaults(work=_serve)

    team_commands.add_commands(commands)
    return parser


def main(arguments: Sequence[str] | None = None, check: Callable[[], None] | None = None) -> int:
    """Carry out a command line; returns the exit status: 0 only when all that was asked is done, 2 for a user's mistake."""
    _open_streams()
    options = build_parser().parse_args(arguments)
    try:
        with _interrupted_by_signals(), one_line_errors():
            from flows.repository.project import project_folder

            project_folder(merging=options.command == "merge")
            status = int(options.work(options, check))
    except KeyboardInterrupt as stopped:
        if not stopped.args:  # a run that is stopped has said so itself, at once
            print("\nretemper: stopped; finished stages are kept, and the same command goes on from there", file=sys.stderr)
        number = stopped.args[0] if stopped.args else signal.SIGINT
        status = 128 + int(number)
    except BrokenPipeError:  # whoever reads has seen enough: `retemper lineage star | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 128 + signal.SIGPIPE
    if arguments is None:
        leave_quietly(status)
    return status


def _open_streams() -> None:
    """What the caller has closed (`>&-`) reads and writes nothing; else the next file that is opened would take its number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, "w" if number else "r"))


@contextmanager
def _interrupted_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP raise KeyboardInterrupt with their number, so that what a command would undo at Ctrl-C is undone."""

    def stop(number: int, _frame: FrameType | None) -> None:
        with suppress(OSError):
            os.write(2, b"\nretemper: stopped\n")
        raise KeyboardInterrupt(number)

    before = {number: signal.signal(number, stop) for number in ending_signals() if number != signal.SIGINT}
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is stop:  # else a run that is stopped goes on hearing none
                signal.signal(number, handler)


def leave_quietly(status: int) -> None:
    """What is left is to exit, which takes Prefect a moment: from now on a signal only shortens that."""
    for number in ending_signals():
        signal.signal(number, lambda *_: os._exit(status))


def _run(options: Namespace, check: Callable[[], None] | None) -> int:
    from flows.parameters.recipes import edited
    from flows.pipeline import run
    from flows.pipeline.plan import check_parameters

    check = check or check_parameters
    undoing: list[Callable[[], None]] = []

    def edit_and_check() -> None:
        with edited(options.set, options.recipe, lasting=True) as undo:
            check()
        undoing.append(undo)

    if options.dry_run:
        names = run.dry_run(options.targets, check, edited(options.set, options.recipe, lasting=False))
        print("\n".join([*names, f"{len(names)} stages may run (fewer, where outputs come out the same or are in the cache)"]))
        return 0
    try:
        run.run(options.targets, edit_and_check, edits=options.set, undo=lambda: undoing[0]())
    except run.StagesFailed as failed:
        for problem in failed.problems:
            print(f"retemper: {printable(problem)}", file=sys.stderr)
        return failed.status
    return 0


def _ance(options: Namespace, _: object) -> int:
    from flows.parameters import ance as rounds

    if options.n < 1 or options.lag < 0:
        raise UserError(f"--n {options.n} --lag {options.lag}: expected at least one round, and a lag of 0 or more")
    plan = rounds.Ance(
        n=options.n,
        lag=options.lag,
        init=options.init,
        negatives=options.negatives or options.init,
        steps=options.steps,
        prefix=options.prefix,
        carry_on=options.carry_on,
        settings=options.set,
    )
    print(f"{PARAMS}: added {', '.join(rounds.add(plan))}; retemper run trains them")
    return 0


def _remove_rounds(options: Namespace, _: object) -> int:
    from flows.parameters import ance as rounds

    print(f"{PARAMS}: removed {', '.join(rounds.remove(options.prefix))}")
    return 0


def _search(options: Namespace, _: object) -> int:
    from flows.results.search import search

    return search(options.text, options.k, options.model)


def _evaluate(options: Namespace, _: object) -> int:
    from flows.experiments.evaluate import Settings, evaluate

    prefixes = {"query": options.query_prefix, "document": options.document_prefix}
    lengths = {"query": options.query_length, "document": options.document_length}
    settings = Settings(prefixes, lengths, options.titles, options.drop, options.ignore_identical_ids, options.relevance)
    return evaluate(options.model, options.data, options.out, settings)


def _serve(options: Namespace, _: object) -> int:
    from flows.retraining.schedule import serve

    return serve(options.cron, options.interval, options.name, options.timezone, options.follow, options.pool)


def _retrain(options: Namespace, check: Callable[[], None] | None) -> int:
    from flows.pipeline.plan import check_parameters
    from flows.retraining import retrain

    ended = retrain.retrain(Path.cwd(), options.follow, check or check_parameters)
    return 1 if ended.result == "failed" else 0


def _champion(options: Namespace, _: object) -> int:
    from flows.cli.champion import command

    return command(Path.cwd(), "history" if options.history else options.action or "show", options)


if __name__ == "__main__":
    raise SystemExit(main())
