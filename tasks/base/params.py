"""Parameters of base and encoders: what kind of bi-encoder every round trains."""

from typing import Literal

from pydantic import Field

from tasks.core.params.numbers import Count, Seed
from tasks.core.params.sections import Params


class EncoderSource(Params):
    """Where the first weights come from."""

    source: str = Field(min_length=1, description="a Hugging Face id | a local folder | package:MODULE/FOLDER in an installed package")


class Base(Params):
    """The architecture of the bi-encoder. `source` keeps what its sentence-transformers files say; without them, pooling is mean (last if
    the architecture in config.json ends in ForCausalLM, so not for GPT-2), head none, and similarity dot."""

    pooling: Literal["source", "cls", "mean", "last", "max", "mean_sqrt_len", "weightedmean"] = Field(
        "source",
        description="text vector; cls: the first token's output; mean: the mean over all tokens; last: the last token's output (decoders); "
        "max: the maximum of each dimension; mean_sqrt_len: the sum divided by the square root of the number of tokens; weightedmean: the "
        "mean in which token n has weight n",
    )
    head: Literal["source", "none", "linear_norm"] = Field(
        "source", description="layer on top of the pooled vector; linear_norm: Linear + LayerNorm (ANCE, DRhard)"
    )
    similarity: Literal["source", "dot", "cosine"] = Field(
        "source", description="query-document score; cosine normalizes every vector to length 1"
    )
    width: Count | None = Field(
        None,
        ge=1,
        description="number of leading dimensions of a vector to keep, before cosine normalizes it, for Matryoshka models "
        "(arXiv:2205.13147). Rounds train, encode, and search with these; null: as in the source",
    )
    seed: Seed = Field(42, ge=0, description="seed for the weights of a new head, drawn from N(0, 0.02)")


class Another(Base, EncoderSource):
    """One more encoder that rounds may start from. Its tokenizer must be the one of encoder.source."""
