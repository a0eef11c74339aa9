"""From files to articles: pages are read, filtered, and cleaned by one process per core, in the source's order."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path

from mwparserfromhell.parser import ParserError

from tasks.articles.dump import Piece, Stream, cut, read_pages
from tasks.articles.markup import plain_text
from tasks.articles.pages import STUB, UNREADABLE, Article, Page, long_lines, unwanted
from tasks.articles.params import Articles
from tasks.articles.readers import read_demo, read_jsonl, read_parquet
from tasks.core.sources.wikipedia import ArticleSpec
from tasks.core.stage.processes import in_order

PAGES = 500  # of plain text, cleaned together
READERS: dict[str, Callable[[Path], Iterator[Page]]] = {"demo": read_demo, "parquet": read_parquet, "jsonl": read_jsonl}
KEPT, WITH_MARKUP = "kept", "with markup"
Work = Stream | Piece | list[Page]


@dataclass
class Cleaned:
    """The articles of one piece of work, the number of excluded pages of each kind, and of lines.

    `lines`: "kept", and "with markup": those excluded because they still contained some after parsing. Many of these mean that
    the parser does not understand the source.
    """

    articles: list[Article] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    lines: Counter[str] = field(default_factory=Counter)


def clean(work: Work, params: Articles) -> Cleaned:
    """The articles among the pages of one piece of work."""
    found = Cleaned()
    for page in work if isinstance(work, list) else read_pages(work):
        reason = unwanted(page, params)
        if reason is None:
            try:
                text, removed = plain_text(page.text) if page.markup else (page.text, 0)
            except (ParserError, RecursionError):  # one page in millions must not end a day's work; it is counted instead
                found.dropped[UNREADABLE] += 1
                continue
            text = long_lines(text, params.least_line_words)
            found.lines.update({KEPT: text.count("\n") + bool(text), WITH_MARKUP: removed})
            if len(text.split()) >= params.least_words:
                found.articles.append(Article(page.id, " ".join(page.title.split()), text))
                continue
            reason = STUB
        found.dropped[reason] += 1
    return found


def pieces(spec: ArticleSpec, files: Iterable[Path]) -> Iterator[Work]:
    """A source cut into pieces of work, in order."""
    for path in files:
        if spec.kind == "dump":
            yield from cut(path)
        else:
            pages = READERS[spec.kind](path)
            while part := list(islice(pages, PAGES)):
                yield part


def extract(spec: ArticleSpec, files: Iterable[Path], params: Articles, processes: int) -> Iterator[Cleaned]:
    """The articles of a source, piece by piece in its order, for any number of processes."""
    yield from in_order(partial(clean, params=params), pieces(spec, files), processes)
