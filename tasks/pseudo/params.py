"""Parameters of pseudo."""

from typing import Literal, Self

from pydantic import Field, model_validator

from tasks.core.params.numbers import Count, Seed
from tasks.core.params.sections import Params

Kind = Literal["title", "sentence", "span", "generated"]


class Pseudo(Params):
    """Queries made from documents, for `queries: pseudo`; one is kept if two judges find its document (Promptagator, arXiv:2209.11755)."""

    kinds: tuple[Kind, ...] = Field(
        ("title", "sentence", "span"),
        min_length=1,
        description="what becomes a query: the title, the first sentence, spans of words drawn at random (ICT, arXiv:1906.00300), "
        "what pseudo.generator writes",
    )
    generator: str | None = Field(
        None,
        min_length=1,
        description="a sequence-to-sequence model that writes queries for documents, as docTTTTTquery's T5: a folder or Hugging Face id",
    )
    generated: Count = Field(3, ge=1, description="queries that the generator writes per document (GPL, arXiv:2112.07577, has 3)")
    generator_tokens: Count = Field(350, ge=8, description="maximum tokens of a document that the generator reads (GPL: 350)")
    top_k: Count = Field(25, ge=0, description="the generator draws each token from this many most likely ones (GPL: 25); 0: from all")
    top_p: float = Field(
        0.95, gt=0, le=1, description="the generator draws only from the most likely tokens that together have this probability (GPL: .95)"
    )
    per_document: Count = Field(3, ge=1, description="spans drawn per document; title and sentence give one query each")
    least_words: Count = Field(
        3,
        ge=1,
        description="minimum words of a span or sentence. Words are separated by blanks; in Chinese, Japanese, Thai, Lao, Khmer, and "
        "Myanmar text, two characters count as a word",
    )
    most_words: Count = Field(12, ge=1, description="maximum words of a span")
    most_sentence_words: Count = Field(24, ge=1, description="maximum words of a sentence; longer ones are truncated")
    documents: Count | None = Field(
        20_000, ge=1, description="documents that queries are made from, chosen by a hash of their ids; null: all. Bounds memory and time"
    )
    agree_depth: Count = Field(
        1,
        ge=1,
        description="a query is kept if its document is among this many top results of BM25 and of encoders/base, over the whole corpus; "
        "for dev, one of the two is enough",
    )
    dev: Literal["pseudo", "corpus"] | None = Field(
        None,
        description="where dev queries come from. pseudo: held-out documents; corpus: the source; null: corpus if it has some, else pseudo",
    )
    dev_share: float = Field(0.1, gt=0, lt=1, description="share of the documents, chosen by a hash of their ids, held out for dev: pseudo")
    precision: Literal["bf16", "fp32"] = Field("bf16", description="precision of the start encoder as a judge, and of the generator")
    seed: Seed = Field(42, ge=0, description="seeds the choice of documents and dev, spans, and the generator")

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        shortest = min(self.most_words, self.most_sentence_words)
        if self.least_words > shortest:
            raise ValueError(f"least_words {self.least_words}: expected at most {shortest}, as in most_words and most_sentence_words")
        if ("generated" in self.kinds) != (self.generator is not None):
            found = f"kinds {', '.join(self.kinds)} and generator {self.generator or 'null'}"
            raise ValueError(f"{found}: expected generated among the kinds, and a generator, or neither")
        return self
