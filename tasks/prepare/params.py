"""Parameters of prepare."""

from typing import Literal

from pydantic import Field

from tasks.core.stage.params import Params


class Dataset(Params):
    """Where documents, queries and qrels come from."""

    source: str = Field(min_length=1, description="demo | beir:PATH | csv:PATH | msmarco:PATH | parquet:PATH | irds:ID")


class Prepare(Params):
    """How the source is read."""

    unknown_documents: Literal["refuse", "drop"] = Field(
        "refuse", description="qrels that name a document or query outside the source: an error, or dropped and counted"
    )
    empty_texts: Literal["refuse", "drop"] = Field(
        "refuse", description="documents without title and text, queries without text: an error, or dropped and counted with their qrels"
    )
    ids: Literal["refuse", "escape"] = Field(
        "refuse", description="ids with white space: an error, or kept, and percent-encoded in TREC files, which it would cut into fields"
    )
    official_depth: int = Field(
        200, ge=1, description="ready negatives (MS MARCO) kept per training query, the first in the source's order"
    )
