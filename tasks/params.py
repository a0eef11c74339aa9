"""params.yaml as one record, assembled from each stage's own; for the flow, which validates before DVC runs. No stage imports this."""

from typing import Literal

from pydantic import Field

from tasks.adore.params import Adore, Study
from tasks.analyses.params import Analysis
from tasks.articles.params import Articles
from tasks.base.params import Another, Base, EncoderSource
from tasks.bm25.params import BM25
from tasks.chunk.params import Chunk
from tasks.core.stage.params import Params
from tasks.core.text.document import Text
from tasks.encode.params import Encode
from tasks.evaluate.params import Evaluate
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

RETRIEVE = frozenset(Retrieve.model_fields)  # of these, some were keys of evaluate before it was a stage of its own


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
    analyses: dict[str, Analysis]
    failures: Failures
    report: Report
