"""Parameters of pseudo."""

from typing import Literal, Self

from pydantic import Field, model_validator

from tasks.core.stage.params import Params

Kind = Literal["title", "sentence", "span"]


class Pseudo(Params):
    """Queries made from documents, for `queries: pseudo`; one is kept if two judges find its document (Promptagator, arXiv:2209.11755)."""

    kinds: tuple[Kind, ...] = Field(
        ("title", "sentence", "span"),
        min_length=1,
        description="what becomes a query: the title, the first sentence, spans of words drawn at random (ICT, arXiv:1906.00300)",
    )
    per_document: int = Field(3, ge=1, description="spans drawn per document; title and sentence give one query each")
    least_words: int = Field(3, ge=1, description="least words of a span or sentence; words are separated by white space")
    most_words: int = Field(12, ge=1, description="most words of a span")
    most_sentence_words: int = Field(24, ge=1, description="words of a sentence beyond these are cut off")
    documents: int | None = Field(
        20_000, ge=1, description="documents that queries are made from, chosen by a hash of their ids; null: all. Bounds memory and time"
    )
    agree_depth: int = Field(
        1,
        ge=1,
        description="a query is kept if its document is among so many of BM25 and of encoders/base, over the whole corpus (dev: or)",
    )
    dev: Literal["pseudo", "corpus"] | None = Field(
        None, description="where dev queries come from: held-out documents, or the source. null: the source if it has some, else pseudo"
    )
    dev_share: float = Field(0.1, gt=0, lt=1, description="share of the documents, chosen by a hash of their ids, held out for dev: pseudo")
    precision: Literal["bf16", "fp32"] = Field("bf16", description="arithmetic of the start encoder as a judge: bf16 | fp32")
    seed: int = Field(42, ge=0, description="seed for the choice of documents, of dev, and of spans")

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        shortest = min(self.most_words, self.most_sentence_words)
        if self.least_words > shortest:
            raise ValueError(f"least_words {self.least_words}: expected at most {shortest}, as in most_words and most_sentence_words")
        return self
