"""Parameters of mine."""

from typing import Literal

from pydantic import Field

from tasks.core.params.numbers import Count
from tasks.core.params.sections import Params


class Mine(Params):
    """How hard negatives are searched for."""

    search: Literal["embeddings", "indexes"] = Field(description="embeddings: exact search; indexes: the round's faiss index")
    depth: Count = Field(200, ge=1, description="negatives kept per training query, after removing every known positive")
    relative_margin: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="guard against unjudged positives: discard negatives that score above (1 - relative_margin) times the query's best "
        "positive; they are not replaced (NV-Retriever: 0.05)",
    )
    absolute_margin: float | None = Field(
        None,
        ge=0,
        description="guard against unjudged positives: discard negatives that score above the query's best positive minus this, in "
        "score units",
    )
    skip: Count = Field(
        0,
        ge=0,
        description="top-ranked negatives to discard, in ranks, after those that the margins discard (they may be unjudged positives)",
    )
    precision: Literal["bf16", "fp32"] = Field(
        "bf16", description="precision of query encoding; bf16 where the hardware supports it, else fp32"
    )

    @property
    def keeps_first_ranks(self) -> bool:
        """Whether the list starts at the top rank: nothing is skipped, and no margin removes documents."""
        return not self.skip and self.relative_margin is None and self.absolute_margin is None
