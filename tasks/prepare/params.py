"""Parameters of prepare."""

from typing import Literal

from pydantic import Field

from tasks.core.params.numbers import Count
from tasks.core.params.sections import Params


class Dataset(Params):
    """Where documents, queries, and qrels come from."""

    source: str = Field(min_length=1, description="demo | beir:PATH | csv:PATH | msmarco:PATH | parquet:PATH | pairs:FILE | irds:ID")


class Prepare(Params):
    """How the source is read."""

    unknown_documents: Literal["refuse", "drop"] = Field(
        "refuse", description="qrels that name a document or query outside the source: raise an error, or drop and count them"
    )
    empty_texts: Literal["refuse", "drop"] = Field(
        "refuse",
        description="documents without title and text, queries without text: raise an error, or drop and count them and their qrels",
    )
    leaks: Literal["refuse", "drop", "allow"] = Field(
        "refuse",
        description="training queries that are also in dev or test, by id, or by text (ignoring case and repeated white space): raise an "
        "error, drop them from train, or keep them; dropped and kept ones are counted",
    )
    ids: Literal["refuse", "escape"] = Field(
        "refuse",
        description="ids with white space: raise an error, or keep them, percent-encoded in TREC files (white space separates fields)",
    )
    official_depth: Count = Field(
        200, ge=0, description="the source's own negatives kept per training query, the first in source order; 0: they are not read"
    )
