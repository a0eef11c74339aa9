"""Parameters of evaluate."""

from typing import Literal, Self

from pydantic import Field, model_validator

from tasks.core.params import Params
from tasks.evaluate.measures import parse


class Evaluate(Params):
    """What is measured, and how deep a run goes."""

    depth: int = Field(1000, ge=1, description="ranks of a run")
    measures: tuple[str, ...] = Field(
        ("nDCG@10", "RR@10", "R@100", "AP"), min_length=1, description="in the notation of ir_measures, which computes them"
    )
    relevance: int = Field(
        1,
        ge=1,
        description="lowest grade that counts as relevant in RR, R, AP, P (TREC Deep Learning passages: 2); nDCG takes grades as they are",
    )
    precision: Literal["bf16", "fp32"] = Field("bf16", description="of the query encoding: bf16 where the hardware has it, else fp32")

    @model_validator(mode="after")
    def _known(self) -> Self:
        parse(self.measures, self.relevance)
        return self
