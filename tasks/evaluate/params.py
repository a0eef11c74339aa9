"""Parameters of evaluate."""

from typing import Literal

from pydantic import Field

from tasks.core.params import Params


class Evaluate(Params):
    """What is measured, and how deep a run goes."""

    depth: int = Field(1000, ge=1, description="ranks of a run")
    measures: tuple[str, ...] = Field(
        ("nDCG@10", "RR@10", "R@100", "AP"), min_length=1, description="in the notation of ir_measures, which computes them"
    )
    precision: Literal["bf16", "fp32"] = Field("bf16", description="of the query encoding: bf16 where the hardware has it, else fp32")
