"""Parameters of articles."""

from pydantic import Field

from tasks.core.params.numbers import Count
from tasks.core.params.sections import Params


class Articles(Params):
    """Which Wikipedia (or other) articles pre-training reads, and which pages are excluded."""

    source: str = Field("demo", min_length=1, description="demo | dump:PATH (MediaWiki XML, .bz2) | parquet:PATH | jsonl:PATH")
    redirects: bool = Field(
        False,
        description="keep redirects (their text is 3 words, so lower least_line_words and least_words too)",
    )
    disambiguations: bool = Field(False, description="keep disambiguation pages")
    lists: bool = Field(False, description="keep lists, indexes, outlines, and timelines")
    least_words: Count = Field(20, ge=1, description="minimum words per article; shorter ones are excluded as stubs")
    least_line_words: Count = Field(5, ge=1, description="minimum words per line; shorter ones (headings, list fragments) are excluded")
