"""Parameters of one query-side training, an entry of `adore`, and of one study of compressed indexes, an entry of `study`."""

from typing import Literal, Self

from pydantic import Field, model_validator

from tasks.core.metrics.measures import cutoff, needs_texts, parse
from tasks.core.params.numbers import Count, Epochs, Seed
from tasks.core.params.sections import Params, TrainingPrecision, TrainingTokens, Warmup
from tasks.core.retrieval.ann.factories import Factory, trains_centroids

NOT_PQ = "centroids: true requires PQ{M}, OPQ{M},PQ{M}, or OPQ{M},IVF1,PQ{M}x8, with 8 bits per code; change index, or set centroids: false"


class QuerySide(Params):
    """A training of the query tower over fixed documents. Descriptions give the papers' values where they differ from the defaults."""

    round: str = Field(description="the round it starts from; its document vectors stay fixed")
    steps: Count | None = Field(None, ge=1, description="optimizer steps; null: derived from `epochs`")
    epochs: Epochs = Field(1.0, gt=0, description="passes over the training queries if steps is null (ADORE: 6; the first gains most)")
    batch_queries: Count = Field(32, ge=1, description="queries per step")
    depth: Count = Field(
        200, ge=2, description="documents retrieved per query, all of them in the loss; a smaller corpus is retrieved whole"
    )
    loss: Literal["lambda", "ranknet"] = Field(
        "lambda",
        description="lambda: a pair is weighted by how much swapping it changes the metric (ADORE, Eq. 15); ranknet: every pair by 1",
    )
    metric: Literal["mrr", "ndcg"] = Field("mrr", description="the metric that weights pairs, for loss: lambda")
    cut: Count | None = Field(
        None, description="rank cutoff of the metric (ADORE: 200 for passages, 10 for documents); ranks below it weigh 0; null: depth"
    )
    missing: Literal["drhard", "jpq", "ltre"] | None = Field(
        None,
        description="what happens to positives that were not retrieved. drhard: if no positive was retrieved, all are appended, else they "
        "are ignored (ADORE as released); jpq: each is appended; ltre: if no positive was retrieved, one takes the last rank; "
        "null: drhard, or jpq with centroids: true",
    )
    scores: Literal["exact", "decoded"] | None = Field(
        None,
        description="what a retrieved document is scored with in the loss, if the index is compressed. exact: its uncompressed vector "
        "(LTRe, Algorithm 1, and ADORE as released); decoded: the vector that its code decodes to, which is how the index ranks it "
        "(JPQ); null: exact, or decoded with centroids: true",
    )
    temperature: float = Field(0.05, gt=0, description="divides scores (dot product: 1, as in the papers; cosine: 0.01 to 0.1)")
    optimizer: Literal["adamw", "lamb"] = Field(
        "adamw", description="update rule: AdamW, or LAMB (layer-wise scaled steps, for large batches)"
    )
    lr: float = Field(5e-6, gt=0, description="peak learning rate")
    weight_decay: float = Field(
        0.01, ge=0, description="the optimizer's decay per unit of lr; not applied to biases, layer norms, and centroids"
    )
    warmup: Warmup = 0.1
    clip: float = Field(1.0, gt=0, description="the query tower's gradient is scaled down to this L2 norm if it is larger")
    precision: TrainingPrecision = "bf16"
    batch_tokens: TrainingTokens = None
    nprobe: Count = Field(16, ge=1, description="IVF indexes: inverted lists probed per query")
    ef_search: Count = Field(512, ge=1, description="HNSW indexes: candidates kept per query")
    k_factor: Count = Field(4, ge=1, description="refinement (RFlat, Refine(...)): candidates scored again, per result")
    train_size: Count = Field(262144, ge=1, description="maximum number of vectors to train an index on, sampled with the seed (JPQ: all)")
    seed: Seed = Field(42, ge=0, description="seeds query order, sampling, replay, dropout, and the index's training sample")

    @property
    def handling(self) -> Literal["drhard", "jpq", "ltre"]:
        """`missing`, with its default."""
        return self.missing or "drhard"

    @property
    def scored(self) -> Literal["exact", "decoded"]:
        """`scores`, with its default."""
        return self.scores or "exact"

    @model_validator(mode="after")
    def _weighs(self) -> Self:
        if self.cut is not None and self.loss != "lambda":
            raise ValueError(f"cut {self.cut}: ranknet weights every pair by 1, so it has no cutoff; remove cut or set loss: lambda")
        if self.cut is not None and self.cut < 1:
            raise ValueError(f"cut {self.cut}: every pair would have weight 0; expected at least 1, or null for depth")
        return self


