"""Parameters of rescore."""

from typing import Literal

from pydantic import Field

from tasks.core.params.numbers import Count
from tasks.core.params.sections import Params


class Rescore(Params):
    """Which run is rescored, and by which bi-encoder."""

    run: str = Field(description="the system whose runs are rescored: bm25, another round, or an entry of adore or fuse")
    round: str = Field(description="the round whose document vectors are used")
    encoder: str = Field(description="the model whose query tower is used: the round itself, or an adore over it")
    depth: Count = Field(100, ge=1, description="ranks of the run that are rescored; the rest is discarded")
    precision: Literal["bf16", "fp32"] = Field("bf16", description="precision of query encoding: bf16 if the hardware has it, else fp32")
