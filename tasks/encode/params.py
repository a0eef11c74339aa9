"""Parameters of encode."""

from typing import Literal

from pydantic import Field

from tasks.core.params.sections import InferenceTokens, Params


class Encode(Params):
    """Precision and storage of document vectors."""

    precision: Literal["bf16", "fp32", "int8"] = Field(
        "bf16",
        description="precision of encoding; bf16 if the hardware has matrix units for it, else fp32. int8: linear layers of BERT, RoBERTa, "
        "and XLM-R (pooling cls or mean) in 8-bit integers on a CPU with AVX2, elsewhere as bf16; with VNNI or AMX fastest with "
        "`pip install 'retemper[openvino]'`",
    )
    dtype: Literal["float32", "float16"] = Field("float32", description="number type of stored vectors")
    batch_tokens: InferenceTokens = Field(
        None,
        description="maximum tokens per batch, padding included; null: 2,048 on a CPU (bf16: 8,192), 65,536 on a GPU. On a CPU, encoders "
        "built like BERT use at most 2,048, and each thread encodes its own batch",
    )
