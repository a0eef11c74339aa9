"""Parameters of mix."""

from typing import Self

from pydantic import Field, model_validator

from tasks.core.stage.params import Params


class Mix(Params):
    """Negatives of two sources, interleaved so that every stretch of ranks holds them in the same ratio."""

    first: str = Field(
        description="a source of negatives: random, official, bm25, a mine, a teacher or another mix; "
        "a round draws anew at each step, from the whole corpus, what stands for random"
    )
    second: str = Field(description="the other one")
    ratio: float = Field(0.5, gt=0, lt=1, description="share of the first")
    depth: int = Field(200, ge=2, description="negatives of a training query, both together")
    seed: int = Field(42, ge=0, description="draws random negatives")

    @model_validator(mode="after")
    def _two(self) -> Self:
        if self.first == self.second:
            raise ValueError(f"first and second are both {self.first}: name two sources")
        if "none" in (self.first, self.second):
            raise ValueError("none holds no negatives: name two sources that do")
        return self
