"""The cost of models on this machine, as their stages recorded it, as sections of the page."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flows.process.display import clock
from flows.repository.graph import Graph
from tasks.core.charts.page import Cell, table
from tasks.core.files import read_json

LATENCY = Path("data/latency")
COSTLY = ("train", "adore", "encode", "index")  # stages of a model
FIGURES = {  # of a row of costs: its heading and format
    "encode_ms": ("ms a passage", ".2f"),
    "bytes": ("bytes per passage", ".1f"),
    "recall": ("recall", ".4f"),
    "search_p50_ms": ("search ms, p50", ".2f"),
    "search_p99_ms": ("search ms, p99", ".2f"),
    "search_batched_ms": ("search ms, all at once", ".3f"),
}
COST_NOTE = (
    "As its stages recorded it in this tree; what was made elsewhere, by a preview, say, has no times here. Encoding time is for all "
    "passages, or for fewer if vectors were reused. Search is of the index, without encoding the query, in ms a query: dev queries one "
    "at a time (p50: median, p99: 99th percentile), and all at once. "
    "Recall is that of the index against exact search. Peak memory is that of the largest of its stages, imports included."
)
LATENCY_NOTE = (
    "Milliseconds per query to reorder the run's first documents, on top of the search that found them. "
    "Rerankers take one query at a time, as a search box would; rescoring takes all at once, so its mean is a throughput."
)


def costs(graph: Graph, measured: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """By model of the graph: its cost on this machine, as its stages recorded it, and the size and recall of its index."""
    rows: dict[str, dict[str, float]] = {}
    for stage in graph.stages:
        kind, _, name = stage.partition("@")
        if kind in COSTLY and (figures := measured.get(stage)):
            row = rows.setdefault(name, {})
            row |= {f"{kind}_{key}": value for key, value in figures.items() if not key.startswith("search_")}
            row |= {key: value for key, value in figures.items() if key.startswith("search_")}
    for name, row in rows.items():
        manifest, index = Path("data/embeddings", name, "manifest.json"), Path("data/index_metrics", f"{name}.json")
        passages = int(read_json(manifest)["rows"]) if manifest.is_file() else 0
        if passages and "encode_seconds" in row:
            row["encode_ms"] = 1000 * row["encode_seconds"] / passages
        if index.is_file():
            record = read_json(index)
            row["bytes"] = float(record["bytes_per_vector"])
            recall = next((value for key, value in record.items() if key.startswith("recall@")), None)
            row |= {} if recall is None else {"recall": float(recall)}
    return rows


def cost_table(by_model: Mapping[str, Mapping[str, float]]) -> str:
    """A row for each model."""
    rows: list[list[str | Cell]] = []
    for name, row in by_model.items():
        trained = row.get("train_seconds", row.get("adore_seconds"))
        peaks = [value for key, value in row.items() if key.endswith("_peak_mib")]
        cells = [f"{row[key]:,{form}}" if key in row else "-" for key, (_, form) in FIGURES.items()]
        rows.append([name, duration(trained), duration(row.get("encode_seconds")), *cells, f"{max(peaks):,.0f}" if peaks else "-"])
    return table(["model", "training", "encoding", *(heading for heading, _ in FIGURES.values()), "peak MiB"], rows)


def duration(seconds: float | None) -> str | Cell:
    """`1m15s`, sorted by its seconds."""
    return "-" if seconds is None else Cell(clock(seconds), seconds)


def latencies(graph: Graph) -> dict[str, Any]:
    """The latencies that the graph's rerank and rescore stages measured, by system."""
    names = [name.partition("@")[2] for name in graph.stages if name.startswith(("rerank@", "rescore@"))]
    return {name: read_json(path) for name in names if (path := LATENCY / f"{name}.json").is_file()}


def latency_table(by_system: Mapping[str, Any]) -> str:
    """One row per split of each system that reorders a run; empty if none was measured."""
    rows = []
    for name, values in by_system.items():
        for split in ("dev", "test"):
            milliseconds = (values.get("milliseconds a query") or {}).get(split) or (values.get(split) or {}).get("milliseconds a query")
            if milliseconds is None:
                continue
            parts = milliseconds if isinstance(milliseconds, dict) else {"mean": milliseconds}
            cells = [f"{parts[key]:,.1f}" if key in parts else "" for key in ("mean", "p50", "p95")]
            rows.append([name, split, str(values.get("depth", "")), *cells, str(values.get("device", ""))])
    header = ["system", "split", "depth", "ms a query", "median", "95th percentile", "measured on"]
    return table(header, rows) if rows else ""
