"""Parameters of articles."""

from pydantic import Field

from tasks.core.stage.params import Params


class Articles(Params):
    """Where the texts of pre-trainings come from, and which pages are left out."""

    source: str = Field("demo", min_length=1, description="demo | dump:PATH | parquet:PATH | jsonl:PATH")
    redirects: bool = Field(
        False,
        description="whether redirects are kept (a line of 3 words: lower least_line_words and least_words too, or they leave it out)",
    )
    disambiguations: bool = Field(False, description="whether pages that list the meanings of a title are kept")
    lists: bool = Field(False, description="whether lists, indexes, outlines and timelines are kept")
    least_words: int = Field(20, ge=1, description="articles with fewer words are stubs and left out")
    least_line_words: int = Field(5, ge=1, description="lines with fewer words (headings, scraps of lists) are left out")
