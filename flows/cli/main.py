"""The command line. Everything heavy is imported where it is used, so that help and completion are immediate."""

import codecs
import io
import json
import os
import re
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from flows.cli.command import Check
from flows.cli.data import clicks, intake, judgments
from flows.cli.examples import EXAMPLES, MORE_EXAMPLES
from flows.cli.explain import bisect, exposure, lineage, why
from flows.cli.operate import champion, retrain, serve
from flows.cli.share import forget, gc, merge, remote
from flows.cli.start import convert, new, upgrade
from flows.cli.train import browse, compare, evaluate, preview, rounds, run, search, sweep, watch
from flows.process.processes import ending_signals, name_user
from tasks.core.errors import handle_broken_pipe, one_line_errors, printable

NAME = "retemper"
ESCAPED = "retemper-json"  # the name under which codecs know `_escape_missing`
OWN = [Path(name) for name in ("flows/cli/__main__.py", "tasks", "dvc.yaml", "params.yaml")]  # a project with these runs its own code
BRING_OURS = ("new", "upgrade")  # commands that bring this code to a project
PANELS = {  # the commands in groups, as `retemper --help` shows them
    "Start a project": (new.app, convert.app, upgrade.app),
    "Train and measure": (preview.app, run.app, watch.app, rounds.app, search.app, evaluate.app, compare.app, browse.app, sweep.app),
    "Retrain and serve": (retrain.app, champion.app, serve.app),
    "New data": (intake.app, clicks.app, judgments.app),
    "Explain": (lineage.app, why.app, bisect.app, exposure.app),
    "Share and clean up": (remote.app, remote.cache, merge.app, gc.app, forget.app),
}
FEW = 10  # up to so many commands of a group are all named when an unknown one is typed


class Root(TyperGroup):
    """All commands. We handle how one ends, not typer: exit status, a user's mistake in one line, signals, a reader that left."""

    def invoke(self, ctx: Any) -> int:
        try:
            with _interrupted_by_signals(), one_line_errors():
                return int(super().invoke(ctx) or 0)
        except KeyboardInterrupt as stopped:
            if not stopped.args:  # a run that is stopped has already said so itself
                print("\nretemper: stopped; finished stages are kept, and the same command resumes", file=sys.stderr)
            return 128 + int(stopped.args[0] if stopped.args else signal.SIGINT)
        except BrokenPipeError:
            return handle_broken_pipe()


def examples() -> str:
    """The examples as rich's markup: a command, and below it, dimmed, what it does."""
    lines = (f"[cyan]{command}[/cyan]\n  [dim]{description}[/dim]" for command, description in EXAMPLES)
    return "Examples:\n\n" + "\n\n".join(lines)


def _example(name: str) -> str:
    """The first example of a command, below its help."""
    return next(
        (f"Example: {command}  ({description})" for command, description in (*EXAMPLES, *MORE_EXAMPLES) if command.split()[1] == name), ""
    )


def _print_version(wanted: bool) -> None:
    if wanted:
        from flows.projects.record import running

        print(printable(running()))
        raise typer.Exit


def _root(
    _version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Show the version, commit, and folder of the code that runs, with the versions of Python, torch, and faiss.",
        ),
    ] = False,
) -> None:
    """Options of the command line itself."""


def build() -> typer.Typer:
    """The whole command line."""
    app = typer.Typer(
        cls=Root,
        help="Retrains dense retrievers as a cached and orchestrated pipeline; run it in the project's folder.",
        epilog=f"{examples()}\n\nInterrupted runs resume where they stopped: finished stages are kept.",
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for title, groups in PANELS.items():
        for group in groups:
            is_named = isinstance(group.info.name, str)
            app.add_typer(group, rich_help_panel=title, epilog=_example(str(group.info.name)) if is_named else None)
            if not is_named:
                for command in group.registered_commands:
                    command.rich_help_panel = title
                    command.epilog = _example(str(command.name or getattr(command.callback, "__name__", "")))
    return app


def main(arguments: Sequence[str] | None = None, check: Check | None = None) -> int:
    """Run a command line; returns the exit status: 0 only if all that was asked is done, 2 for a user's mistake.

    `check` replaces the check of params.yaml before a run. SystemExit, status 2, for a mistake, which has been printed.
    """
    name_user()
    _open_streams(sys.argv[1:] if arguments is None else arguments)
    if arguments is None:
        run_own_code(sys.argv[1:])
    try:
        with one_line_errors():  # of help too, which no command's `invoke` prints
            status = int(get_command(build()).main(arguments, NAME, standalone_mode=False, obj=check) or 0)
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] in ("flows", "tasks"):
            raise
        print(f"retemper: {_missing(error)}", file=sys.stderr)
        raise SystemExit(2) from None
    except typer.TyperException as error:  # a usage error
        print(f"retemper: {_usage(error)}", file=sys.stderr)
        raise SystemExit(2) from None
    if arguments is None:
        leave_quietly(status)
    return status


