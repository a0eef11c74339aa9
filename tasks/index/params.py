"""Parameters of index."""

from pydantic import Field

from tasks.core.stage.params import Params


class Index(Params):
    """The faiss index that is served."""

    factory: str = Field("Flat", min_length=1, description="faiss factory string; metric is the inner product")
    nprobe: int = Field(16, ge=1, description="lists visited per query, for IVF indexes")
    ef_search: int = Field(128, ge=1, description="candidates kept per query, for HNSW indexes")
    train_size: int = Field(262144, ge=1, description="vectors an index is trained on at most, drawn with the seed")
    recall_at: int = Field(100, ge=1, description="k of the recall against exact search")
    seed: int = Field(42, ge=0)
