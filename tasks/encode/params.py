"""Parameters of encode."""

from typing import Literal

from pydantic import Field

from tasks.core.stage.params import InferenceTokens, Params


class Encode(Params):
    """Arithmetic and form of document vectors."""

    precision: Literal["bf16", "fp32"] = Field("bf16", description="bf16: where the hardware has matrix units for it, else fp32")
    dtype: Literal["float32", "float16"] = Field("float32", description="of a stored vector's numbers")
    batch_tokens: InferenceTokens = None
