"""Lengths of texts, and the statistics of a split."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


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


def split_stats(lengths: Lengths, qrels: pa.Table) -> dict[str, Any]:
    """The entry of a split in stats.json: numbers of queries, qrels, and positives, and the queries' lengths in words."""
    count = lengths.counts.total()
    positives = int(pc.sum(pc.greater(qrels["grade"], 0)).as_py() or 0)
    return {
        "queries": count,
        "words": {"mean": round(lengths.mean(), 2), "median": lengths.percentile(50), "p95": lengths.percentile(95)},
        "qrels": len(qrels),
        "positives": positives,
        "positives_per_query": round(positives / max(1, count), 4),
    }
