"""Parameters of bm25."""

from typing import Literal

import Stemmer
from pydantic import Field, field_validator

from tasks.core.params import Params


class BM25(Params):
    """Lucene's BM25 (Robertson's tf saturation, idf = log(1 + (N - n + 0.5) / (n + 0.5)))."""

    k1: float = Field(0.9, ge=0, description="term frequency saturation")
    b: float = Field(0.4, ge=0, le=1, description="length normalisation")
    stemmer: str = Field("english", description="a Snowball language, or none")
    stopwords: Literal["english", "english_plus", "none"] = Field(
        "english", description="Lucene's 33 English words, a longer list, or none"
    )
    depth: int = Field(100, ge=1, description="candidates of a training query, ranks")
    run_depth: int = Field(1000, ge=1, description="ranks of a dev or test run")

    @field_validator("stemmer")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in ("none", *Stemmer.algorithms()):
            raise ValueError(f"known are none, {', '.join(Stemmer.algorithms())}")
        return value
