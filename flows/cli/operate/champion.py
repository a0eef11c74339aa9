"""`retemper champion [set | rollback | push | history | export]`."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli.command import Json, ProjectCommand, group
from tasks.core.errors import UserError, printable

if TYPE_CHECKING:
    from flows.champions.champion import Champion
    from flows.champions.machines import Met

app = group(name="champion", invoke_without_command=True)


@app.callback()
def show(
    context: typer.Context,
    history: Annotated[
        bool, typer.Option("--history", help="Every retraining, rollback and champion set by hand: how it ended and why.")
    ] = False,
    as_json: Json = False,
) -> int:
    """The model that is served: show it, set it, roll back, export it."""
    context.obj = as_json
    if context.invoked_subcommand:
        return 0
    from flows.champions import champion
    from flows.repository.project import project_folder

    project_folder()
    if history:
        return _show_history(as_json)
    current = champion.current(Path.cwd())
    champions = champion.read_champions(Path.cwd()) if current and current.number > 1 else []
    return _show(current, as_json, f"\n\n{champion.table(champions)}" if champions else "")


@app.command("set", cls=ProjectCommand)
def set_champion(
    context: typer.Context,
    wanted: Annotated[
        str, typer.Argument(metavar="MODEL|REV", help="A model of the last retraining (or of HEAD), champion/N, or REVISION:MODEL.")
    ],
    as_json: Json = False,
) -> int:
    """Crown a model by hand."""
    from flows.champions import champion, machines, tree

    _meet(machines.fetch(Path.cwd()))
    crowned = champion.choose(Path.cwd(), wanted)
    if wanted == crowned.model and champion.is_newer_at_head(Path.cwd(), crowned):
        newer = f"HEAD has a newer one; to crown that: retemper champion set HEAD:{wanted}"
        print(f"retemper: crowned {wanted} of the last retraining, but {newer}", file=sys.stderr)
    is_of_head = wanted.rpartition(":")[2] == crowned.model and crowned.commit == tree.resolve(Path.cwd(), "HEAD")
    if is_of_head and (changed := ", ".join(tree.uncommitted(Path.cwd(), tree.OF_RUN))):
        print(
            f"retemper: warning: {changed}: found uncommitted changes, which champion/{crowned.number} is recorded without; if the model "
            "was trained with them, commit them, and set it again",
            file=sys.stderr,
        )
    status = _share(crowned)
    _show(crowned, as_json or context.obj)
    return status


@app.command(cls=ProjectCommand)
def rollback(context: typer.Context, as_json: Json = False) -> int:
    """Crown the previous champion again."""
    from flows.champions import champion, machines

    _meet(machines.fetch(Path.cwd()))
    crowned = champion.roll_back(Path.cwd())
    status = _share(crowned)
    _show(crowned, as_json or context.obj)
    return status


@app.command(cls=ProjectCommand)
def push(context: typer.Context, as_json: Json = False) -> int:
    """Push champions and records of retrainings that the git remote lacks."""
    from flows.champions import champion, tree

    if not tree.remote_of(Path.cwd()):
        raise UserError("champion push: found no git remote, expected one that all machines share; git remote add origin URL")
    crowned = champion.current(Path.cwd())
    status = _share(crowned) if crowned else 0
    _show(champion.current(Path.cwd()), as_json or context.obj)
    return status


@app.command(cls=ProjectCommand)
def history(context: typer.Context, as_json: Json = False) -> int:
    """Every retraining, rollback and champion set by hand: how it ended and why."""
    return _show_history(as_json or context.obj)


@app.command(cls=ProjectCommand)
def export(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(help="A new folder.")],
    *,
    with_documents: Annotated[bool, typer.Option("--with-documents", help="Also titles and texts, as Parquet.")] = False,
    vectors: Annotated[bool, typer.Option("--vectors", help="Also ids and vectors, as Parquet for vector databases.")] = False,
    push_to_hub: Annotated[
        str | None, typer.Option(metavar="OWNER/NAME", help="Push the folder to Hugging Face's hub, with the token in HF_TOKEN.")
    ] = None,
    as_json: Json = False,
) -> int:
    """Copy all that serving needs from the cache, with a model card: encoder, index, ids, text settings; for a fusion, BM25 and weights."""
    from flows.serving import hub
    from flows.serving.export import export, exported

    parts, found = {"documents": with_documents, "vectors": vectors}, None
    if push_to_hub:
        hub.check(push_to_hub)
        found = exported(Path.cwd(), folder, **parts)  # by an earlier call, whose push failed
    crowned = found or export(Path.cwd(), folder, **parts)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    written = f"{'found' if found else 'wrote'} {folder} ({size / 2**20:,.1f} MiB)"
    written = f"\n\n{written}; to serve it: retemper serve --export {quote(str(folder))}"
    status = _show(crowned, as_json or context.obj, written)
    if push_to_hub:
        print(f"pushed to {hub.push(folder, push_to_hub)}", file=sys.stderr)
    return status


def _show(champion: "Champion | None", as_json: bool, suffix: str = "") -> int:
    from flows.champions.champion import NONE_YET, details

    text = f"{details(champion)}{suffix}" if champion else NONE_YET
    print(_json(asdict(champion) if champion else None) if as_json else printable(text))
    return 0


def _show_history(as_json: bool) -> int:
    from flows.champions.champion import read_champions
    from flows.champions.history import read_events
    from flows.champions.tree import BRANCH, remote_of
    from flows.process.display import text_table

    events = read_events(Path.cwd())
    rows = [
        [event.when, event.result, f"champion/{event.champion}" if event.champion else "", event.candidate or "", event.reason]
        for event in events
    ]
    header = ["when", "result", "champion", "candidate", "reason"]
    text = text_table(header, rows) if rows else "no retraining yet; run retemper retrain"
    if not rows and read_champions(Path.cwd()):
        text = f"no record of a retraining here; git fetch {remote_of(Path.cwd()) or 'REMOTE'} {BRANCH}:{BRANCH}"
    print(_json([asdict(event) for event in events]) if as_json else printable(text))
    return 0


def _json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def _share(crowned: "Champion") -> int:
    """Push branch and tags. The status is 1 if that failed: servers elsewhere go on with the champion before."""
    from flows.champions import machines

    later = f"no other machine has champion/{crowned.number}; once it is available: retemper champion push"
    met = machines.push(Path.cwd(), later)
    _meet(met)
    return int(met.problem is not None)


def _meet(result: "Met") -> None:
    if result.problem:
        print(f"retemper: warning: {printable(result.problem)}", file=sys.stderr)
    if result.merged:
        print(f"retemper: {printable(result.merged)}", file=sys.stderr)
