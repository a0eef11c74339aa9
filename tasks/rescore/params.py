"""Parameters of rescore."""

from typing import Literal

from pydantic import Field

from tasks.core.stage.params import Params


class Rescore(Params):
    """What is put in a new order, and by which bi-encoder."""

    run: str = Field(description="the system whose runs are rescored: bm25, another round, or an entry of adore or fuse")
    round: str = Field(description="whose document vectors are compared")
    encoder: str = Field(description="whose query tower they are compared with: the round itself, or an adore over it")
    depth: int = Field(100, ge=1, description="ranks of the run that are rescored; the rest is left out")
    precision: Literal["bf16", "fp32"] = Field("bf16", description="of the query encoding: bf16 where the hardware has it, else fp32")
