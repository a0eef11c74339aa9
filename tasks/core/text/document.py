"""The text of a document, for every stage that reads one."""

from pydantic import Field

from tasks.core.params.sections import Params


class Text(Params):
    """Which fields make up a document's text. Published figures differ by this alone, so it is printed with every figure."""

    titles: bool = Field(False, description="prepend the title to the text")
    separator: str = Field(" ", description="string between title and text")


def document_text(title: str, text: str, settings: Text) -> str:
    """The text under which a document is indexed, encoded, and shown."""
    return f"{title}{settings.separator}{text}" if settings.titles and title else text
