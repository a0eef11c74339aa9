"""Measures that ir_measures does not compute here: functions of one query's ranking [N], best first, and its grades.

`Hole@k`, `PairwiseErrors@k`, and `Coverage@k` are unknown to it. RBP, ERR, and nDCG(dcg='exp-log2') are in its notation, but their
providers are not installed, or are a Perl script that takes only queries named by numbers.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Grades = Mapping[str, int]
Formula = Callable[[Sequence[str], Grades], float]

MOST = 4  # the highest grade of ERR, as in TREC's gdeval.pl
NAMED = re.compile(r"(Hole|PairwiseErrors|Coverage)(?:@([1-9]\d*))?")
COSTS = ("Hole", "PairwiseErrors")  # measures of which lower values are better


@dataclass(frozen=True)
class Added:
    """A measure that ir_measures does not know: its kind, how many ranks it uses, and the lowest relevant grade."""

    kind: str
    cutoff: int
    relevance: int

    def __str__(self) -> str:
        return f"{self.kind}@{self.cutoff}"


def find_measure(name: str, relevance: int) -> Added | None:
    """The added measure called `name`; None if none of them is. ValueError if it has no cutoff."""
    match = NAMED.fullmatch(name)
    if not match:
        return None
    if not match[2]:
        reason = "the total needs a ranking of the whole corpus" if match[1] == "PairwiseErrors" else "it needs a cutoff"
        raise ValueError(f"{reason}; write {match[1]}@100, for example")
    return Added(match[1], int(match[2]), relevance)


def lower_is_better(name: str) -> bool:
    """Whether lower values of `name` are better, because it counts mistakes."""
    return name.startswith(COSTS)


def formula(measure: Any) -> Formula | None:
    """The function that computes `measure`, an Added or one of ir_measures; None if ir_measures does, or it needs texts (Coverage)."""
    if isinstance(measure, Added):
        if measure.kind == "Hole":
            return lambda ranking, grades: hole_rate(ranking, grades, measure.cutoff)
        if measure.kind == "PairwiseErrors":
            return lambda ranking, grades: float(pairwise_errors(ranking, grades, measure.cutoff, least=measure.relevance))
        return None
    if measure.NAME == "RBP":
        cutoff, p, least = measure.params.get("cutoff"), float(measure["p"]), measure.params["rel"]
        return lambda ranking, grades: rank_biased_precision(ranking[:cutoff], grades, p, least=least)
    if measure.NAME == "ERR":
        return lambda ranking, grades: expected_reciprocal_rank(ranking, grades, measure.params.get("cutoff"))
    if measure.NAME == "nDCG" and measure.params.get("dcg") == "exp-log2" and not measure.params.keys() - {"dcg", "cutoff"}:
        return lambda ranking, grades: exponential_ndcg(ranking, grades, measure.params.get("cutoff"))
    return None


def hole_rate(ranking: Sequence[str], grades: Grades, cutoff: int) -> float:
    """1 - Judged@k: the share of the `cutoff` best documents that nobody judged for this query; 1 for an empty ranking.

    BEIR (Thakur et al. 2021) calls this the hole rate; its code counts a document as judged if any query's judgments name it.
    """
    top = ranking[:cutoff]
    return sum(doc not in grades for doc in top) / len(top) if top else 1.0


def pairwise_errors(ranking: Sequence[str], grades: Grades, cutoff: int, *, least: int) -> int:
    """Top-K pairwise errors, K = `cutoff`: for each document of grade >= `least`, the number of others above it, at most K; summed.

    ADORE (arXiv:2104.08051), Eq. 6. A relevant document that the ranking lacks counts K. That is exact if K documents below `least`
    are ranked, otherwise the most it can be. The total (Eq. 5) needs a ranking of the whole corpus; with K the size of the
    corpus this is the same.
    """
    errors, above, ranked = 0, 0, 0
    for doc in ranking:
        if grades.get(doc, 0) >= least:
            errors, ranked = errors + min(above, cutoff), ranked + 1
        else:
            above += 1
    return errors + cutoff * (sum(grade >= least for grade in grades.values()) - ranked)


def rank_biased_precision(ranking: Sequence[str], grades: Grades, p: float, *, least: int) -> float:
    """RBP (Moffat and Zobel 2008), (1 - p) times the sum of p^(rank - 1) over the documents of grade >= `least`."""
    return (1 - p) * math.fsum(p**place for place, doc in enumerate(ranking) if grades.get(doc, 0) >= least)


def expected_reciprocal_rank(ranking: Sequence[str], grades: Grades, cutoff: int | None) -> float:
    """ERR (Chapelle et al. 2009, equation 5) with stopping probabilities (2^grade - 1) / 2^MOST, as gdeval.pl.

    Grades above MOST count MOST.
    """
    total, reached = 0.0, 1.0
    for rank, doc in enumerate(ranking[:cutoff], 1):
        stops = (2.0 ** min(max(grades.get(doc, 0), 0), MOST) - 1) / 2**MOST
        total += reached * stops / rank
        reached *= 1 - stops
    return total


def exponential_ndcg(ranking: Sequence[str], grades: Grades, cutoff: int | None) -> float:
    """nDCG with gains 2^grade - 1 (Burges et al. 2005), as gdeval.pl; 0 without a relevant document."""
    ideal = _dcg(sorted(grades.values(), reverse=True)[:cutoff])
    return _dcg([grades.get(doc, 0) for doc in ranking[:cutoff]]) / ideal if ideal else 0.0


def _dcg(grades: Sequence[int]) -> float:
    return math.fsum((2 ** max(grade, 0) - 1) / math.log2(place + 1) for place, grade in enumerate(grades, 1))