class Adore(QuerySide):
    """One query-side training."""

    steps: Count | None = Field(
        None, ge=0, description="optimizer steps; 0: the round's query tower as it is, over `index`; null: derived from `epochs`"
    )
    negatives: str = Field(description="none, unless lists is `given`; then bm25, official, or an entry of mine, mix, or teacher")
    lists: Literal["retrieved", "refreshed", "random", "given"] = Field(
        "retrieved",
        description="what a query is trained against. retrieved: the list from a full search at each step; refreshed: from a search "
        "repeated every `refresh` steps; random: sampled from the corpus at each step; given: the top of `negatives`. "
        "All except retrieved add every known positive and have no ranks",
    )
    refresh: Count | None = Field(
        None, ge=1, description="steps between searches, for lists: refreshed (ANCE: 10000; the STAR paper's comparison: 5000)"
    )
    replay: float = Field(
        1.0,
        ge=0,
        le=1,
        description="share of the queries that the round was trained on to train on again, beside all new ones; sampled by seed; 1: all. "
        "Below 1, the round's weights must list the queries that they were trained on (retemper retrain)",
    )
    index: Factory = Field(
        "Flat", description="faiss factory string of the index that is trained against and served; Flat: uncompressed vectors"
    )
    quantizer: Literal["trained", "given"] = Field(
        "trained",
        description="where a compressed index gets its quantizer. trained: from the round's vectors; given: it comes with the round's "
        "encoder, trained on other documents, and the index is filled with the round's (retemper retrain)",
    )
    centroids: bool = Field(False, description="also train the centroids of a PQ index (JPQ)")
    centroid_lr: float | None = Field(
        None,
        gt=0,
        description="peak learning rate of the centroids; null: by bytes per vector, 5e-6 up to 24, 2e-5 up to 32, then 1e-4 (JPQ)",
    )

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        if (self.negatives != "none") != (self.lists == "given"):
            raise ValueError(
                f"negatives {self.negatives} with lists: {self.lists}: lists: given requires negatives; every other kind requires "
                "negatives: none"
            )
        if (self.refresh is not None) != (self.lists == "refreshed"):
            raise ValueError(
                f"refresh {self.refresh} with lists: {self.lists}: lists: refreshed requires refresh; every other kind takes none"
            )
        if self.lists != "retrieved" and self.loss != "ranknet":
            raise ValueError(f"lists: {self.lists} has no ranks for loss: lambda to weight; set loss: ranknet")
        if self.quantizer == "given" and self.index == "Flat":
            raise ValueError("quantizer: given requires a compressed index, such as OPQ24,IVF1,PQ24x8; Flat has nothing to train")
        if self.centroid_lr is not None and not self.centroids:
            raise ValueError("centroid_lr requires centroids: true; set that or remove centroid_lr")
        if self.centroids and self.scores == "exact":
            raise ValueError("scores: exact gives the centroids no gradient; remove it, or set centroids: false")
        if self.centroids and self.index == "Flat":
            raise ValueError("index Flat has no centroids; set an index such as OPQ24,IVF1,PQ24x8, or centroids: false")
        if self.centroids and not trains_centroids(self.index):
            raise ValueError(f"index {self.index}: {NOT_PQ}")
        return self

    @property
    def handling(self) -> Literal["drhard", "jpq", "ltre"]:
        return self.missing or ("jpq" if self.centroids else "drhard")

    @property
    def scored(self) -> Literal["exact", "decoded"]:
        return self.scores or ("decoded" if self.centroids else "exact")

    @property
    def factory(self) -> str:
        return self.index


class Study(QuerySide):
    """Train over every factory and serve from every factory (LTRe, Tables 3 and 4; ADORE, Tables 3 and 5)."""

    factories: tuple[Factory, ...] = Field(min_length=1, description="faiss factory strings; Flat: uncompressed vectors")
    splits: tuple[Literal["dev", "test"], ...] = Field(("dev",), min_length=1, description="splits to measure; test only if it is listed")
    measures: tuple[str, ...] = Field(("RR@10", "nDCG@10", "R@100"), min_length=1, description="measures, in ir_measures notation")
    serve_depth: Count = Field(
        100, ge=1, description="documents retrieved per query for the measures; also k of recall@k against exact search"
    )

    @model_validator(mode="after")
    def _measured(self) -> Self:
        if texts := needs_texts(parse(self.measures, 1)):
            raise ValueError(f"measures {texts[0]}: reads texts, which a study does not; remove it")
        for name in self.measures:
            if cutoff(name) > self.serve_depth:
                raise ValueError(f"measures {name}: expected a cutoff of at most serve_depth ({self.serve_depth}); raise serve_depth")
        return self
