"""Parameters of retrieve."""

from typing import Literal

from pydantic import Field

from tasks.core.stage.params import Params


class Retrieve(Params):
    """How deep a run goes, and what it holds."""

    depth: int = Field(1000, ge=1, description="depth of a run, in ranks")
    ignore_identical_ids: bool = Field(
        False,
        description="whether a document that has its query's id is left out of a run, as BEIR's code has it (ArguAna, Quora: queries "
        "that are documents)",
    )
    precision: Literal["bf16", "fp32"] = Field("bf16", description="of the query encoding: bf16 where the hardware has it, else fp32")
