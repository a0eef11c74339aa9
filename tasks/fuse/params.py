"""Parameters of fuse."""

from typing import Literal, Self

from pydantic import Field, model_validator

from tasks.core.params.numbers import Count
from tasks.core.params.sections import Params
from tasks.core.retrieval.fusion import DEPTH, NAMES, Method


class Fuse(Params):
    """Combine two systems' runs into one, by scores or by ranks. For more than two, fuse a fusion (`first: hybrid`).

    An entry has two fields, not a list: dvc.yaml cannot turn a list of any length into dependencies (DVC 3: "Cannot interpolate data of
    type 'list'"). mix has two for the same reason.
    """

    first: str = Field(description="a system: bm25, a round, or an entry of adore, rerank, rescore, or fuse")
    second: str = Field(description="the other system")
    method: Method = Field(
        "linear",
        description="linear: weighted sum of min-max normalized scores; zscore: of standard scores; rrf: reciprocal ranks",
    )
    weight: float | None = Field(
        None,
        ge=0,
        le=1,
        description="weight of first, for linear and zscore; null: the best on dev by report.metric, in steps of .05; .5 without dev",
    )
    k: float | None = Field(None, gt=0, description="k of rrf; null: the best on dev by report.metric, 1 to 100; 60 without dev")
    queries: Literal["dev", "selection"] = Field(
        "dev",
        description="judged dev queries on which an unset weight or k is chosen. dev: all; selection: the one in five on which retraining "
        "selects systems, so that the others can confirm the choice (docs/retraining.md)",
    )
    depth: Count = Field(DEPTH, ge=1, description="depth of the fused run, in ranks")

    @model_validator(mode="after")
    def _two(self) -> Self:
        if self.first == self.second:
            raise ValueError(f"first and second are both {self.first}; name two different systems")
        wanted = NAMES[self.method]
        for name in set(NAMES.values()) - {wanted}:
            if getattr(self, name) is not None:
                raise ValueError(f"{name} is set, but {self.method} has none; set {wanted}")
        return self

    @property
    def setting(self) -> float | None:
        """The weight or k, whichever the method has; None if it is to be chosen on dev."""
        value: float | None = getattr(self, NAMES[self.method])
        return value
