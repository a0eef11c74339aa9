"""Parameters of analyses."""

from pydantic import Field

from tasks.core.params.numbers import Count, Seed
from tasks.core.params.sections import Params


class Analysis(Params):
    """The papers' analyses of one round, on dev (or test, if dev has fewer than two judged queries): retemper run analyses."""

    round: str = Field(description="round to analyze")
    negatives: str = Field(
        description="negatives to compare with those that the round itself finds: bm25, official, or an entry of mine, mix, or teacher"
    )
    depth: Count = Field(
        200,
        ge=2,
        description="top documents per query in which negatives, BM25, and the round's own results are compared (STAR, LTRe: 200); "
        "negatives at most to the depth of the shallower source",
    )
    train_queries: Count = Field(200, ge=1, description="training queries, drawn by the seed, whose negatives are compared")
    curves: Count = Field(10, ge=0, description="queries with a curve of scores by rank (ANCE, Fig. 3: 10)")
    maps: Count = Field(3, ge=0, description="queries with a t-SNE map of their documents")
    batches: Count = Field(4, ge=1, description="batches over which losses and gradient norms are averaged")
    batch_queries: Count = Field(16, ge=2, description="queries per batch")
    temperature: float = Field(0.05, gt=0, description="divides scores in the loss, as in the round's own training")
    sample: Count = Field(2000, ge=2, description="documents used to measure uniformity")
    seed: Seed = Field(42, ge=0, description="seed for every draw")
