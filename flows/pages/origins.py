"""The origin of a run's results, as a section of the page: every stage with its time, digests, parameters, versions, and hardware."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from flows.measuring.timing import Measured, Span
from flows.process.display import clock
from flows.repository.graph import Graph
from flows.repository.lock import Lock
from flows.storage import makings
from tasks.core.charts.page import Cell, table
from tasks.core.charts.vega import Node, arcs, figure
from tasks.core.plurals import counted
from tasks.core.stage.frozen import CODE

INTAKE = Path(".retemper/intake.json")  # the last retraining's batches: flows.intake.verdict.Batch
SHOWN = 300  # characters of a stage's parameters
DIGEST = 10  # characters of a digest
DOTS = "Filled dots: stages that this run executed. Rings: stages from the cache. Each time is from the machine that ran the stage."


def body(
    graph: Graph,
    lock: Lock,
    spans: Sequence[Span],
    *,
    took: Mapping[str, Measured],
    records: Mapping[str, Mapping[str, Any]],
    provenance: Mapping[str, str],
) -> Markup:
    """The graph, the stages, and what they ran with.

    `records`: how each stage was made, here or elsewhere (flows.storage.makings). `provenance`: its current_provenance at the start.
    """
    states = {span.stage: span.state for span in spans}
    order = [name for name in ordered(graph) if name in lock]
    seconds = {name: float(record["seconds"]) for name, record in records.items() if "seconds" in record}
    seconds |= {name: item.seconds for name, item in took.items()}
    nodes = [node(name, graph, lock, state=states.get(name, "Cached"), seconds=seconds.get(name)) for name in order]
    note = f"{counted(len(order), 'stages')}; {_commit(provenance)}. {DOTS}"
    return Markup('<p class="note">{}</p>{}<details><summary>Every stage</summary>{}{}</details>{}').format(
        note,
        figure(arcs(nodes), "the graph of stages"),
        table(
            ["stage", "time", "this run", "by", "made", "code", "parameters"],
            [_row(item, lock[item.name], seconds=seconds.get(item.name), record=records.get(item.name, {})) for item in nodes],
            words=("by", "made", "parameters"),
        ),
        Markup('<p class="note">Digests and parameters are truncated; <code>retemper lineage MODEL --all</code> shows all.</p>'),
        environments_table(order, records),
    )


def ordered(graph: Graph) -> list[str]:
    """The stages in topological order, otherwise in the graph's own."""
    visited: dict[str, None] = {}

    def visit(name: str) -> None:
        for upstream in graph.stages[name].upstream:
            if upstream not in visited and upstream in graph.stages:
                visit(upstream)
        visited[name] = None

    for name in graph.stages:
        if name not in visited:
            visit(name)
    return list(visited)


def node(name: str, graph: Graph, lock: Lock, *, state: str, seconds: float | None) -> Node:
    """A stage in the drawing."""
    reads = tuple(upstream for upstream in graph.stages[name].upstream if upstream in lock)
    notes = {"this run": state.lower(), "time": "unknown" if seconds is None else clock(seconds), "made": _digests(lock[name])}
    return Node(name, reads, state == "Ran", notes)


def _digests(entry: Mapping[str, Any]) -> str:
    return ", ".join(f"{out['path'].removeprefix('data/')} {str(out.get('md5', ''))[:DIGEST]}" for out in entry.get("outs") or ())


def _row(stage: Node, entry: Mapping[str, Any], *, seconds: float | None, record: Mapping[str, Any]) -> list[str | Cell]:
    params = {file: dict(values) for file, values in (entry.get("params") or {}).items()}
    code = ", ".join(str(value)[:DIGEST] for value in params.pop(CODE.as_posix(), {}).values())
    settings = [(key, value[:DIGEST] if key.endswith("digest") else value) for values in params.values() for key, value in values.items()]
    text = ", ".join(f"{key}: {json.dumps(value, default=str)}" for key, value in settings)
    time = "" if seconds is None else Cell(stage.notes["time"], seconds)
    return [
        stage.name,
        time,
        stage.notes["this run"],
        makings.describe(record),
        stage.notes["made"],
        code,
        text if len(text) <= SHOWN else f"{text[:SHOWN]} …",
    ]


def _commit(provenance: Mapping[str, str]) -> str:
    if "commit" not in provenance:
        return "no commit"
    return f"commit {provenance['commit'][:7]}{' with changed code' if 'changed' in provenance else ''}"


def batches_table(batches: Sequence[Mapping[str, Any]]) -> Markup:
    """What each batch of the inbox holds, and how far its texts are from those the champion was trained on."""
    kinds = ("documents", "queries")

    def shift(batch: Mapping[str, Any], kind: str) -> list[str | Cell]:
        result = batch["shift"].get(kind)
        return [Cell(f"{result['auc']:.3f}", result["auc"]), f"{result['p']:.3g}", result["by"]] if result else ["", "", ""]

    rows = [
        [
            batch["name"],
            batch["state"] + (" by hand" if batch["by"] == "hand" else ""),
            *(Cell(f"{batch[kind]:,}", batch[kind]) for kind in ("documents", "new", "duplicates", "queries")),
            ", ".join(f"{split} {count:,}" for split, count in batch["judgments"].items()),
            *shift(batch, kinds[0]),
            *shift(batch, kinds[1]),
            "; ".join((*batch["wrong"], *batch["odd"])),
        ]
        for batch in batches
    ]
    measured = [f"{kind}: {column}" for kind in kinds for column in ("shift", "p", "by")]
    header = ["batch", "state", "documents", "new", "duplicates", "queries", "judgments", *measured, "reason"]
    return table(header, rows, words=("judgments", "reason")) if rows else Markup("")


BATCHES_NOTE = (
    "Batches of the inbox, as the last retraining found them. Shift: how often a text of the batch is farther from what the champion was "
    "trained on than one of those texts is (AUC; 0.5: no shift), with its permutation p-value. Quarantined batches are not in the data set."
)


def environments_table(order: Sequence[str], records: Mapping[str, Mapping[str, Any]]) -> Markup:
    """The environments of stages: one row per set of stages with the same."""
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for name in order:
        groups[makings.ran_with(records.get(name, {})) or "not recorded"].append(name)
    rows = [
        [counted(len(names), "stages") if len(names) > 1 else names[0], environment, ", ".join(names)]
        for environment, names in groups.items()
    ]
    return Markup("<details><summary>Versions and hardware</summary>{}</details>").format(
        table(["stages", "ran with", "which"], rows, words=("ran with", "which"))
    )
