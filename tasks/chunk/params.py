"""Parameters of chunk."""

from typing import Literal

from pydantic import Field

from tasks.core.params.numbers import Count
from tasks.core.params.sections import Params


class Chunk(Params):
    """The texts for pre-training, and their length."""

    texts: Literal["articles", "corpus"] = Field(
        "articles",
        description="texts to pre-train on: articles.source, or the corpus's own documents (their texts, never queries)",
    )
    length: int = Field(512, ge=8, le=65535, description="maximum tokens per chunk, special tokens included (COSTA: 512)")
    least: Count = Field(16, ge=3, description="minimum tokens per chunk; shorter ones (usually the end of an article) are excluded")
