"""Parameters of base: what kind of bi-encoder every round trains."""

from typing import Literal

from pydantic import Field

from tasks.core.params import Params


class EncoderSource(Params):
    """Where the first weights come from."""

    source: str = Field(min_length=1, description="a Hugging Face id | a folder | package:MODULE/FOLDER inside an installed package")


class Base(Params):
    """The shape of the bi-encoder."""

    pooling: Literal["cls", "mean"] = Field("mean", description="text vector: first token's output, or the mean over all tokens")
    head: Literal["none", "linear_norm"] = Field("none", description="linear_norm: Linear + LayerNorm behind the pooling (ANCE, DRhard)")
    similarity: Literal["dot", "cosine"] = Field("cosine", description="cosine normalises every vector to length 1")
    seed: int = Field(42, ge=0, description="draws a new head's weights, N(0, 0.02)")
