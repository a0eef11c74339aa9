"""Parameters of reranker."""

from typing import Literal, Self

from pydantic import Field, model_validator

from tasks.core.params.numbers import Count, Seed
from tasks.core.params.sections import Params, TrainingPrecision, TrainingTokens, Warmup


class Reranker(Params):
    """A cross-encoder, used as is or fine-tuned."""

    source: str = Field(min_length=1, description="a Hugging Face id | a local folder | package:MODULE/FOLDER")
    head: Literal["source", "new"] = Field(
        "source",
        description="source: the source's own one-label classifier; new: a randomly initialized one over any encoder, to be trained",
    )
    negatives: str = Field(description="training negatives: none, official, bm25, or an entry of mine, mix, or teacher")
    steps: Count = Field(0, ge=0, description="optimizer steps; 0: used as is")
    batch_queries: Count = Field(8, ge=1, description="queries per step")
    hard_negatives: Count = Field(
        7, ge=1, description="negatives per query and step, sampled uniformly; the loss is a softmax over the group"
    )
    window: tuple[Count, Count] = Field((1, 200), description="first and last rank to sample negatives from")
    max_length: Count = Field(256, ge=16, description="maximum tokens of query and document together")
    lr: float = Field(2e-5, gt=0, description="peak learning rate of AdamW")
    weight_decay: float = Field(0.01, ge=0, description="AdamW's decay per unit of lr; not applied to biases and layer norms")
    warmup: Warmup = 0.1
    clip: float = Field(1.0, gt=0, description="the gradient is scaled down to this L2 norm if it is larger")
    precision: TrainingPrecision = "bf16"
    batch_tokens: TrainingTokens = None
    seed: Seed = Field(42, ge=0, description="seeds a new head, query order, sampling, and dropout")

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        if not 1 <= self.window[0] <= self.window[1]:
            raise ValueError(f"window {list(self.window)}: expected [first, last] with 1 <= first <= last")
        if self.steps and self.negatives in ("none", "random"):
            raise ValueError(
                f"negatives {self.negatives}: training (steps {self.steps}) needs a table of negatives: official, bm25, or an entry "
                "of mine or mix"
            )
        if self.head == "new" and not self.steps:
            raise ValueError("head: new is randomly initialized and must be trained; set steps")
        return self
