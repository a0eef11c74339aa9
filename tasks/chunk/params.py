"""Parameters of chunk."""

from pydantic import Field

from tasks.core.stage.params import Params


class Chunk(Params):
    """Length of the texts for pre-training."""

    length: int = Field(512, ge=8, le=65535, description="maximum tokens per chunk, special tokens included (COSTA: 512)")
    least: int = Field(16, ge=3, description="minimum tokens per chunk; shorter ones (usually the end of an article) are excluded")
