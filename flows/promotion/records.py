"""A decision on a promotion as records: its rule, the evidence, the verdict."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal

from pydantic import Field

from tasks.core.params.sections import Params


class Promotion(Params):
    """When a new model becomes champion (docs/retraining.md)."""

    rule: Literal["guaranteed", "not_worse", "better"] = Field(
        "guaranteed",
        description="guaranteed: not worse than the champion, unbeaten earlier ones, and the anchor, by a test that holds for all of "
        "`comparisons`; not_worse, better: a t-test against the champion alone, each time",
    )
    margin: float = Field(0.01, ge=0, description="guaranteed, not_worse: the largest accepted loss, in units of the measure")
    alpha: float = Field(
        0.05, gt=0, lt=0.5, description="guaranteed: chance of a false promotion in `comparisons` in a row; other rules: in one comparison"
    )
    comparisons: int = Field(52, ge=1, description="guaranteed: comparisons that share alpha; 52: those of a year of weekly retrainings")
    anchor: int | None = Field(
        None, ge=1, description="guaranteed: number of the champion that no later one may ever fall behind; null: the first"
    )
    veto_rate: float = Field(
        0.05, ge=0, lt=0.5, description="guaranteed: false discovery rate of the groups of queries that veto a promotion; 0: no vetoes"
    )
    veto_queries: int = Field(30, ge=2, description="guaranteed: minimum dev queries of a group that can veto")
    metric: str | None = Field(None, description="a measure of evaluate.measures; default: report.metric")
    fusions: bool = Field(
        True, description="whether a fusion may become champion; false: single models only, for a vector database that has no BM25"
    )


@dataclass(frozen=True)
class Veto:
    """A group of dev queries on which the new model loses more than the margin: mean difference, and p by Benjamini and Hochberg."""

    group: str
    queries: int
    difference: float
    p: float


@dataclass(frozen=True)
class Verdict:
    """Means over the same `queries`, their difference (new - old), and the bound that decided, all against the current champion.

    `spread`: standard deviation of the differences, one value for each of the `groups` of queries that share a relevant document. `most`:
    the most queries that a group counts as in a bet. `level`: alpha of this comparison. guaranteed: `queries` of the `dev` ones confirm;
    `against`: difference and bound by champion number; `beaten`: those it is better than; `looks`: as in Evidence.
    """

    promoted: bool
    reason: str
    measure: str
    queries: int
    new: float
    old: float
    difference: float
    bound: float
    rule: str
    spread: float
    dev: int
    level: float
    groups: int
    most: int
    against: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    beaten: Collection[int] = ()
    vetoes: Collection[Veto] = ()
    looks: int = 1


@dataclass(frozen=True)
class Evidence:
    """What a verdict is based on. `new`: the new model's values of the measure by dev query; `old`: each champion's, the current one first.

    `fresh`: queries that were not in dev yet when the current champion was crowned. `slices`: groups of queries, by name. `looks`: how
    many systems the candidate may have been chosen from with the help of the queries that confirm; 1 if they did not help. `groups`: by
    query, its group of queries that share a relevant document (tasks.core.statistics.clusters); a query without an entry is its own group.
    """

    new: Mapping[str, float]
    old: Mapping[int, Mapping[str, float]]
    fresh: Collection[str] = ()
    slices: Mapping[str, Collection[str]] = field(default_factory=dict)
    looks: int = 1
    groups: Mapping[str, str] = field(default_factory=dict)
