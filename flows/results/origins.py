"""The origin of a run's results, as a section of the page: every stage with its time, digests, parameters, versions, and hardware."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from flows.process.display import clock
from flows.repository.graph import Graph
from flows.repository.lock import Lock
from flows.results.timing import Measured, Span
from flows.storage import makings
from tasks.core.charts.page import Cell, table
from tasks.core.charts.vega import Node, arcs, figure
from tasks.core.stage.errors import counted
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
    here: Mapping[str, str],
) -> Markup:
    """The graph, the stages, and what they ran with.

    `records`: how each stage was made (flows.storage.makings), here or elsewhere. `here`: makings.current_provenance when the run began.
    """
    states = {span.stage: span.state for span in spans}
    order = [name for name in ordered(graph) if name in lock]
    seconds = {name: float(record["seconds"]) for name, record in records.items() if "seconds" in record}
    seconds |= {name: one.seconds for name, one in took.items()}
    found = [node(name, graph, lock, state=states.get(name, "Cached"), seconds=seconds.get(name)) for name in order]
    note = f"{counted(len(order), 'stages')}; {_commit(here)}. {DOTS}"
    return Markup('<p class="note">{}</p>{}<details><summary>Every stage</summary>{}{}</details>{}').format(
        note,
        figure(arcs(found), "the graph of stages"),
        table(
            ["stage", "time", "this run", "by", "made", "code", "parameters"],
            [_row(one, lock[one.name], seconds=seconds.get(one.name), record=records.get(one.name, {})) for one in found],
            words=("by", "made", "parameters"),
        ),
        Markup('<p class="note">Digests and parameters are cut; <code>retemper lineage MODEL --all</code> shows all.</p>'),
        environments_table(order, records),
    )


def ordered(graph: Graph) -> list[str]:
    """The stages in topological order, otherwise in the graph's own."""
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


def node(name: str, graph: Graph, lock: Lock, *, state: str, seconds: float | None) -> Node:
    """A stage in the drawing."""
    reads = tuple(above for above in graph.stages[name].upstream if above in lock)
    notes = {"this run": state.lower(), "time": "unknown" if seconds is None else clock(seconds), "made": _digests(lock[name])}
    return Node(name, reads, state == "Ran", notes)


def _digests(entry: Mapping[str, Any]) -> str:
    return ", ".join(f"{out['path'].removeprefix('data/')} {str(out.get('md5', ''))[:DIGEST]}" for out in entry.get("outs") or ())


def _row(one: Node, entry: Mapping[str, Any], *, seconds: float | None, record: Mapping[str, Any]) -> list[str | Cell]:
    params = {file: dict(values) for file, values in (entry.get("params") or {}).items()}
    code = ", ".join(str(value)[:DIGEST] for value in params.pop(CODE.as_posix(), {}).values())
    given = [(key, value[:DIGEST] if key.endswith("digest") else value) for values in params.values() for key, value in values.items()]
    told = ", ".join(f"{key}: {json.dumps(value, default=str)}" for key, value in given)
    time = "" if seconds is None else Cell(one.notes["time"], seconds)
    return [
        one.name,
        time,
        one.notes["this run"],
        makings.describe(record),
        one.notes["made"],
        code,
        told if len(told) <= SHOWN else f"{told[:SHOWN]} …",
    ]


def _commit(here: Mapping[str, str]) -> str:
    return f"commit {here['commit'][:7]}{' with changed code' if 'changed' in here else ''}" if "commit" in here else "no commit"


def batches_table(batches: Sequence[Mapping[str, Any]]) -> Markup:
    """What each batch of the inbox holds, and how far its texts are from those the champion was trained on."""
    kinds = ("documents", "queries")

    def shift(batch: Mapping[str, Any], kind: str) -> list[str | Cell]:
        one = batch["shift"].get(kind)
        return [Cell(f"{one['auc']:.3f}", one["auc"]), f"{one['p']:.3g}", one["by"]] if one else ["", "", ""]

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
    measured = [f"{kind}: {what}" for kind in kinds for what in ("shift", "p", "by")]
    header = ["batch", "state", "documents", "new", "duplicates", "queries", "judgments", *measured, "reason"]
    return table(header, rows, words=("judgments", "reason")) if rows else Markup("")


BATCHES_NOTE = (
    "Batches of the inbox, as the last retraining found them. Shift: how often a text of the batch is farther from what the champion was "
    "trained on than one of those texts is (AUC; 0.5: no shift), with its permutation p-value. Quarantined batches are not in the data set."
)


def environments_table(order: Sequence[str], found: Mapping[str, Mapping[str, Any]]) -> Markup:
    """The environments of stages: one row per set of stages with the same."""
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for name in order:
        groups[makings.ran_with(found.get(name, {})) or "not recorded"].append(name)
    rows = [[counted(len(names), "stages") if len(names) > 1 else names[0], told, ", ".join(names)] for told, names in groups.items()]
    return Markup("<details><summary>Versions and hardware</summary>{}</details>").format(
        table(["stages", "ran with", "which"], rows, words=("ran with", "which"))
    )
