"""Where a run's results come from, as a section of the page: every stage with its time, digests, parameters, versions and hardware."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from flows.process.display import clock
from flows.repository.git import git
from flows.repository.graph import Graph
from flows.repository.lock import Lock
from flows.results.timing import Measured, Span
from tasks.core.charts.page import Cell, table
from tasks.core.charts.vega import Node, arcs, figure
from tasks.core.stage.frozen import CODE

SHOWN = 300  # characters of a stage's parameters
DIGEST = 10  # characters of a digest


def body(
    graph: Graph, lock: Lock, spans: Sequence[Span], *, took: Mapping[str, Measured], ran_with: Mapping[str, Mapping[str, Any]]
) -> Markup:
    """The graph, the stages, and what they ran with."""
    states = {span.stage: span.state for span in spans}
    order = [name for name in ordered(graph) if name in lock]
    found = [node(name, graph, lock, state=states.get(name, "Cached"), took=took.get(name)) for name in order]
    note = f"{len(order)} stages; {commit()}. Dark dots ran now, the others were there already. Times are of this machine."
    return Markup('<p class="note">{}</p>{}<details><summary>Every stage</summary>{}{}</details>{}').format(
        note,
        figure(arcs(found), "the graph of stages"),
        table(
            ["stage", "time", "this run", "made", "code", "parameters"], [_row(one, lock[one.name], took.get(one.name)) for one in found]
        ),
        Markup('<p class="note">Digests and parameters are cut; <code>retemper lineage MODEL --all</code> shows all.</p>'),
        environments_table(order, ran_with),
    )


def ordered(graph: Graph) -> list[str]:
    """The stages, each after those it reads from, as early as that allows in the graph's own order."""
    done: dict[str, None] = {}

    def visit(name: str) -> None:
        for above in graph.stages[name].upstream:
            if above not in done and above in graph.stages:
                visit(above)
        done[name] = None

    for name in graph.stages:
        if name not in done:
            visit(name)
    return list(done)


def node(name: str, graph: Graph, lock: Lock, *, state: str, took: Measured | None) -> Node:
    """A stage in the drawing."""
    reads = tuple(above for above in graph.stages[name].upstream if above in lock)
    notes = {"this run": state.lower(), "time": clock(took.seconds) if took else "not made here", "made": _digests(lock[name])}
    return Node(name, reads, state == "Ran", notes)


def _digests(entry: Mapping[str, Any]) -> str:
    return ", ".join(f"{out['path'].removeprefix('data/')} {str(out.get('md5', ''))[:DIGEST]}" for out in entry.get("outs") or ())


def _row(one: Node, entry: Mapping[str, Any], took: Measured | None) -> list[str | Cell]:
    params = {file: dict(values) for file, values in (entry.get("params") or {}).items()}
    code = ", ".join(str(value)[:DIGEST] for value in params.pop(CODE.as_posix(), {}).values())
    told = ", ".join(f"{key}: {json.dumps(value, default=str)}" for values in params.values() for key, value in values.items())
    time = Cell(one.notes["time"], took.seconds) if took else ""
    return [one.name, time, one.notes["this run"], one.notes["made"], code, told if len(told) <= SHOWN else f"{told[:SHOWN]} …"]


def commit() -> str:
    """The commit that git is at, and whether files differ from it."""
    head = git("rev-parse", "--short", "HEAD", check=False)
    if not head:
        return "no commit"
    return f"commit {head}{' with changes' if git('status', '--porcelain', '--untracked-files=no', check=False) else ''}"


def environments_table(order: Sequence[str], found: Mapping[str, Mapping[str, Any]]) -> Markup:
    """What stages ran with: a row for each set of stages that had the same."""
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for name in order:
        groups[json.dumps(found[name], sort_keys=True, default=str) if name in found else ""].append(name)
    rows = []
    for told, names in groups.items():
        values = json.loads(told) if told else {}
        listed = ", ".join(f"{key} {value}" for key, value in values.items()) or "made on another machine, or before it was recorded"
        rows.append([f"{len(names)} stages" if len(names) > 1 else names[0], listed, ", ".join(names)])
    return Markup("<details><summary>Versions and hardware</summary>{}</details>").format(table(["stages", "ran with", "which"], rows))
