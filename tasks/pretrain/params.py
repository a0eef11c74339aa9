"""Parameters of one pre-training, an entry of `pretrain`. Defaults are costa.txt's unless the description says another thing."""

from typing import Literal, Self

from pydantic import Field, model_validator

from tasks.core.stage.params import Params, TrainingTokens

Granularity = Literal["word", "phrase", "sentence", "paragraph"]
GRANULARITIES: tuple[Granularity, ...] = ("word", "phrase", "sentence", "paragraph")


class Scratch(Params):
    """Random weights in place of the initial encoder's; its tokenizer, positions and activation are kept."""

    layers: int = Field(ge=1)
    width: int = Field(ge=8, description="hidden width; the feed-forward layer is four times as wide")
    heads: int = Field(ge=1)

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is no multiple of heads {self.heads}")
        return self


class Pretrain(Params):
    """One pre-training on the chunks of articles: total loss = contrastive_weight x contrastive + mlm_weight x MLM (Eq. 10)."""

    init: str = Field(description="the encoder to start from: base or any other of the graph; its MLM head too, where it has one")
    scratch: Scratch | None = Field(None, description="random weights of this size; none: the weights of init")
    objective: Literal["costa", "ict", "mlm"] = Field(
        "costa", description="costa: contrastive span prediction + MLM; ict: inverse cloze task + MLM; mlm: MLM alone"
    )
    steps: int | None = Field(None, ge=1, description="optimizer steps; none: as many as `epochs` makes")
    epochs: float = Field(6.0, gt=0, description="passes over the chunks, where steps is not given (ablations: 3)")
    batch_texts: int = Field(64, ge=2, description="texts a step, N of Eq. 8: the others are negatives (the paper does not say)")
    granularities: tuple[Granularity, ...] = Field(GRANULARITIES, min_length=1, description="kinds of spans")
    spans: int = Field(5, ge=1, description="T, spans of each granularity a text (ablations: 3)")
    phrase: tuple[int, int] = Field((4, 16), description="least and most tokens of a phrase")
    sentence: tuple[int, int] = Field((16, 64), description="least and most tokens of a sentence-level span")
    paragraph: tuple[int, int] = Field((64, 128), description="least and most tokens of a paragraph-level span")
    beta: tuple[float, float] = Field((4.0, 2.0), description="alpha and beta of the lengths' beta distribution (Eq. 1)")
    redraw: bool = Field(True, description="spans are drawn anew in every epoch (this project's); false: once for all, as Algorithm 1")
    pooling: Literal["encoder", "cls", "mean"] = Field(
        "encoder",
        description="the text's vector, before a head that the encoder may have (base.head): as the encoder pools (so that what is trained "
        "is what retrieves, where there is no head), cls (the paper), mean",
    )
    projector: Literal["nonlinear", "linear", "none"] = Field("nonlinear", description="over the text's vector (Eq. 5); thrown away")
    similarity: Literal["dot", "cosine"] = Field("dot", description="sim of Eq. 8")
    temperature: float | None = Field(
        None, gt=0, description="tau of Eq. 8 (ablations: 1), and of the inverse cloze task; none: 0.1 for costa, 1 for ict (it has none)"
    )
    contrastive_weight: float = Field(0.1, gt=0, description="lambda of Eq. 10")
    mlm_weight: float = Field(1.0, ge=0, description="weight of the MLM loss; 0 leaves it out")
    contrastive_input: Literal["masked", "clean"] = Field(
        "masked", description="the contrastive vectors come from the one masked pass, or from a second, clean one (the paper does not say)"
    )
    contrastive_reduction: Literal["mean", "sum"] = Field(
        "mean", description="over the step's texts (Eq. 8: sum). With both means, lambda weighs the loss of a text against that of a token"
    )
    mlm_reduction: Literal["mean", "sum"] = Field(
        "mean", description="over the step's masked tokens (Eq. 9: sum; then lambda weighs N texts against about 0.15 x N x length tokens)"
    )
    mask_share: float = Field(0.15, gt=0, lt=1, description="share of the tokens to predict: 80 % [MASK], 10 % a random token, 10 % as is")
    optimizer: Literal["adamw", "lamb"] = "adamw"
    lr: float = Field(5e-5, gt=0, description="peak learning rate")
    weight_decay: float = Field(0.01, ge=0, description="not applied to biases and layer norms (the paper does not say)")
    warmup: float = Field(0.1, ge=0, lt=1, description="share of the steps over which lr rises linearly; it then falls linearly to 0")
    clip: float = Field(1.0, gt=0, description="largest norm of the gradient")
    precision: Literal["bf16", "fp32"] = Field("bf16", description="bf16: autocast over fp32 weights where the hardware has it, else fp32")
    batch_tokens: TrainingTokens = None
    seed: int = Field(42, ge=0, description="order, spans, masks, dropout, new weights")

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        for name in ("phrase", "sentence", "paragraph"):
            least, most = getattr(self, name)
            if not 1 <= least <= most:
                raise ValueError(f"{name} ({least}, {most}): expected least and most tokens, 1 <= least <= most")
        if min(self.beta) <= 0:
            raise ValueError(f"beta {self.beta}: both are greater than 0")
        if len(set(self.granularities)) < len(self.granularities):
            raise ValueError("granularities: one stands twice")
        if self.objective == "mlm" and not self.mlm_weight:
            raise ValueError("objective mlm with mlm_weight 0: there would be no loss at all")
        return self

    @property
    def tau(self) -> float:
        """What contrastive scores are divided by."""
        return self.temperature or (1.0 if self.objective == "ict" else 0.1)

    @property
    def contrastive(self) -> bool:
        """Whether there is a contrastive loss beside the MLM loss."""
        return self.objective != "mlm"

    @property
    def masked(self) -> bool:
        """Whether texts are masked at all."""
        return self.mlm_weight > 0
