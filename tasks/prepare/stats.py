"""Statistics of a prepared corpus, for stats.json and the terminal."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Protocol, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from tasks.core.tables.schemas import SPLITS

Stats: TypeAlias = dict[str, Any]


class Lengths:
    """A histogram of text lengths in words (runs without white space); its size is bounded by the longest text."""

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()

    def add(self, texts: Iterable[str]) -> None:
        self.counts.update(len(text.split()) for text in texts)

    def mean(self) -> float:
        return sum(n * c for n, c in self.counts.items()) / max(1, self.counts.total())

    def percentile(self, percent: int) -> int:
        """The smallest length that at least `percent` % of the texts do not exceed (nearest rank); 0 without texts."""
        needed = -(-self.counts.total() * percent // 100)
        for length in sorted(self.counts):
            needed -= self.counts[length]
            if needed <= 0:
                return length
        return 0


class Counted(Protocol):
    """What the writer counted."""

    documents: Lengths
    queries: dict[str, Lengths]
    empty_titles: int
    empty_texts: int
    dropped: Counter[str]
    white_ids: Counter[str]
    leaks: int


def corpus_stats(tally: Counted, qrels: Mapping[str, pa.Table]) -> Stats:
    """The content of stats.json. Words are of the text, without the title; `dropped` counts by reason.

    If there are any: `white_ids` counts ids with white space by what they name, `leaks` training queries that are in dev or test too.
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
        "splits": {split: _split_stats(tally.queries[split], qrels[split]) for split in SPLITS},
        "dropped": {reason: tally.dropped[reason] for reason in sorted(tally.dropped)},
    }
    found = {"white_ids": dict(sorted(tally.white_ids.items())), "leaks": tally.leaks}
    return figures | {name: count for name, count in found.items() if count}


def table(stats: Stats) -> str:
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
    if white := stats.get("white_ids"):
        told = ", ".join(counted(count, f"{'queries' if what == 'query' else 'documents'}") for what, count in white.items())
        lines.append(f"ids with white space, percent-encoded in TREC files: {told}")
    if leaks := stats.get("leaks"):
        lines.append(f"in dev or test too: {counted(leaks, 'queries of train')}")
    lines += [f"dropped: {counted(count, reason)}" for reason, count in stats["dropped"].items()]
    return "\n".join(lines)


def counted(count: int, what: str) -> str:
    """`2 documents without text`, but `1 document without text`. `what` begins with a plural."""
    plural, space, rest = what.partition(" ")
    singular = {"queries": "query"}.get(plural, plural.removesuffix("s"))
    return f"{count:,} {singular if count == 1 else plural}{space}{rest}"


def _split_stats(lengths: Lengths, qrels: pa.Table) -> Stats:
    count = lengths.counts.total()
    positives = int(pc.sum(pc.greater(qrels["grade"], 0)).as_py() or 0)
    return {
        "queries": count,
        "words": {"mean": round(lengths.mean(), 2), "median": lengths.percentile(50), "p95": lengths.percentile(95)},
        "qrels": len(qrels),
        "positives": positives,
        "positives_per_query": round(positives / max(1, count), 4),
    }
