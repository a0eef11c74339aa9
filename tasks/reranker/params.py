"""Parameters of reranker."""

from pydantic import Field

from tasks.core.params import Params


class Reranker(Params):
    """A cross-encoder, and how it is fine-tuned, if at all."""

    source: str = Field(min_length=1, description="a Hugging Face id | a folder | package:MODULE/FOLDER; a classifier of one label")
    negatives: str = Field("none", description="what it is trained on, where steps is not 0: official, bm25, a mine or a mix")
    steps: int = Field(0, ge=0, description="optimizer steps; 0: as it came")
