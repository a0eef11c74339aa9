"""Statistics of a prepared corpus, for stats.json and the terminal."""

from collections.abc import Mapping
from typing import Any, TypeAlias

import pyarrow as pa

from tasks.core.plurals import counted
from tasks.core.tables.lengths import split_stats
from tasks.core.tables.schemas import SPLITS
from tasks.prepare.records import Tally

Stats: TypeAlias = dict[str, Any]


def corpus_stats(tally: Tally, qrels: Mapping[str, pa.Table]) -> Stats:
    """The content of stats.json. Words are counted in the text, without the title. `dropped` counts by reason.

    Present only if not 0: `equal_texts`, documents with the title and text of an earlier one, up to case and blanks; `white_ids`, ids with
    white space, by kind of record; `leaks`, training queries that are also in dev or test; `dev_in_test`, dev queries also in test.
    """
    figures = {
        "documents": {
            "count": tally.documents.counts.total(),
            "words": {
                "mean": round(tally.documents.mean(), 2),
                "median": tally.documents.percentile(50),
                "p95": tally.documents.percentile(95),
            },
            "empty_titles": tally.empty_titles,
            "empty_texts": tally.empty_texts,
        },
        "splits": {split: split_stats(tally.queries[split], qrels[split]) for split in SPLITS},
        "dropped": {reason: tally.dropped[reason] for reason in sorted(tally.dropped)},
    }
    findings = {
        "equal_texts": tally.copies,
        "white_ids": dict(sorted(tally.white_ids.items())),
        "leaks": tally.leaks,
        "dev_in_test": tally.dev_in_test,
    }
    return figures | {name: count for name, count in findings.items() if count}


def stats_table(stats: Stats) -> str:
    """The statistics as a small table for the terminal."""
    documents = stats["documents"]
    words = documents["words"]
    lines = [
        f"documents {documents['count']:>12,}   words: mean {words['mean']:.1f}, median {words['median']}, p95 {words['p95']}   "
        f"without title {documents['empty_titles']:,}, without text {documents['empty_texts']:,}",
        f"{'split':<9} {'queries':>12} {'words':>8} {'qrels':>10} {'positives/query':>16}",
    ]
    for split, row in stats["splits"].items():
        if row["queries"] or row["qrels"]:
            lines.append(
                f"{split:<9} {row['queries']:>12,} {row['words']['mean']:>8.1f} {row['qrels']:>10,} {row['positives_per_query']:>16.2f}"
            )
    if copies := stats.get("equal_texts"):
        lines.append(f"equal texts: {counted(copies, 'documents')} {'is a copy of another' if copies == 1 else 'are copies of others'}")
    if white := stats.get("white_ids"):
        listing = ", ".join(counted(count, "queries" if kind == "query" else "documents") for kind, count in white.items())
        lines.append(f"ids with white space, percent-encoded in TREC files: {listing}")
    if leaks := stats.get("leaks"):
        lines.append(f"also in dev or test: {counted(leaks, 'queries of train')}")
    if shared := stats.get("dev_in_test"):
        lines.append(f"also in test, by id or text: {counted(shared, 'queries of dev')}; systems are chosen and evaluated on these")
    if title_only := documents["empty_texts"]:
        lines.append(f"with a title only: {counted(title_only, 'documents')}; empty unless text.titles is true")
    lines += [f"dropped: {counted(count, reason)}" for reason, count in stats["dropped"].items()]
    return "\n".join(lines)
