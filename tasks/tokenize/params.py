"""Parameters of tokenize."""

from pydantic import Field

from tasks.core.stage.params import Params


class Tokenize(Params):
    """Maximum lengths of texts, and their prefixes."""

    query_length: int = Field(32, ge=3, description="maximum tokens per query, special tokens included")
    document_length: int = Field(
        96, ge=3, description="maximum tokens per document (per passage, if passages > 1), special tokens included"
    )
    passages: int = Field(
        1,
        ge=1,
        le=64,
        description="maximum passages per document. 1: its first document_length tokens (FirstP); more: it is scored by its best "
        "passage (MaxP)",
    )
    query_prefix: str = Field("", description="prepended to every query (for example `query: ` for E5)")
    document_prefix: str = Field("", description="prepended to every document")
