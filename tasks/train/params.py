"""Parameters of one round, an entry of `rounds`."""

from typing import Literal, Self

from pydantic import Field, model_validator

from tasks.core.params.numbers import Count, Epochs, Seed
from tasks.core.params.sections import Params, TrainingPrecision, TrainingTokens, Warmup
from tasks.core.stage.references import Reference


class Lora(Params):
    """Adapters of a round (LoRA, arXiv:2106.09685): only they are trained, and they are merged into the encoder that the round saves."""

    rank: int = Field(8, ge=1, le=1024, description="rank r of an adapter B A (the paper: 1 to 64)")
    alpha: float = Field(16.0, gt=0, description="B A is multiplied by alpha / rank")
    dropout: float = Field(0.0, ge=0, lt=1, description="probability of dropout of an adapter's input")
    targets: tuple[str, ...] | None = Field(
        None,
        min_length=1,
        description="layers with an adapter, by the ends of their names, such as [query, value] (the paper) or [attention.output.dense]; "
        "null: every linear layer of the transformer (QLoRA, arXiv:2305.14314, section 4)",
    )


class Round(Params):
    """One training of the bi-encoder. Descriptions give the papers' values where they differ from the defaults."""

    init: str = Field(description="the encoder to start from: base, or an entry of encoders, pretrain, rounds, or adore")
    negatives: str = Field(
        description="source of hard negatives: none (in-batch only), random (sampled uniformly from the corpus again at each step), "
        "official, bm25, or an entry of mine, mix, or teacher"
    )
    width: Count | None = Field(
        None,
        ge=1,
        description="number of leading dimensions of a vector to keep from this round on, before cosine normalization (Matryoshka, "
        "arXiv:2205.13147); null: as `init`",
    )
    steps: Count | None = Field(
        None, ge=0, description="optimizer steps; null: derived from `epochs`; 0: no training, the encoder is used as is"
    )
    epochs: Epochs = Field(1.0, gt=0, description="passes over the training queries if steps is null")
    train_queries: Count | None = Field(
        None, ge=1, description="number of queries to train on, sampled by split_seed (COSTA, section 5.5: 500 to 5,000); null: all"
    )
    train_share: float = Field(
        1.0, gt=0, le=1, description="share of the training queries to train on, sampled by split_seed, in place of train_queries; 1: all"
    )
    split_seed: Seed = Field(
        0,
        ge=0,
        description="seeds samples (train_queries, train_share, replay); under one seed, a smaller one is a subset of a larger one",
    )
    replay: float = Field(
        1.0,
        ge=0,
        le=1,
        description="share of the queries that `init` was trained on to train on again, beside all new ones; sampled by split_seed, before "
        "train_queries or train_share; 1: all. Below 1, `init` must list the queries that it was trained on (retemper retrain)",
    )
    batch_queries: Count = Field(64, ge=1, description="queries per step (STAR: 256)")
    hard_negatives: Count = Field(1, ge=0, description="hard negatives per query and step (STAR and ANCE: 1; Tevatron: 7)")
    hard_negatives_from: Literal["all", "positives"] = Field(
        "all",
        description="documents that may be hard negatives. positives: only the positives of training queries, so that documents that are "
        "relevant only to held-out queries are not pushed away",
    )
    passage_step: Count = Field(
        1,
        ge=1,
        description="with tokenize.passages > 1: each training step encodes every n-th passage of a document, starting at a random one; 2 "
        "halves the cost where passages overlap by half, and still reads all of the text. Retrieval uses all passages",
    )
    positive_ranks: Count | None = Field(
        None,
        ge=1,
        description="use this many top ranks of `negatives` as positives, in place of the judged ones, which are ranked among them by "
        "score: the round imitates bm25, or a mine without skip and margins, and needs no judgments (SPAR, arXiv:2110.06918: 10 of BM25, "
        "window [46, 50]); null: positives are the judged ones",
    )
    window: tuple[Count, Count] = Field((1, 200), description="first and last rank to sample hard negatives from")
    sampling: Literal["uniform", "top", "simans"] = Field(
        "uniform",
        description="how hard negatives are sampled from the window, at each step, without replacement. top: always its top ranks; "
        "simans: with probability proportional to exp(-a (s- - s+ - b)^2) of the scores (SimANS); requires a mine or a teacher",
    )
    simans_a: float = Field(1.0, ge=0, description="a of simans, per squared score unit (cosine scores are close together: 100 or more)")
    simans_b: float = Field(0.0, description="b of simans: the target difference from the positive's score, in score units")
    projector: Literal["none", "linear", "nonlinear"] = Field(
        "none",
        description="a head over the text vector, used in training and retrieval (COSTA, Table 6; nonlinear: tanh of a linear map). It is "
        "taken from the pre-training `init` if that has one of this kind, else new; none: no head is added",
    )
    loss: Literal["nll", "pairwise", "ranknet", "hinge", "margin_mse", "kl"] | Reference = Field(
        "nll",
        description="nll: softmax over positive and negatives; ranknet: pairwise (STAR, Eq. 14); pairwise: ANCE's two-way softmax, the "
        "same formula; hinge: see margin; margin_mse, kl: distillation from the scores of `negatives` (usually a teacher); "
        "tasks.train.mine:my_loss: a function of your own (docs/CONTRIBUTING.md)",
    )
    distill: bool = Field(
        False, description="a loss of your own: compare each query's own documents with the scores of `negatives`, as kl does"
    )
    margin: float = Field(1.0, gt=0, description="hinge: target difference of scores, after division by temperature")
    teacher_temperature: float = Field(1.0, gt=0, description="distillation: divides the teacher's scores")
    nll_weight: float = Field(
        0.0, ge=0, description="distillation: weight of an additional nll over the positive and all negatives (SimLM: 0.2)"
    )
    in_batch: bool = Field(True, description="also use the other queries' documents as negatives, with known positives masked")
    guide: Literal["none", "init"] = Field(
        "none",
        description="init: the encoder that the round starts from, frozen, removes likely positives from each batch's negatives: those "
        "that it scores above the query's positive - guide_margin (GISTEmbed, arXiv:2402.16829, with the model itself as its guide)",
    )
    guide_margin: float = Field(0.0, description="with guide: in score units (cosine or dot product, before temperature)")
    hardest: bool = Field(
        False, description="use only each query's highest-scoring negative in the loss (NCE, as the ANCE paper's baseline)"
    )
    alpha: float | None = Field(
        None,
        ge=0,
        description="ranknet: weight of in-batch relative to hard negatives (STAR, Eq. 13); null: every pair weighs the same, as in "
        "STAR's code",
    )
    temperature: float = Field(0.05, gt=0, description="divides scores (dot product: 1; cosine: 0.01 to 0.1)")
    optimizer: Literal["adamw", "lamb"] = Field(
        "adamw", description="update rule: AdamW, or LAMB (layer-wise scaled steps, for large batches; STAR and ANCE)"
    )
    lr: float = Field(5e-5, gt=0, description="peak learning rate (STAR: 1e-4 with lamb; Tevatron: 5e-6 to 1e-5 with adamw)")
    weight_decay: float = Field(0.01, ge=0, description="the optimizer's decay per unit of lr; not applied to biases and layer norms")
    warmup: Warmup = 0.1
    optimizer_from: Literal["fresh", "moments", "continue"] = Field(
        "fresh",
        description="fresh: a new optimizer; moments: the optimizer state of the round `init`, under a schedule of its own; continue: its "
        "state and its schedule, as in one long training (ANCE as released: only the negatives change at a refresh)",
    )
    schedule_steps: Count | None = Field(
        None,
        ge=1,
        description="steps of the lr schedule, including those of earlier rounds in a continued chain; null: this round's",
    )
    start_share: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="the saved weights are start_share times those of `init` plus (1 - start_share) times the trained ones: this "
        "keeps some of what training would forget (LM-Cocktail, arXiv:2311.13534); choose it on dev, with retemper sweep",
    )
    lora: Lora | None = Field(
        None,
        description="train low-rank adapters of the transformer's linear layers, and nothing else but a `projector`; {}: with the defaults "
        "below. Requires `pip install 'retemper[lora]'`, and a larger lr, 1e-4 to 1e-3. null: train all weights",
    )
    clip: float = Field(1.0, gt=0, description="the gradient is scaled down to this L2 norm if it is larger")
    validate_every: Count | None = Field(
        None,
        ge=1,
        description="steps between validations; the first is before any step. Held-out training queries rank a sample of the corpus, and "
        "the report has a curve of their nDCG@10. null: no validation, and no query is held out. dev and test are not read",
    )
    validation_queries: Count = Field(
        200,
        ge=1,
        description="training queries to hold out, by split_seed, in addition to those of train_queries or train_share. Documents are "
        "drawn, and every query that one of them is relevant to is held out or excluded; other relevant documents of a held-out query may "
        "be trained on",
    )
    validation_documents: Count = Field(
        1000,
        ge=1,
        description="documents that held-out queries rank: their positives, then as many of their hard negatives, best ranks first, "
        "as random documents. Each validation encodes them",
    )
    keep: Literal["best", "last"] = Field(
        "best",
        description="with validate_every: save the weights of the best validation (the first of equals; it may be the start), or the last",
    )
    patience: Count | None = Field(
        None, ge=1, description="with validate_every: training ends after this many validations without a new best; null: never early"
    )
    precision: TrainingPrecision = "bf16"
    batch_tokens: TrainingTokens = None
    seed: Seed = Field(
        42,
        ge=0,
        description="seeds query order, sampling, and dropout. Give rounds of a chain that are shorter than an epoch different seeds, or "
        "all train on the same queries (`retemper rounds` does so)",
    )

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        self._refuse_contradictions()
        if self.steps != 0:
            self._refuse_no_negatives()
            self._refuse_no_scores()
            self._refuse_no_state()
        return self

    def _refuse_contradictions(self) -> None:
        """Refuse settings that contradict each other whether or not the round trains."""
        if not 1 <= self.window[0] <= self.window[1]:
            raise ValueError(f"window {self.window}: expected [first, last] with 1 <= first <= last")
        if self.alpha is not None and not (self.loss == "ranknet" and self.in_batch):
            raise ValueError("alpha weights ranknet's in-batch pairs; it requires loss: ranknet and in_batch: true")
        if self.train_queries is not None and self.train_share < 1:
            raise ValueError("train_queries and train_share both say how many queries to train on; set one of them")

    def _refuse_no_negatives(self) -> None:
        """Refuse settings that leave a query without negatives, or with too few."""
        if self.positive_ranks is not None and self.hard and self.window[0] <= self.positive_ranks:
            raise ValueError(
                f"window {list(self.window)}: starts within positive_ranks ({self.positive_ranks}); expected a later first rank"
            )
        if self.hard == 0 and not self.in_batch:
            raise ValueError("neither hard_negatives nor in_batch, so there are no negatives; set one of them")
        if self.hard == 0 and 1 in (self.batch_queries, self.train_queries):
            raise ValueError(
                "one query per step and no hard_negatives, so there are no negatives; increase batch_queries or hard_negatives"
            )
        if self.hard == 0 and self.alpha == 0:
            raise ValueError("alpha 0 without hard_negatives gives every pair weight 0; increase either")
        if self.hard > self.window[1] - self.window[0] + 1 and self.negatives != "random":
            raise ValueError(
                f"hard_negatives {self.hard_negatives}: window {list(self.window)} has only {self.window[1] - self.window[0] + 1} ranks"
            )

    def _refuse_no_scores(self) -> None:
        """Refuse losses and samplings that need hard negatives, scores, or a guide that the round does not have."""
        if self.guide_margin and self.guide == "none":
            raise ValueError("guide_margin needs a guide; set guide: init, or guide_margin: 0")
        if self.distill and ":" not in self.loss:
            raise ValueError(
                f"distill is for a loss of your own, found loss {self.loss}; set distill: false (margin_mse and kl distill anyway)"
            )
        if self.distilled and self.hard == 0:
            raise ValueError(
                f"loss {self.loss} compares each query's hard negatives; it requires hard_negatives and a source of negatives with scores"
            )
        if self.negatives in ("none", "random") and (self.distilled or self.sampling == "simans"):
            wish = f"loss {self.loss}" if self.distilled else "sampling simans"
            raise ValueError(f"negatives {self.negatives} have no scores, which {wish} requires; name a mine or a teacher")
        if self.hardest and self.distilled:
            raise ValueError(f"hardest uses one negative, but loss {self.loss} uses the whole group; choose one of them")

    def _refuse_no_state(self) -> None:
        """Refuse to continue an optimizer, schedule, or average that has nothing to continue from."""
        if self.optimizer_from != "fresh" and self.projector != "none":
            raise ValueError(f"projector {self.projector} adds weights that the continued optimizer has no state for; set projector: none")
        if self.start_share and self.projector != "none":
            raise ValueError(
                f"projector {self.projector} adds weights that `init` lacks, so start_share has nothing to average; set one of them"
            )
        if self.optimizer_from != "fresh" and self.lora:
            raise ValueError(
                f"optimizer_from: {self.optimizer_from} has no state for lora's adapters, which are new in every round; set "
                "optimizer_from: fresh"
            )
        if self.patience is not None and self.validate_every is None:
            raise ValueError("patience counts validations; set validate_every, or patience: null")
        if self.optimizer_from == "continue" and self.schedule_steps is None:
            raise ValueError("optimizer_from: continue requires schedule_steps, the steps of the whole chain")
        if self.schedule_steps is not None and self.steps is not None and self.steps > self.schedule_steps:
            raise ValueError(f"steps {self.steps} exceeds schedule_steps {self.schedule_steps}")

    @property
    def hard(self) -> int:
        """Hard negatives per query and step: 0 under `negatives: none`, whatever hard_negatives says."""
        return 0 if self.negatives == "none" else self.hard_negatives

    @property
    def adapters(self) -> Lora | None:
        """`lora`, or None if the round does not train."""
        return None if self.steps == 0 else self.lora

    @property
    def distilled(self) -> bool:
        """Whether the loss reads the scores of the table of negatives."""
        return self.distill or self.loss in ("margin_mse", "kl")
