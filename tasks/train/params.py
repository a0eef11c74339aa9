"""Parameters of one round, an entry of `rounds`."""

from typing import Literal, Self

from pydantic import Field, model_validator

from tasks.core.stage.params import Params, TrainingTokens


class Round(Params):
    """One training of the bi-encoder. Defaults are this product's; the papers' values stand in the descriptions."""

    init: str = Field(description="the encoder to start from: base, a pretrain, an earlier round or an adore")
    negatives: str = Field(
        description="where hard negatives come from: none (in-batch ones only), random (uniform from the corpus, drawn anew at each step), "
        "official, bm25, a mine, a mix or a teacher"
    )
    steps: int | None = Field(None, ge=0, description="optimizer steps; none: as many as `epochs` makes; 0: the encoder as it came")
    epochs: float = Field(1.0, gt=0, description="passes over the training queries, where steps is not given")
    train_queries: int | None = Field(
        None, ge=1, description="train on so many of the queries, drawn by split_seed (COSTA, section 5.5: 500 to 5,000); none: on all"
    )
    split_seed: int = Field(0, ge=0, description="which queries train_queries draws; with one seed, fewer are always among more")
    batch_queries: int = Field(64, ge=1, description="queries a step (STAR: 256, ADORE: 32)")
    hard_negatives: int = Field(1, ge=0, description="hard negatives a query and step (STAR and ANCE: 1, Tevatron: 7)")
    window: tuple[int, int] = Field((1, 200), description="first and last rank that a hard negative is drawn from")
    sampling: Literal["uniform", "top", "simans"] = Field(
        "uniform",
        description="of the window, anew at each step without repetition. top: its best ranks, always the same; "
        "simans: by exp(-a (s- - s+ - b)^2) of the mined scores (SimANS); needs a mine or a teacher as negatives",
    )
    simans_a: float = Field(1.0, ge=0, description="a of simans, per squared unit of score (cosines lie close together: 100 or more)")
    simans_b: float = Field(0.0, description="b of simans: the wanted distance from the positive's score, in units of score")
    projector: Literal["none", "linear", "nonlinear"] = Field(
        "none",
        description="a head over the text's vector, trained and retrieved with (COSTA, Table 6; nonlinear: tanh of a linear map): that of "
        "the pre-training `init` where it had this kind, else a new one; none: as `init` has it",
    )
    loss: Literal["nll", "pairwise", "ranknet", "hinge", "margin_mse", "kl"] = Field(
        "nll",
        description="nll: softmax over positive and negatives; ranknet: pairwise (STAR, Eq. 14); pairwise: ANCE's softmax over two, "
        "the same formula; hinge; margin_mse, kl: to the scores of `negatives`, a teacher as a rule, over the query's own group",
    )
    margin: float = Field(1.0, gt=0, description="hinge: wanted distance of scores, after division by temperature")
    teacher_temperature: float = Field(1.0, gt=0, description="the teacher's scores are divided by it (kl, margin_mse)")
    nll_weight: float = Field(
        0.0, ge=0, description="kl, margin_mse: weight of an added nll over the positive and all negatives (SimLM: 0.2)"
    )
    in_batch: bool = Field(True, description="whether the other queries' documents are negatives too, known positives masked")
    hardest: bool = Field(False, description="only the highest-scored negative of a query enters the loss (NCE)")
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
    optimizer_from: Literal["anew", "continue"] = Field(
        "anew", description="continue: with the optimizer's state and the schedule of the round `init`, as one long training would"
    )
    schedule_steps: int | None = Field(
        None,
        ge=1,
        description="steps over which lr rises and falls, those of earlier rounds of a continued chain included; none: this round's",
    )
    clip: float = Field(1.0, gt=0, description="largest norm of the gradient")
    precision: Literal["bf16", "fp32"] = Field("bf16", description="bf16: autocast over fp32 weights where the hardware has it, else fp32")
    batch_tokens: TrainingTokens = None
    seed: int = Field(
        42,
        ge=0,
        description="order, sampling and dropout; rounds of a chain that are shorter than an epoch and begin anew want seeds of their "
        "own, or all train on the same queries (retemper rounds gives them)",
    )

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        if not 1 <= self.window[0] <= self.window[1]:
            raise ValueError(f"window {self.window}: the first rank is at least 1 and at most the last")
        if self.alpha is not None and not (self.loss == "ranknet" and self.in_batch):
            raise ValueError("alpha weighs ranknet's in-batch pairs: it needs loss: ranknet and in_batch: true")
        if self.steps == 0:
            return self
        if self.hard == 0 and not self.in_batch:
            raise ValueError("neither hard_negatives nor in_batch: there would be no negative at all")
        if self.hard == 0 and 1 in (self.batch_queries, self.train_queries):
            raise ValueError("one query a step and no hard_negatives: nobody else's documents are there to be negatives")
        if self.hard == 0 and self.alpha == 0:
            raise ValueError("alpha 0 weighs in-batch pairs with 0, and there are no hard_negatives: every pair would weigh 0")
        if self.hard > self.window[1] - self.window[0] + 1 and self.negatives != "random":
            raise ValueError(
                f"hard_negatives {self.hard_negatives}: window {list(self.window)} holds {self.window[1] - self.window[0] + 1}"
            )
        if self.distilled and self.hard == 0:
            raise ValueError(
                f"loss {self.loss} compares a query's own hard negatives: it needs hard_negatives and negatives that have scores"
            )
        if self.negatives in ("none", "random") and (self.distilled or self.sampling == "simans"):
            wish = f"loss {self.loss}" if self.distilled else "sampling simans"
            raise ValueError(f"negatives {self.negatives} have no scores, and {wish} needs them; take a mine or a teacher")
        if self.hardest and self.distilled:
            raise ValueError(f"hardest takes one negative of all, and loss {self.loss} the whole group: choose one of them")
        if self.optimizer_from == "continue" and self.projector != "none":
            raise ValueError(f"projector {self.projector} adds weights that the carried optimizer knows nothing of; set projector: none")
        if self.optimizer_from == "continue" and self.schedule_steps is None:
            raise ValueError("optimizer_from: continue needs schedule_steps, the steps of the whole chain")
        if self.schedule_steps is not None and self.steps is not None and self.steps > self.schedule_steps:
            raise ValueError(f"steps {self.steps}: schedule_steps {self.schedule_steps} ends before")
        return self

    @property
    def hard(self) -> int:
        """Hard negatives a query and step; `negatives: none` brings none, whatever hard_negatives says."""
        return 0 if self.negatives == "none" else self.hard_negatives

    @property
    def distilled(self) -> bool:
        """Whether the loss reads the scores of the negatives' table."""
        return self.loss in ("margin_mse", "kl")
