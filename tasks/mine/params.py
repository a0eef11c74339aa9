"""Parameters of mine."""

from typing import Literal

from pydantic import Field

from tasks.core.params import Params


class Mine(Params):
    """How deep, and over what, negatives are searched."""

    search: Literal["embeddings", "indexes"] = Field(description="embeddings: exact; indexes: the round's faiss index")
    depth: int = Field(200, ge=1, description="negatives kept per training query, after every known positive is removed")
    skip: int = Field(0, ge=0, description="best-ranked negatives left out first (they may be unjudged positives)")
    precision: Literal["bf16", "fp32"] = Field("bf16", description="of the query encoding: bf16 where the hardware has it, else fp32")
