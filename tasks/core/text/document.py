"""What a document's text is, for every stage that reads it."""

from pydantic import Field

from tasks.core.stage.params import Params


class Text(Params):
    """Which fields make a document's text. Published figures differ by this alone, so it is printed beside every number."""

    titles: bool = Field(False, description="whether the title stands before the text")
    separator: str = Field(" ", description="between title and text")


def document_text(title: str, text: str, settings: Text) -> str:
    """The text that a document is indexed, encoded and shown by."""
    return f"{title}{settings.separator}{text}" if settings.titles and title else text
