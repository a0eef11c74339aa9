"""Groups of dev queries that veto a promotion, because the new model is shown to lose more than the margin against the champion there.

The groups are those of stage failures: length in words, question word, and the source's own columns. "The mean difference is at least
-margin" must be rejected twice. (1) By betting (flows.promotion.betting), which holds for any differences in [-1, 1] and any number of
queries, at rate / groups (Bonferroni): so a model that loses nowhere is vetoed with at most the rate, in each comparison, however skewed
its differences are and however groups overlap. (2) By a one-sided t-test, below the rate after Benjamini and Hochberg's correction (JRSS B
57, 1995), whose p is shown. Queries that share a relevant document count as one draw in both. All dev queries are tested: groups are small,
and that some of the queries chose the candidate makes vetoes rarer, if anything.
"""

from collections.abc import Collection, Mapping

from scipy import stats

from flows.promotion import betting
from flows.promotion.groups import Draws, chance_of_none, draws
from flows.promotion.records import Promotion, Veto
from tasks.core.statistics.confirmation import shuffled
from tasks.core.statistics.groups import by_column, by_range, by_value, question_word

BINS = 4  # groups by length, as in failures


def find_vetoes(
    differences: Mapping[str, float], slices: Mapping[str, Collection[str]], rule: Promotion, *, groups: Mapping[str, str] | None = None
) -> list[Veto]:
    """The groups of `slices`, queries by name, that veto by `differences` (new - champion) of all dev queries; the worst first.

    `groups`: as in Evidence, those of queries that share a relevant document.
    """
    judged = {name: [query for query in queries if query in differences] for name, queries in slices.items()}
    samples = {
        name: draws(differences, shuffled(queries, groups or {}), groups or {})
        for name, queries in judged.items()
        if rule.veto_queries <= len(queries) < len(differences)
    }
    if not samples:
        return []
    corrected = stats.false_discovery_control([loss_p_value(sample, rule.margin) for sample in samples.values()], method="bh")
    vetoes = [
        Veto(name, sample.queries, float(sample.differences.mean()), float(p))
        for (name, sample), p in zip(samples.items(), corrected, strict=True)
        if p <= rule.veto_rate and surely_loses(sample, rule.margin, rule.veto_rate / len(samples))
    ]
    return sorted(vetoes, key=lambda veto: veto.difference)


def loss_p_value(sample: Draws, margin: float) -> float:
    """p of "the mean is at least -margin", by Student's t over groups that share no document; 1 if one group has nearly all queries.

    Without a spread: the greatest chance that no query differs.
    """
    estimate = sample.estimate
    if sample.is_constant:
        return chance_of_none(-estimate.mean, margin, sample.sizes)
    if not estimate.testable:
        return 1.0
    return float(stats.t.cdf((estimate.mean + margin) / estimate.error, estimate.effective - 1))


def surely_loses(sample: Draws, margin: float, level: float) -> bool:
    """Whether "the mean is at least -margin" is rejected at `level` for any differences in [-1, 1]."""
    if sample.is_constant:
        return loss_p_value(sample, margin) <= level
    return bool(betting.shows_more(-sample.sums, margin, level, sizes=sample.sizes, bets=betting.BOLD))


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
        f"{kind} {label}": [query for query, query_label in zip(texts, labels, strict=True) if query_label == label]
        for kind, (labels, order) in dimensions.items()
        for label in order
    }
