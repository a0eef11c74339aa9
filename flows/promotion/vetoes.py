"""Groups of dev queries that veto a promotion: where the new model is shown to lose more than the margin against the champion.

The groups are those of stage failures: length in words, question word, and the source's own columns. Each is tested by a one-sided
t-test of "the mean difference is at least -margin"; those below the rate after Benjamini and Hochberg's correction (JRSS B 57, 1995) veto.
Means of overlapping groups are positively correlated, under which the correction controls the false discovery rate (Benjamini,
Yekutieli: The Control of the False Discovery Rate in Multiple Testing under Dependency, Annals of Statistics 29, 2001). So a model that
loses nowhere is vetoed with at most the rate, in each comparison, as far as means of 30 queries or more are nearly normal. All dev queries
are tested: groups are small, and that some of the queries chose the candidate makes vetoes rarer, if anything.
"""

from collections.abc import Collection, Mapping

import numpy as np
import numpy.typing as npt
from scipy import stats

from flows.promotion.rule import Promotion, Veto
from tasks.core.metrics.groups import by_column, by_range, by_value, question_word

BINS = 4  # groups by length, as in failures


def find_vetoes(differences: Mapping[str, float], slices: Mapping[str, Collection[str]], rule: Promotion) -> list[Veto]:
    """The groups of `slices`, queries by name, that veto by `differences` (new - champion) of all dev queries; the worst first."""
    names, tested, chances = [], [], []
    for name, queries in slices.items():
        values = np.asarray([differences[query] for query in queries if query in differences])
        if rule.veto_queries <= len(values) < len(differences):
            names.append(name)
            tested.append(values)
            chances.append(loses(values, rule.margin))
    if not chances:
        return []
    corrected = stats.false_discovery_control(chances, method="bh")
    found = [
        Veto(name, len(values), float(values.mean()), float(p))
        for name, values, p in zip(names, tested, corrected, strict=True)
        if p <= rule.veto_rate
    ]
    return sorted(found, key=lambda veto: veto.difference)


def loses(differences: npt.NDArray[np.float64], margin: float) -> float:
    """p of "the mean is at least -margin", by Student's t; without a spread, 1 where it is and 0 where it is not."""
    if np.ptp(differences) == 0:
        return float(differences[0] >= -margin)
    return float(stats.ttest_1samp(differences, -margin, alternative="less").pvalue)


def slices_of(texts: Mapping[str, str], columns: Mapping[str, Mapping[str, str]]) -> dict[str, list[str]]:
    """Queries by group, of queries given as texts by id; `columns` are the source's own, values by name and id."""
    if not texts:
        return {}
    dimensions = {
        "words": by_range([len(text.split()) for text in texts.values()], BINS),
        "question word": by_value([question_word(text) for text in texts.values()]),
    }
    for name, values in columns.items():
        if dimension := by_column([values.get(query, "") for query in texts], BINS):
            dimensions[f"column {name}"] = dimension
    return {
        f"{kind} {label}": [query for query, own in zip(texts, labels, strict=True) if own == label]
        for kind, (labels, order) in dimensions.items()
        for label in order
    }
