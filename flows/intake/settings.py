"""The part of retraining.yaml that says where new data comes from."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from tasks.core.stage.params import Params

FILE = Path("retraining.yaml")


class Intake(Params):
    """Where new data comes from, besides `dataset.source` itself, which may grow or change at any time."""

    inbox: str | None = Field(None, min_length=1, description="folder of batches: BEIR folders, taken in the order of their names")
    mode: Literal["append", "replace"] = Field(
        "append", description="append: dataset.source and every batch, merged by id, the later wins; replace: the last batch alone"
    )
