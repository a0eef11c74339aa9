"""Parameters of base: what kind of bi-encoder every round trains."""

from typing import Literal

from pydantic import Field

from tasks.core.stage.params import Params


class EncoderSource(Params):
    """Where the first weights come from."""

    source: str = Field(min_length=1, description="a Hugging Face id | a folder | package:MODULE/FOLDER inside an installed package")


class Base(Params):
    """The shape of the bi-encoder. `source` keeps what the source's sentence-transformers files say (mean, none, dot without any)."""

    pooling: Literal["source", "cls", "mean"] = Field(
        "source", description="text vector: first token's output, or the mean over all tokens"
    )
    head: Literal["source", "none", "linear_norm"] = Field("source", description="linear_norm: Linear + LayerNorm (ANCE, DRhard)")
    similarity: Literal["source", "dot", "cosine"] = Field("source", description="cosine normalises every vector to length 1")
    seed: int = Field(42, ge=0, description="draws a new head's weights, N(0, 0.02)")
