"""Parameters of chunk."""

from pydantic import Field

from tasks.core.stage.params import Params


class Chunk(Params):
    """How long the texts of a pre-training are, in tokens, special ones included."""

    length: int = Field(512, ge=8, le=65535, description="tokens of a chunk at most")
    least: int = Field(16, ge=3, description="a chunk with fewer tokens (the end of an article, as a rule) is left out")
