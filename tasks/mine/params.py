"""Parameters of mine."""

from typing import Literal

from pydantic import Field

from tasks.core.stage.params import Params


class Mine(Params):
    """How deep, and over what, negatives are searched."""

    search: Literal["embeddings", "indexes"] = Field(description="embeddings: exact; indexes: the round's faiss index")
    depth: int = Field(200, ge=1, description="negatives kept per training query, after every known positive is removed")
    relative_margin: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="guard against unjudged positives: negatives that score above the query's best positive less this share of its score "
        "are left out, and not replaced (NV-Retriever: 0.05)",
    )
    absolute_margin: float | None = Field(None, ge=0, description="the same, less this much, in units of score")
    skip: int = Field(0, ge=0, description="best-ranked negatives left out first (they may be unjudged positives)")
    precision: Literal["bf16", "fp32"] = Field("bf16", description="of the query encoding: bf16 where the hardware has it, else fp32")
