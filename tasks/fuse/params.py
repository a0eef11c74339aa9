"""Parameters of fuse."""

from typing import Self

from pydantic import Field, model_validator

from tasks.core.retrieval.fusion import Method
from tasks.core.stage.params import Params


class Fuse(Params):
    """Combine two systems' runs into one, by scores or by ranks. For more than two, fuse a fusion (`first: hybrid`).

    dvc.yaml cannot turn a list of arbitrary length into dependencies (DVC 3: "Cannot interpolate data of type 'list'"), so an entry
    has two fields, as in mix.
    """

    first: str = Field(description="a system: bm25, a round, or an entry of adore, rerank, rescore, or fuse")
    second: str = Field(description="the other system")
    method: Method = Field(
        "linear",
        description="linear: weighted sum of min-max normalized scores; zscore: of standard scores; rrf: reciprocal ranks. The weight of "
        "first (0 to 1 in steps of .05), or rrf's k (1 to 100), is the best on dev by report.metric; without dev, it is .5, or k 60",
    )
    depth: int = Field(1000, ge=1, description="depth of the fused run, in ranks")

    @model_validator(mode="after")
    def _two(self) -> Self:
        if self.first == self.second:
            raise ValueError(f"first and second are both {self.first}; name two different systems")
        return self
