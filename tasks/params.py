"""params.yaml as one record, assembled from the stages' records. The flow validates with it before DVC runs. No stage imports this."""

from typing import Any, Literal

from pydantic import Field, field_validator

from tasks.adore.params import Adore, Study
from tasks.analyses.params import Analysis
from tasks.articles.params import Articles
from tasks.base.params import Another, Base, EncoderSource
from tasks.bm25.params import BM25
from tasks.chunk.params import Chunk
from tasks.core.params.numbers import Count
from tasks.core.params.sections import Params
from tasks.core.text.document import Text
from tasks.encode.params import Encode
from tasks.evaluate.params import EITHER, Evaluate, Relevance
from tasks.failures.params import Failures
from tasks.fuse.params import Fuse
from tasks.index.params import Index
from tasks.mine.params import Mine
from tasks.mix.params import Mix
from tasks.prepare.params import Dataset, Prepare
from tasks.pretrain.params import Pretrain
from tasks.pseudo.params import Pseudo
from tasks.report.params import Report
from tasks.rerank.params import Rerank
from tasks.reranker.params import Reranker
from tasks.rescore.params import Rescore
from tasks.retrieve.params import Retrieve
from tasks.teacher.params import Teacher
from tasks.tokenize.params import Tokenize
from tasks.train.params import Round

RETRIEVE = frozenset(Retrieve.model_fields)  # some of these were keys of evaluate before retrieve became a stage of its own


class Extra(Params):
    """A further data set, on which every system is measured zero-shot. `NAME: SPEC` alone stands for `NAME: {source: SPEC}`."""

    source: str = Field(description="demo | beir:PATH | csv:PATH | msmarco:PATH | parquet:PATH | pairs:FILE | irds:ID")
    relevance: Relevance = Field(EITHER, description="lowest grade that counts as relevant, for both splits or for each")
    titles: bool | None = Field(None, description="prepend a document's title to its text; null: as text.titles")
    ignore_identical_ids: bool | None = Field(
        None, description="exclude the document with the query's own id, as BEIR does; null: as retrieve.ignore_identical_ids"
    )
    query_length: Count | None = Field(None, ge=3, description="maximum tokens per query; null: as tokenize.query_length")
    document_length: Count | None = Field(None, ge=3, description="maximum tokens per document; null: as tokenize.document_length")
    drop: bool = Field(False, description="drop and count empty texts, and qrels of unknown ids, instead of refusing them")


class Parameters(Params):
    """Every section of params.yaml."""

    dataset: Dataset
    queries: Literal["corpus", "pseudo"] = Field(description="queries are the source's own, or made from its documents by stage pseudo")
    encoder: EncoderSource
    prepare: Prepare
    base: Base
    pseudo: Pseudo
    encoders: dict[str, Another]
    text: Text
    tokenize: Tokenize
    bm25: BM25
    articles: Articles
    chunk: Chunk
    pretrain: dict[str, Pretrain]
    rounds: dict[str, Round] = Field(min_length=1)
    encode: Encode
    index: Index
    mine: dict[str, Mine]
    mix: dict[str, Mix]
    rerankers: dict[str, Reranker]
    teacher: dict[str, Teacher]
    rerank: dict[str, Rerank]
    rescore: dict[str, Rescore]
    adore: dict[str, Adore]
    fuse: dict[str, Fuse]
    study: dict[str, Study]
    retrieve: Retrieve
    evaluate: Evaluate
    extra: dict[str, Extra] = Field({}, description="further data sets")
    analyses: dict[str, Analysis]
    failures: Failures
    report: Report

    @field_validator("extra", mode="before", json_schema_input_type=dict[str, Extra | str])
    @classmethod
    def _sources(cls, value: Any) -> Any:
        return (
            {name: {"source": entry} if isinstance(entry, str) else entry for name, entry in value.items()}
            if isinstance(value, dict)
            else value
        )
