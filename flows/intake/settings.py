"""The part of retraining.yaml that says where new data comes from, and what is kept out of it."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from tasks.core.params.sections import Params

FILE = Path("retraining.yaml")


class Gate(Params):
    """What keeps a batch out. Malformed lines, and whatever prepare would refuse in the merged data set, always do."""

    duplicates: float | None = Field(
        0.3,
        ge=0,
        le=1,
        description="largest share of a batch's new documents (by id) that may have exactly the title and text of another; null: any",
    )
    shift: float | None = Field(
        0.95,
        ge=0.5,
        lt=1,
        description="largest AUC of the novelty test of documents and of queries: how often a text of the batch is farther from the "
        "champion's training texts than one of these texts is (0.5: no shift; 1: always); null: not tested",
    )
    p: float = Field(
        0.01, gt=0, lt=1, description="a batch is kept out for a shift only if the permutation p-value of its AUC is at most this"
    )
    least: int = Field(
        50,
        ge=2,
        description="a batch with fewer new documents than this is not tested for duplicates; with fewer documents (or queries) in all, "
        "these are not tested for shift",
    )
    sample: int = Field(
        1000, ge=50, description="texts of the batch that the test of shift reads; it reads twice as many of the champion's data"
    )


class Intake(Params):
    """Where new data comes from, besides `dataset.source` itself, which may grow or change at any time."""

    inbox: str | None = Field(
        None,
        min_length=1,
        description="folder of batches, each a BEIR or CSV folder, or a file of questions and answers; taken in the order of their names",
    )
    mode: Literal["append", "replace"] = Field(
        "append", description="append: dataset.source and every batch, merged by id, the latest wins; replace: only the last batch"
    )
    settle_seconds: float = Field(
        0.0,
        ge=0,
        description="a batch with a file that changed within this many seconds is still being written, so it waits for the next run",
    )
    shrink: float | None = Field(
        0.3,
        ge=0,
        le=1,
        description="largest share of the champion's documents, or of a split's queries, that may be missing; if more are, the retraining "
        "fails before any training, and the champion stays; null: any",
    )
    gate: Gate = Gate()
