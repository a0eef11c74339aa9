"""Parameters of failures."""

from pydantic import Field

from tasks.core.params.numbers import Count
from tasks.core.params.sections import Params


class Failures(Params):
    """Where the best system fails: its difference by groups of queries, its worst queries, and documents that nobody judged."""

    model: str | None = Field(
        None, description="the system studied; null: the best on dev, without systems that use BM25 if dev is made from documents"
    )
    against: str | None = Field(
        None,
        description="the system it is compared with; null: bm25, or the best other system if bm25 is the model, has no results, "
        "or is left out",
    )
    alpha: float = Field(
        0.05, ge=1e-6, lt=1, description="level of the intervals, and of the paired t-tests, Holm-corrected over all groups"
    )
    bins: int = Field(
        4, ge=2, le=1000, description="groups of about equal size into which lengths, rarities, and columns of numbers are divided"
    )
    least_queries: Count = Field(5, ge=2, description="minimum queries per group; smaller groups are counted, not tested")
    worst: Count = Field(20, ge=0, description="number of queries shown, largest losses against the other system first")
    suspect_depth: Count = Field(
        3, ge=1, description="top ranks to search for unjudged documents: one that several systems rank that high may be relevant"
    )
    suspect_systems: Count = Field(
        2, ge=1, description="systems that must rank it that high; fused and reordered runs do not count, since they are made from others"
    )
    suspects: Count = Field(200, ge=0, description="pairs of query and document listed per split, the best ranked first")
