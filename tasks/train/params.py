"""Parameters of one round, an entry of `rounds`."""

from typing import Literal, Self

from pydantic import Field, model_validator

from tasks.core.params import Params


class Round(Params):
    """One training of the bi-encoder. Defaults are this product's; the papers' values stand in the descriptions."""

    init: str = Field(description="the encoder to start from: base, a pretrain, an earlier round or an adore")
    negatives: str = Field(description="where hard negatives come from: none, official, bm25, a mine or a mix")
    steps: int | None = Field(None, ge=0, description="optimizer steps; none: as many as `epochs` makes; 0: the encoder as it came")
    epochs: float = Field(1.0, gt=0, description="passes over the training queries, where steps is not given")
    batch_queries: int = Field(64, ge=1, description="queries a step (STAR: 256, ADORE: 32)")
    hard_negatives: int = Field(1, ge=0, description="hard negatives a query and step (STAR: 1, Tevatron: 7)")
    window: tuple[int, int] = Field((1, 200), description="first and last rank that a hard negative is drawn from, uniformly")
    loss: Literal["nll", "ranknet"] = Field("nll", description="nll: softmax over positive and negatives; ranknet: pairwise (STAR, Eq. 14)")
    in_batch: bool = Field(True, description="whether the other queries' documents are negatives too, known positives masked")
    alpha: float | None = Field(
        None,
        ge=0,
        description="ranknet: weight of in-batch against own hard negatives (STAR, Eq. 13); none: every pair weighs the same, as released",
    )
    temperature: float = Field(0.05, gt=0, description="scores are divided by it (1 for dot products, 0.01 to 0.1 for cosine)")
    optimizer: Literal["adamw", "lamb"] = Field("adamw", description="STAR and ANCE: lamb")
    lr: float = Field(5e-5, gt=0, description="peak learning rate (STAR: 1e-4 with lamb; Tevatron: 5e-6 to 1e-5 with adamw)")
    weight_decay: float = Field(0.01, ge=0, description="not applied to biases and layer norms")
    warmup: float = Field(0.1, ge=0, lt=1, description="share of the steps over which lr rises linearly; it then falls linearly to 0")
    clip: float = Field(1.0, gt=0, description="largest norm of the gradient")
    precision: Literal["bf16", "fp32"] = Field("bf16", description="bf16: autocast over fp32 weights where the hardware has it, else fp32")
    batch_tokens: int = Field(
        4096, ge=512, description="tokens of one forward pass at most, padding included (gradient caching cuts a step into these)"
    )
    seed: int = Field(42, ge=0, description="order, sampling and dropout")

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        if not 1 <= self.window[0] <= self.window[1]:
            raise ValueError(f"window {self.window}: the first rank is at least 1 and at most the last")
        if self.alpha is not None and not (self.loss == "ranknet" and self.in_batch):
            raise ValueError("alpha weighs ranknet's in-batch pairs: it needs loss: ranknet and in_batch: true")
        if self.steps != 0 and self.hard_negatives == 0 and not self.in_batch:
            raise ValueError("neither hard_negatives nor in_batch: there would be no negative at all")
        return self
