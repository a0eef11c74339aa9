"""Parameters of tokenize."""

from dataclasses import dataclass
from typing import Self

from pydantic import Field, model_validator

from tasks.core.params.numbers import Count
from tasks.core.params.sections import Params


@dataclass(frozen=True)
class Cut:
    """How texts become rows of tokens, special tokens and `prefix` included.

    A text is truncated to `max_length` tokens (FirstP), or split into up to `passages` rows of that length, each with the special
    tokens and the prefix (MaxP: ANCE (arXiv:2007.00808), section 5), and with the last `overlap` tokens of the row before.
    """

    max_length: int
    prefix: str = ""
    passages: int = 1
    overlap: int = 0


class Tokenize(Params):
    """Maximum lengths of texts, and their prefixes."""

    query_length: Count = Field(32, ge=3, description="maximum tokens per query, special tokens included")
    document_length: Count = Field(
        96, ge=3, description="maximum tokens per document (per passage, if passages > 1), special tokens included"
    )
    passages: int = Field(
        1,
        ge=1,
        le=64,
        description="maximum passages per document. 1: its first document_length tokens (FirstP); more: it is scored by its best "
        "passage (MaxP)",
    )
    passage_overlap: Count = Field(
        0, ge=0, description="with passages > 1: tokens that a passage repeats from the one before, so that few sentences are split"
    )
    near_duplicates: float | None = Field(
        None,
        gt=0,
        le=1,
        description="documents count as copies if the Jaccard similarity of their sets of three consecutive tokens is at least this "
        "(MinHash): a copy of a query's positive is never its negative. 0.8 is usual; null: only documents with the same tokens are copies",
    )
    query_prefix: str = Field("", description="prepended to every query (for example `query: ` for E5)")
    document_prefix: str = Field("", description="prepended to every document")

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        if self.passage_overlap and self.passages == 1:
            raise ValueError(f"passage_overlap {self.passage_overlap}: a document is one passage; increase passages")
        return self

    @property
    def query(self) -> Cut:
        """How queries are cut."""
        return Cut(self.query_length, self.query_prefix)

    @property
    def document(self) -> Cut:
        """How documents are cut."""
        return Cut(self.document_length, self.document_prefix, self.passages, self.passage_overlap)
