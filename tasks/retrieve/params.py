"""Parameters of retrieve."""

from typing import Literal

from pydantic import Field

from tasks.core.params.numbers import Count
from tasks.core.params.sections import Params


class Retrieve(Params):
    """How deep a run goes, and what it contains."""

    depth: Count = Field(1000, ge=1, description="depth of a run, in ranks")
    ignore_identical_ids: bool = Field(
        False,
        description="whether a run excludes the document with its query's id, as BEIR's code does (ArguAna, Quora: queries that are "
        "documents)",
    )
    precision: Literal["bf16", "fp32"] = Field("bf16", description="precision of query encoding: bf16 if the hardware has it, else fp32")
