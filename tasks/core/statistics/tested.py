"""How differences between systems are tested: the part of section `report` that `retemper compare` follows too."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from tasks.core.params.numbers import Count, Seed
from tasks.core.params.sections import Params, validate

if TYPE_CHECKING:
    from tasks.core.statistics.clusters import Numbers
    from tasks.core.statistics.paired_tests import Floats


class Tested(Params):
    """A paired two-sided test, and the level that its corrected p-values are held against."""

    alpha: float = Field(0.05, ge=1e-6, lt=1, description="family-wise error rate of the paired tests, with Holm's correction")
    test: Literal["t", "permutation"] = Field(
        "t", description="paired two-sided test: Student's t, or random sign flips (Smucker et al. 2007), drawn by seed"
    )
    permutations: Count = Field(
        100_000,
        ge=1000,
        description="number of sign flips drawn for test: permutation; if no more than these exist, all are used",
    )
    draws: Literal["groups", "queries"] = Field(
        "groups",
        description="what tests and intervals treat as independent: groups of queries that share relevant documents (docs/measures.md), or "
        "queries, as most papers do",
    )
    seed: Seed = Field(42, ge=0, description="seed for the sample of queries shown and for the permutation test")

    def drawn(self, queries: Sequence[str], groups: Mapping[str, str]) -> "Numbers":
        """The number of each query's group [Q], which tests draw as one: of its group in `groups`, or with `draws: queries`, its own."""
        from tasks.core.statistics.clusters import group_numbers

        return group_numbers(queries, groups if self.draws == "groups" else {})

    def p(self, first: "Floats", second: "Floats", groups: "Numbers") -> float:
        """Two-sided p of the mean of first - second, both [Q], before correction; `groups` [Q] are the numbers that `drawn` returns."""
        from tasks.core.statistics.paired_tests import paired_t_test, permutation_test  # scipy: not with every command

        if self.test == "permutation":
            return permutation_test(first, second, permutations=self.permutations, seed=self.seed, groups=groups)
        return paired_t_test(first, second, self.alpha, groups)[0]

    @property
    def tests(self) -> str:
        """The test in words: `paired two-sided t-tests`."""
        if self.test == "t":
            return "paired two-sided t-tests"
        return f"paired two-sided permutation tests ({self.permutations:,} sign flips, seed {self.seed})"

    @property
    def over(self) -> str:
        """The independent draws in words: `over groups of queries that share relevant documents`."""
        return "over groups of queries that share relevant documents" if self.draws == "groups" else "over queries"


def tests_of(sections: Mapping[str, Any], place: str) -> Tested:
    """The tests of differences that section `report` of the parameters, from file `place`, asks for."""
    values = sections.get("report") or {}
    return validate(Tested, {key: values[key] for key in Tested.model_fields if key in values}, place, section="report")
