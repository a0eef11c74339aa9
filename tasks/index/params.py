"""Parameters of index."""

from typing import Literal

from pydantic import Field

from tasks.core.params.numbers import Count, Seed
from tasks.core.params.sections import Params
from tasks.core.retrieval.ann.factories import Factory


class Index(Params):
    """The faiss index that is served."""

    factory: Factory = Field("Flat", description="faiss factory string; the metric is the inner product")
    build: Literal["cpu", "gpu"] = Field(
        "cpu",
        description="where inverted lists are clustered and filled; gpu: faster; requires a GPU and the extra gpu. "
        "Both write the same kind of file, but not the same bits",
    )
    nprobe: Count = Field(16, ge=1, description="IVF indexes: inverted lists probed per query")
    ef_search: Count = Field(128, ge=1, description="HNSW indexes: candidates kept per query; for centroids (IVF..._HNSW), always 16")
    k_factor: Count = Field(4, ge=1, description="refinement (RFlat, Refine(...)): candidates scored again, per result")
    train_size: Count = Field(262144, ge=1, description="maximum number of vectors to train the index on, sampled with the seed")
    recall_at: Count = Field(100, ge=1, description="k of recall@k against exact search, in ranks")
    seed: Seed = Field(42, ge=0, description="seeds the training sample and faiss's clustering")
