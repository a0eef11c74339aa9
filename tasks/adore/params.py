"""Parameters of one query-side training, an entry of `adore`, and of one study of compressed indexes, an entry of `study`."""

from typing import Literal, Self

from pydantic import Field, model_validator

from tasks.core.stage.params import Params, TrainingTokens


class QuerySide(Params):
    """A training of the query tower over fixed documents. The papers' values, where these differ, stand in the descriptions."""

    round: str = Field(description="the round whose towers it starts from and whose document vectors stay as they are")
    steps: int | None = Field(None, ge=1, description="optimizer steps; none: as many as `epochs` makes")
    epochs: float = Field(
        1.0, gt=0, description="passes over the training queries, where steps is not given (ADORE: 6; the first brings most)"
    )
    batch_queries: int = Field(32, ge=1, description="queries a step")
    depth: int = Field(200, ge=2, description="documents retrieved for a query, all in the loss; a smaller corpus is taken whole")
    loss: Literal["lambda", "ranknet"] = Field(
        "lambda", description="lambda: a pair weighs what its swap changes in the metric (ADORE, Eq. 15); ranknet: 1"
    )
    metric: Literal["mrr", "ndcg"] = Field("mrr", description="of the lambda weights")
    cut: int | None = Field(
        None, description="ranks of the metric (ADORE: 200 for passages, 10 for documents); none: as many as depth; ranks beyond weigh 0"
    )
    missing: Literal["drhard", "jpq", "ltre"] = Field(
        "drhard",
        description="positives that were not retrieved. drhard: where none was, all are appended to the list, else ignored (ADORE as "
        "released); jpq: each is appended; ltre: where none was, one of them takes the last place",
    )
    temperature: float = Field(
        0.05, gt=0, description="scores are divided by it (1 for dot products, as in the papers; 0.01 to 0.1 for cosine)"
    )
    optimizer: Literal["adamw", "lamb"] = Field("adamw")
    lr: float = Field(5e-6, gt=0, description="peak learning rate")
    weight_decay: float = Field(0.01, ge=0, description="not applied to biases, layer norms and centroids")
    warmup: float = Field(0.1, ge=0, lt=1, description="share of the steps over which lr rises linearly; it then falls linearly to 0")
    clip: float = Field(1.0, gt=0, description="largest norm of the query tower's gradient")
    precision: Literal["bf16", "fp32"] = Field("bf16", description="bf16: autocast over fp32 weights where the hardware has it, else fp32")
    batch_tokens: TrainingTokens = None
    nprobe: int = Field(16, ge=1, description="lists visited per query, for IVF indexes")
    ef_search: int = Field(512, ge=1, description="candidates kept per query, for HNSW indexes")
    train_size: int = Field(262144, ge=1, description="vectors an index is trained on at most, drawn with the seed (JPQ: all)")
    seed: int = Field(42, ge=0, description="order, draws, dropout and the index's sample")

    @model_validator(mode="after")
    def _weighs(self) -> Self:
        if self.cut is not None and self.loss != "lambda":
            raise ValueError(f"cut {self.cut}: ranknet's pairs all weigh 1; leave cut out, or set loss: lambda")
        if self.cut is not None and self.cut < 1:
            raise ValueError(f"cut {self.cut}: no rank would count and every pair weigh 0; expected at least 1, or none for depth")
        return self


class Adore(QuerySide):
    """One query-side training."""

    negatives: str = Field(description="none: `lists` says where they come from; with lists: given, a mine, a mix, bm25 or official")
    lists: Literal["retrieved", "refreshed", "random", "given"] = Field(
        "retrieved",
        description="what a query trains against. retrieved: the whole list of a full search at each step; refreshed: found with the "
        "tower of every `refresh`-th step; random: drawn from the corpus at each step; given: the best of `negatives`. "
        "All but retrieved have every known positive in the list, and no ranks",
    )
    refresh: int | None = Field(
        None, ge=1, description="steps between two searches, for lists: refreshed (ANCE: 10000, STAR's study: 5000)"
    )
    index: str = Field("Flat", min_length=1, description="faiss factory string that is searched and served; Flat: the vectors themselves")
    centroids: bool = Field(False, description="whether the centroids of a PQ index are trained too (JPQ)")
    centroid_lr: float | None = Field(
        None,
        gt=0,
        description="peak learning rate of the centroids; none, by bytes a vector: 5e-6 up to 24, 2e-5 up to 32, then 1e-4 (JPQ)",
    )

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        if (self.negatives != "none") != (self.lists == "given"):
            raise ValueError(
                f"negatives {self.negatives} with lists: {self.lists}; lists: given needs negatives, the others negatives: none"
            )
        if (self.refresh is not None) != (self.lists == "refreshed"):
            raise ValueError(f"refresh {self.refresh} with lists: {self.lists}; lists: refreshed needs refresh, the others none")
        if self.lists != "retrieved" and self.loss != "ranknet":
            raise ValueError(f"lists: {self.lists} have no ranks that lambda could weigh; set loss: ranknet")
        if self.centroid_lr is not None and not self.centroids:
            raise ValueError("centroid_lr without centroids: true")
        return self

    @property
    def factory(self) -> str:
        return self.index


class Study(QuerySide):
    """Every factory as the index of a training and as the index that is served (LTRe Tables 3 and 4, ADORE Tables 3 and 5)."""

    factories: tuple[str, ...] = Field(min_length=1, description="faiss factory strings; Flat: the vectors themselves")
    splits: tuple[Literal["dev", "test"], ...] = Field(("dev",), min_length=1, description="what is measured; test only when it is named")
    measures: tuple[str, ...] = Field(("RR@10", "nDCG@10", "R@100"), min_length=1, description="in the notation of ir_measures")
    serve_depth: int = Field(100, ge=1, description="documents retrieved for the measures, and k of the recall against exact search")
