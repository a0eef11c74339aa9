"""Parameters of mix."""

from typing import Self

from pydantic import Field, model_validator

from tasks.core.params.numbers import Count, Seed
from tasks.core.params.sections import Params


class Mix(Params):
    """Negatives from two sources, interleaved so that every range of ranks has the same ratio."""

    first: str = Field(
        description="a source of negatives: random, official, bm25, or an entry of mine, teacher, or mix; "
        "for random, a round samples from the whole corpus again at each step"
    )
    second: str = Field(description="the other source of negatives")
    ratio: float = Field(0.5, gt=0, lt=1, description="fraction of negatives from first")
    depth: Count = Field(200, ge=2, description="negatives per training query, both sources together")
    seed: Seed = Field(42, ge=0, description="seeds random negatives")

    @model_validator(mode="after")
    def _two(self) -> Self:
        if self.first == self.second:
            raise ValueError(f"first and second are both {self.first}; name two different sources")
        if "none" in (self.first, self.second):
            raise ValueError("none has no negatives; name two sources that do")
        return self
