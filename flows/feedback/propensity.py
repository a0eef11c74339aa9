"""Position bias of clicks: how likely users examine a result at a rank, and the relevance that clicks show once that is accounted for.

The position-based model: P(click on document d of query q at rank k) = p_k r_qd, with p_k the propensity that rank k is examined and r_qd
the relevance as users see it. Propensities are relative, p_1 = 1. Joachims, Swaminathan, Schnabel: Unbiased Learning-to-Rank with
Biased Feedback (WSDM 2017, arXiv:1608.04468), section 4.
"""

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

Pair = tuple[str, str]  # query, document
Counts = Mapping[Pair, Mapping[int, tuple[int, int]]]  # by rank, from 1: how often shown, how often clicked

LEAST = 20.0  # clicks that a comparison of two ranks needs, weighted as below: of both sides together, so whatever their ratio is
SMOOTHED = 0.5  # added to the clicks of each side: removes most of the bias of the logarithm of a count, and avoids log 0


@dataclass(frozen=True)
class Propensities:
    """p_k of each rank; `measured` ranks are estimated, the others follow 1 / k^eta."""

    values: Mapping[int, float]
    measured: tuple[int, ...]
    eta: float


def power_law(ranks: int, eta: float) -> Propensities:
    """p_k = 1 / k^eta, k = 1 to `ranks`: Joachims et al. (2017), section 6.1."""
    return Propensities({rank: rank**-eta for rank in range(1, ranks + 1)}, (), eta)


def comparisons(counts: Counts) -> dict[tuple[int, int], tuple[float, float]]:
    """For ranks k < l at which the same pairs were shown, by natural variation of the ranking: comparable (clicks at k, clicks at l).

    Agarwal, Zaitsev, Wang, Li, Najork, Joachims: Estimating Position Bias without Intrusive Interventions (WSDM 2019,
    arXiv:1812.05161), section 4: over one set of pairs, relevance is the same at both ranks, so clicks compare as p_k to p_l. A pair
    that was shown n_k and n_l times adds c_k n_l / (n_k + n_l) and c_l n_k / (n_k + n_l): the weights of Mantel and Haenszel
    (1959), which, unlike 1 / n_k, do not let pairs that were hardly shown decide.
    """
    by_ranks: dict[tuple[int, int], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for by_rank in counts.values():
        ranks = sorted(by_rank)
        for place, first in enumerate(ranks):
            for second in ranks[place + 1 :]:
                (shown, clicked), (shown_also, clicked_also) = by_rank[first], by_rank[second]
                clicks = by_ranks[first, second]
                clicks[0] += clicked * shown_also / (shown + shown_also)
                clicks[1] += clicked_also * shown / (shown + shown_also)
    return {ranks: (clicks[0], clicks[1]) for ranks, clicks in by_ranks.items()}


def harvest(counts: Counts, ranks: int, eta: float) -> Propensities:
    """Propensities from natural variation; ranks that no comparison connects with rank 1 follow 1 / k^eta.

    log p_k - log p_l is log(clicks at k / clicks at l) for each comparison, weighted by 1 / (1 / clicks at k + 1 / clicks at l), its
    inverse variance for Poisson counts: weighted least squares over all of them, with log p_1 = 0. Clicks are counted with SMOOTHED more
    (Haldane, The estimation and significance of the logarithm of a ratio of frequencies, 1956). A comparison is used by the clicks of both
    sides together: requiring some on the rarer side would select those that are too high by chance. If ranks are measured, eta is fitted to
    them by least squares in log-log; otherwise `eta` is used.
    """
    usable = {
        pair: (first_clicks + SMOOTHED, second_clicks + SMOOTHED)
        for pair, (first_clicks, second_clicks) in comparisons(counts).items()
        if first_clicks + second_clicks >= LEAST
    }
    measured = _connected(usable)
    if len(measured) < 2:
        return power_law(ranks, eta)
    column = {rank: place for place, rank in enumerate(measured[1:])}
    rows, targets = [], []
    for (first, second), (first_clicks, second_clicks) in usable.items():
        if first in measured:
            scale = math.sqrt(1 / (1 / first_clicks + 1 / second_clicks))
            row = np.zeros(len(column))
            for rank, sign in ((first, 1.0), (second, -1.0)):
                if rank in column:
                    row[column[rank]] = sign * scale
            rows.append(row)
            targets.append(scale * math.log(first_clicks / second_clicks))
    solved, *_ = np.linalg.lstsq(np.array(rows), np.array(targets), rcond=None)
    logs = {1: 0.0} | {rank: float(solved[place]) for rank, place in column.items()}
    distances = {rank: math.log(rank) for rank in measured}
    fitted = -sum(distances[rank] * logs[rank] for rank in measured) / sum(distance**2 for distance in distances.values())
    by_power_law = power_law(ranks, fitted).values
    return Propensities(dict(by_power_law) | {rank: math.exp(value) for rank, value in logs.items()}, tuple(measured), fitted)


def _connected(pairs: Mapping[tuple[int, int], tuple[float, float]]) -> list[int]:
    """The ranks that comparisons connect with rank 1, in order."""
    connected, has_grown = {1}, True
    while has_grown:
        neighbors = {rank for pair in pairs if connected & set(pair) for rank in pair} - connected
        connected, has_grown = connected | neighbors, bool(neighbors)
    return sorted(connected)


def relevance(by_rank: Mapping[int, tuple[int, int]], propensities: Propensities, max_weight: float) -> float:
    """Estimate of r_qd: sum over ranks of clicks_k min(1 / p_k, most), divided by how often the pair was shown.

    Inverse propensity scoring: Joachims et al. (2017), Eq. 4. Without clipping, its expectation under the model is r_qd. Clipping bounds
    the variance, but makes the estimate too low for ranks that are rarely examined.
    """
    shown = sum(count for count, _ in by_rank.values())
    weighted = math.fsum(clicked * min(1 / propensities.values[rank], max_weight) for rank, (_, clicked) in by_rank.items())
    return weighted / shown


def relevance_error(by_rank: Mapping[int, tuple[int, int]], propensities: Propensities, max_weight: float) -> float:
    """The standard error of `relevance`, for Poisson counts: sqrt(sum over ranks of clicks_k min(1 / p_k, most)^2) / times shown."""
    shown = sum(count for count, _ in by_rank.values())
    squares = math.fsum(clicked * min(1 / propensities.values[rank], max_weight) ** 2 for rank, (_, clicked) in by_rank.items())
    return math.sqrt(squares) / shown
