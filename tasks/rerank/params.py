"""Parameters of rerank."""

from typing import Literal

from pydantic import Field

from tasks.core.params.numbers import Count
from tasks.core.params.sections import InferenceTokens, Params


class Rerank(Params):
    """Which run is reranked, and by which cross-encoder."""

    run: str = Field(description="the system whose runs are reranked: bm25, a round, or an entry of adore or fuse")
    reranker: str = Field(description="an entry of rerankers")
    depth: Count = Field(100, ge=1, description="ranks of the run that are reranked; the rest is discarded")
    max_length: Count = Field(256, ge=16, description="maximum tokens of query and document together")
    precision: Literal["bf16", "fp32"] = Field("bf16", description="bf16 if the hardware has it, else fp32")
    batch_tokens: InferenceTokens = None
