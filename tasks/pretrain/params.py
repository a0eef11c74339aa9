"""Parameters of one pre-training, an entry of `pretrain`.

Unless the description says otherwise, defaults are those of COSTA (arXiv:2204.10641), whose equations are cited."""

from typing import Literal, Self

from pydantic import Field, model_validator

from tasks.core.params.numbers import Count, Epochs, Seed
from tasks.core.params.sections import Params, TrainingPrecision, TrainingTokens, Warmup

Granularity = Literal["word", "phrase", "sentence", "paragraph"]
GRANULARITIES: tuple[Granularity, ...] = ("word", "phrase", "sentence", "paragraph")


class Scratch(Params):
    """Random weights in place of the initial encoder's; its tokenizer, positions, and activation are kept."""

    layers: Count = Field(ge=1, description="Transformer layers")
    width: Count = Field(ge=8, description="hidden width, a multiple of heads; the feed-forward layer is four times as wide")
    heads: Count = Field(ge=1, description="attention heads per layer")

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}")
        return self


class Pretrain(Params):
    """One pre-training on the chunks of articles: total loss = contrastive_weight x contrastive + mlm_weight x MLM (Eq. 10).

    RetroMAE's is mlm_weight x MLM + the decoder's (its Eq. 9).
    """

    init: str = Field(
        description="the encoder to start from, with its MLM head if it has one: base, or an entry of encoders, pretrain, rounds, or adore "
        "(with steps: 0)"
    )
    scratch: Scratch | None = Field(None, description="random weights of this size; null: the weights of init")
    objective: Literal["costa", "ict", "retromae", "mlm"] = Field(
        "costa",
        description="costa: contrastive span prediction + MLM; ict: inverse cloze task + MLM; retromae: MLM + a one-layer decoder that "
        "rebuilds the text from its vector (RetroMAE, arXiv:2205.12035); mlm: MLM only",
    )
    steps: Count | None = Field(None, ge=1, description="optimizer steps; null: derived from `epochs`")
    epochs: Epochs = Field(6.0, gt=0, description="passes over the chunks if steps is null (ablations: 3)")
    batch_texts: Count = Field(64, ge=2, description="texts per step, N of Eq. 8; the others are negatives (the paper does not say)")
    granularities: tuple[Granularity, ...] = Field(GRANULARITIES, min_length=1, description="granularities of spans")
    spans: Count = Field(5, ge=1, description="T: spans per text and granularity (ablations: 3)")
    phrase: tuple[Count, Count] = Field((4, 16), description="minimum and maximum tokens of a phrase")
    sentence: tuple[Count, Count] = Field((16, 64), description="minimum and maximum tokens of a sentence-level span")
    paragraph: tuple[Count, Count] = Field((64, 128), description="minimum and maximum tokens of a paragraph-level span")
    beta: tuple[float, float] = Field((4.0, 2.0), description="alpha and beta of the beta distribution of span lengths (Eq. 1)")
    redraw: bool = Field(True, description="sample spans again in every epoch (this project's choice); false: only once, as in Algorithm 1")
    pooling: Literal["encoder", "cls", "mean"] = Field(
        "encoder",
        description="the text vector, before the head that the encoder may have (base.head). encoder: as the encoder pools, so that "
        "without a head, training and retrieval use the same vector; cls: the first token's (the paper); mean: over tokens",
    )
    projector: Literal["nonlinear", "linear", "none"] = Field(
        "nonlinear",
        description="costa: a layer over the text vector (Eq. 5). It is kept beside the encoder, for rounds with `projector`",
    )
    similarity: Literal["dot", "cosine"] = Field("dot", description="similarity of text and span vectors, sim of Eq. 8")
    temperature: float | None = Field(
        None,
        gt=0,
        description="divides similarities: tau of Eq. 8 (ablations: 1) and of the inverse cloze task; null: 0.1 for costa, 1 for ict "
        "(which has none)",
    )
    contrastive_weight: float = Field(
        0.1, gt=0, description="weight of the contrastive loss: lambda of Eq. 10; used for ict too, for which the paper gives none"
    )
    mlm_weight: float = Field(1.0, ge=0, description="weight of the MLM loss; 0: no MLM")
    contrastive_input: Literal["masked", "clean"] = Field(
        "masked",
        description="where contrastive vectors come from: the masked forward pass, or a second pass over the clean text (the paper "
        "does not say)",
    )
    contrastive_reduction: Literal["mean", "sum"] = Field(
        "mean",
        description="over the step's texts (Eq. 8: sum). With both means, lambda weights the loss per text against the loss per token",
    )
    mlm_reduction: Literal["mean", "sum"] = Field(
        "mean",
        description="over the step's masked tokens (Eq. 9: sum, so that lambda weights N texts against about 0.15 x N x length tokens)",
    )
    mask_share: float = Field(
        0.15,
        gt=0,
        lt=1,
        description="fraction of tokens to predict: 80% become [MASK], 10% a random token, 10% stay (RetroMAE: 0.3)",
    )
    decoder_mask_share: float = Field(
        0.5, gt=0, lt=1, description="retromae: fraction of the tokens that the decoder does not see at a position (RetroMAE: 0.5 to 0.7)"
    )
    optimizer: Literal["adamw", "lamb"] = Field(
        "adamw", description="update rule: AdamW, or LAMB (layer-wise scaled steps, for large batches)"
    )
    lr: float = Field(5e-5, gt=0, description="peak learning rate")
    weight_decay: float = Field(
        0.01, ge=0, description="the optimizer's decay per unit of lr; not applied to biases and layer norms (the paper does not say)"
    )
    warmup: Warmup = 0.1
    clip: float = Field(1.0, gt=0, description="the gradient is scaled down to this L2 norm if it is larger")
    precision: TrainingPrecision = "bf16"
    batch_tokens: TrainingTokens = None
    seed: Seed = Field(42, ge=0, description="seeds order, spans, masks, dropout, and new weights")

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        for name in ("phrase", "sentence", "paragraph"):
            least, most = getattr(self, name)
            if not 1 <= least <= most:
                raise ValueError(f"{name} ({least}, {most}): expected [minimum, maximum] with 1 <= minimum <= maximum")
        if min(self.beta) <= 0:
            raise ValueError(f"beta {self.beta}: expected two numbers greater than 0")
        if len(set(self.granularities)) < len(self.granularities):
            raise ValueError("granularities: one is listed twice; list each once")
        if self.objective == "mlm" and not self.mlm_weight:
            raise ValueError("objective mlm with mlm_weight 0 has no loss; set mlm_weight above 0")
        if self.objective == "retromae" and not self.mlm_weight:
            raise ValueError("objective retromae with mlm_weight 0 masks nothing, so the decoder only copies; set mlm_weight above 0")
        return self

    @property
    def tau(self) -> float:
        """The temperature that divides contrastive scores: `temperature`, or its default for the objective."""
        return self.temperature or (1.0 if self.objective == "ict" else 0.1)

    @property
    def contrastive(self) -> bool:
        """Whether there is a contrastive loss in addition to the MLM loss."""
        return self.objective in ("costa", "ict")

    @property
    def masked(self) -> bool:
        """Whether texts are masked."""
        return self.mlm_weight > 0
