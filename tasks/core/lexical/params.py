"""Parameters of bm25."""

from typing import Literal, Self, get_args

import Stemmer
from pydantic import Field, field_validator, model_validator

from tasks.core.params.numbers import Count
from tasks.core.params.sections import Params

Stopwords = Literal[  # languages with both a bm25s list and a Snowball stemmer
    "none",
    "english",
    "english_plus",
    "danish",
    "dutch",
    "french",
    "german",
    "italian",
    "norwegian",
    "portuguese",
    "russian",
    "spanish",
    "swedish",
    "turkish",
]

ANALYSIS = ("stemmer", "stopwords", "cjk")  # settings with which an index's documents and its queries are analyzed


class BM25(Params):
    """Lucene's BM25 (Robertson's tf saturation, idf = log(1 + (N - n + 0.5) / (n + 0.5)))."""

    k1: float = Field(0.9, ge=0, description="term-frequency saturation")
    b: float = Field(0.4, ge=0, le=1, description="document-length normalization, 0 (none) to 1 (full)")
    stemmer: str = Field("english", description="a Snowball stemmer, or none")
    stopwords: Stopwords = Field(
        "english", description="english: Lucene's 33 words; english_plus: a longer list; another language: bm25s's list; none"
    )
    cjk: Literal["bigrams", "words"] = Field(
        "bigrams",
        description="terms of Chinese, Japanese, Korean, Thai, Lao, Khmer, Myanmar text. bigrams: of characters, as Lucene's CJKAnalyzer; "
        "words: separated by blanks, for segmented text",
    )
    depth: Count = Field(100, ge=0, description="candidates per training query, in ranks; 0: training queries are not searched")
    run_depth: Count = Field(1000, ge=1, description="depth of a dev or test run, in ranks")

    @field_validator("stemmer")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in ("none", *Stemmer.algorithms()):
            raise ValueError(f"expected none or one of {', '.join(Stemmer.algorithms())}")
        return value

    @model_validator(mode="after")
    def _check_language(self) -> Self:
        language = self.stopwords.removesuffix("_plus")
        stemmed = {"porter": "english", "lovins": "english", "dutch_porter": "dutch"}.get(self.stemmer, self.stemmer)
        if "none" not in (language, stemmed) and language != stemmed:
            lists = [*(name for name in get_args(Stopwords) if name.removesuffix("_plus") == stemmed), "none"]
            raise ValueError(f"stopwords are {self.stopwords}, the stemmer is {self.stemmer}; expected stopwords: {' or '.join(lists)}")
        return self
