"""Parameters of teacher."""

from typing import Literal, Self

from pydantic import Field, model_validator

from tasks.core.params.numbers import Count
from tasks.core.params.sections import InferenceTokens, Params


class Teacher(Params):
    """Which pairs a cross-encoder scores: negatives and every known positive of their queries."""

    negatives: str = Field(description="negatives to score: official, bm25, or an entry of mine, mix, or teacher")
    reranker: str = Field(description="the cross-encoder, an entry of rerankers")
    depth: Count = Field(200, ge=1, description="top-ranked negatives to score per query")
    max_length: Count = Field(256, ge=16, description="maximum tokens of query and document together; the longer of the two is truncated")
    absolute_margin: float | None = Field(
        None,
        description="guard against unjudged positives: discard negatives that score above the query's best positive minus this, in "
        "score units",
    )
    precision: Literal["bf16", "fp32"] = Field("bf16", description="precision of inference; bf16 where the hardware supports it, else fp32")
    batch_tokens: InferenceTokens = None

    @model_validator(mode="after")
    def _scores(self) -> Self:
        if self.negatives in ("none", "random"):
            raise ValueError(f"negatives {self.negatives}: there is no table to score; name official, bm25, or an entry of mine or mix")
        return self
