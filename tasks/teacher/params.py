"""Parameters of teacher."""

from typing import Literal, Self

from pydantic import Field, model_validator

from tasks.core.stage.params import InferenceTokens, Params


class Teacher(Params):
    """Which pairs a cross-encoder scores: a source's negatives, and every known positive of their queries."""

    negatives: str = Field(description="the source: official, bm25, a mine or a mix")
    reranker: str = Field(description="an entry of rerankers")
    depth: int = Field(200, ge=1, description="negatives of a query that are scored, the best-ranked")
    max_length: int = Field(256, ge=16, description="tokens of query and document together; the document is cut")
    absolute_margin: float | None = Field(
        None,
        description="guard against unjudged positives: negatives that score above the query's best positive less this much are left out",
    )
    precision: Literal["bf16", "fp32"] = Field("bf16", description="bf16 where the hardware has it, else fp32")
    batch_tokens: InferenceTokens = None

    @model_validator(mode="after")
    def _scores(self) -> Self:
        if self.negatives in ("none", "random"):
            raise ValueError(f"negatives {self.negatives}: there is no table of them to score; name official, bm25, a mine or a mix")
        return self
