"""Parameters of reranker."""

from typing import Literal, Self

from pydantic import Field, model_validator

from tasks.core.stage.params import Params, TrainingTokens


class Reranker(Params):
    """A cross-encoder, and how it is fine-tuned, if at all."""

    source: str = Field(min_length=1, description="a Hugging Face id | a folder | package:MODULE/FOLDER")
    head: Literal["source", "new"] = Field(
        "source",
        description="source: a classifier of one label, as it came; new: such a head drawn by seed upon any encoder, to be trained",
    )
    negatives: str = Field(description="what it is trained on: none, official, bm25, a mine or a mix")
    steps: int = Field(0, ge=0, description="optimizer steps; 0: as it came")
    batch_queries: int = Field(8, ge=1, description="queries a step")
    hard_negatives: int = Field(7, ge=1, description="negatives a query and step, drawn uniformly; the loss is a softmax over the group")
    window: tuple[int, int] = Field((1, 200), description="first and last rank that a negative is drawn from")
    max_length: int = Field(256, ge=16, description="tokens of query and document together")
    lr: float = Field(2e-5, gt=0, description="peak learning rate of AdamW")
    weight_decay: float = Field(0.01, ge=0, description="not applied to biases and layer norms")
    warmup: float = Field(0.1, ge=0, lt=1, description="share of the steps over which lr rises linearly; it then falls linearly to 0")
    clip: float = Field(1.0, gt=0, description="largest norm of the gradient")
    precision: Literal["bf16", "fp32"] = Field("bf16", description="bf16: autocast over fp32 weights where the hardware has it, else fp32")
    batch_tokens: TrainingTokens = None
    seed: int = Field(42, ge=0, description="a new head, order, sampling and dropout")

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        if not 1 <= self.window[0] <= self.window[1]:
            raise ValueError(f"window {list(self.window)}: the first rank is at least 1 and at most the last")
        if self.steps and self.negatives in ("none", "random"):
            raise ValueError(
                f"negatives {self.negatives}: steps {self.steps} train on a table of negatives: official, bm25, a mine or a mix"
            )
        if self.head == "new" and not self.steps:
            raise ValueError("head: new is drawn at random and needs steps to learn anything")
        return self
