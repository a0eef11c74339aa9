"""Parameters of tokenize."""

from pydantic import Field

from tasks.core.stage.params import Params


class Tokenize(Params):
    """How long texts may be, in tokens, and what stands before them."""

    query_length: int = Field(32, ge=3, description="tokens of a query at most, special ones included")
    document_length: int = Field(96, ge=3, description="tokens of a document at most, special ones included")
    passages: int = Field(
        1,
        ge=1,
        le=64,
        description="1: the first document_length tokens (FirstP); more: as many passages of that length, the best counts (MaxP)",
    )
    query_prefix: str = Field("", description="put before every query (`query: ` for E5, say)")
    document_prefix: str = Field("", description="put before every document")