def run_own_code(arguments: Sequence[str]) -> None:
    """Start again with the code of the project in the current folder, where other code runs: an installed `retemper`, say.

    So flows and stages are of one version, and a parameter or a command that the project adds is known.
    """
    project, search_path = Path.cwd(), os.environ.get("PYTHONPATH", "")
    running = Path(__file__).resolve().parents[2]
    if not all(path.exists() for path in OWN) or running == project.resolve() or next(iter(arguments), "") in BRING_OURS:
        return
    if os.pathsep in str(project) or search_path.split(os.pathsep)[0] == str(project):  # it cannot be imported, or was not
        return
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(project), search_path]))}
    os.execve(sys.executable, [sys.executable, "-m", "flows.cli", *arguments], environment)


def _missing(error: ModuleNotFoundError) -> str:
    """One line on a missing package: a project's own code may need packages that this installation lacks."""
    code = Path(__file__).resolve().parents[2]
    return f"{error.name}: not installed in {sys.prefix}, expected what {code} needs; run make setup there, then {code}/.venv/bin/retemper"


def _usage(error: typer.TyperException) -> str:
    """A mistake of usage in one line: `evaluate: missing option '--model'; see retemper evaluate --help`."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context else NAME
    command = path.removeprefix(NAME).strip()
    message = printable(" ".join(error.format_message().split()).rstrip(".?"))
    if context and (name := re.match(r"No such command '([^']*)'", message)):
        message = f"{name[0]}{_suggest_command(name[1], context.command.commands, message.removeprefix(name[0]))}"
    if isinstance(cause := error.__cause__, ValueError) and hasattr(cause, "errors"):  # a pydantic error, which does not say what was found
        message += f" (found {printable(repr(cause.errors()[0]['input']))})"
    return f"{command}{': ' if command else ''}{message[:1].lower()}{message[1:]}; see {path} --help"


def _suggest_command(name: str, commands: Mapping[str, Any], suggestion: str) -> str:
    """A suggestion for an unknown command: one within a group, typer's own (`suggestion`), or all commands of a small group."""
    if candidates := [f"'{group} {name}'" for group, inner in commands.items() if name in getattr(inner, "commands", {})]:
        return f". Did you mean {', '.join(candidates)}"
    return suggestion or (f", expected one of {', '.join(sorted(commands))}" if len(commands) <= FEW else "")


def _open_streams(arguments: Sequence[str]) -> None:
    """Open streams that the caller has closed (`>&-`) on /dev/null; otherwise the next opened file would get their number.

    Characters that the encoding of standard output lacks are printed as `?`, or in JSON, where only texts have them, as `\\uXXXX`.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, "w" if number else "r"))
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors in ("strict", "surrogateescape"):  # the latter if LC_ALL is C
        codecs.register_error(ESCAPED, _escape_missing)  # for example for a Greek title on a Latin-1 terminal
        sys.stdout.reconfigure(errors=ESCAPED if "--json" in arguments else "replace")


def _escape_missing(error: UnicodeError) -> tuple[str, int]:
    """Characters that an encoding lacks, as JSON's escapes: one per character, two for one beyond U+FFFF."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


@contextmanager
def _interrupted_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise KeyboardInterrupt with their number, so that a command cleans up as on Ctrl-C."""

    def stop(number: int, _frame: FrameType | None) -> None:
        with suppress(OSError):
            os.write(2, b"\nretemper: stopped\n")
        raise KeyboardInterrupt(number)

    handlers = {number: signal.signal(number, stop) for number in ending_signals() if number != signal.SIGINT}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            if signal.getsignal(number) is stop:  # otherwise a stopped run keeps ignoring them
                signal.signal(number, handler)


def leave_quietly(status: int) -> None:
    """All that is left is to exit, which takes Prefect a moment: from now on, a signal only shortens that."""
    for number in ending_signals():
        signal.signal(number, lambda *_: os._exit(status))


if __name__ == "__main__":
    raise SystemExit(main())
