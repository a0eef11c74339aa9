"""Parameters of bm25."""

from pydantic import Field

from tasks.core.params import Params


class BM25(Params):
    """Lucene's BM25 (Robertson's tf saturation, idf = log(1 + (N - n + 0.5) / (n + 0.5)))."""

    k1: float = Field(0.9, ge=0, description="term frequency saturation")
    b: float = Field(0.4, ge=0, le=1, description="length normalisation")
    stemmer: str = Field("english", description="a Snowball language, or none")
    stopwords: str = Field("english", description="english, or none")
    depth: int = Field(100, ge=1, description="candidates of a training query, ranks")
    run_depth: int = Field(1000, ge=1, description="ranks of a dev or test run")
