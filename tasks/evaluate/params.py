"""Parameters of evaluate."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from tasks.core.metrics.measures import cutoff, parse
from tasks.core.params.sections import Params
from tasks.core.sources.grades import MOST

Grade = Annotated[int, Field(ge=1, le=MOST)]
Split = Literal["dev", "test"]
EITHER: dict[Split, int] = {"dev": 1, "test": 1}  # the splits that are measured, and their default lowest relevant grades


def _expand(value: Any) -> Any:
    """A grade for both splits, or for each."""
    return EITHER | value if isinstance(value, dict) else dict.fromkeys(EITHER, value)


Relevance = Annotated[dict[Split, Grade], BeforeValidator(_expand, json_schema_input_type=dict[Split, Grade] | Grade)]


class Evaluate(Params):
    """Which measures are computed."""

    measures: tuple[str, ...] = Field(
        ("nDCG@10", "RR@10", "R@100", "AP"),
        min_length=1,
        description="in the notation of ir_measures, which computes them; also Hole@k, Coverage@k (needs answers), PairwiseErrors@k",
    )
    relevance: Relevance = Field(
        EITHER,
        description="lowest grade that counts as relevant in RR, R, AP, P, for both splits or for each (MS MARCO dev with "
        "TREC Deep Learning passages: {dev: 1, test: 2}); nDCG uses grades as they are",
    )

    @model_validator(mode="after")
    def _check_measures(self) -> Self:
        for grade in self.relevance.values():
            parse(self.measures, grade)
        return self

    @property
    def deepest(self) -> tuple[str, int]:
        """The measure that uses the most ranks of a run, and their number."""
        name = max(self.measures, key=cutoff)
        return name, cutoff(name)
