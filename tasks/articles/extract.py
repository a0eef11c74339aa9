"""From files to articles: read, filter, and clean pages with one process per core, in the source's order.

Finished pieces of a large source are kept, so a kill loses only the pieces in progress.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path

import pyarrow as pa
from mwparserfromhell.parser import ParserError

from tasks.articles.dump import Piece, Stream, read_pages, split_dump
from tasks.articles.markup import plain_text
from tasks.articles.pages import STUB, UNREADABLE, Article, Page, exclusion_reason, long_lines
from tasks.articles.params import Articles
from tasks.articles.readers import read_demo, read_jsonl, read_parquet
from tasks.core.machine.processes import map_in_order, resumable
from tasks.core.sources.wikipedia import ArticleSpec
from tasks.core.tables.schemas import DOCUMENTS

PAGES = 500  # of plain text, cleaned together
STREAMS = 8  # streams of about a hundred pages that are kept as one piece
READERS: dict[str, Callable[[Path], Iterator[Page]]] = {"demo": read_demo, "parquet": read_parquet, "jsonl": read_jsonl}
KEPT, WITH_MARKUP = "kept", "with markup"
Work = Stream | Piece | list[Page]


@dataclass
class Cleaned:
    """The articles of one piece of work, the number of excluded pages by reason, and of lines by kind.

    `lines`: "kept", and "with markup": lines excluded because they still contained markup after parsing. Many of these mean
    that the parser does not understand the source.
    """

    articles: list[Article] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    lines: Counter[str] = field(default_factory=Counter)


def clean(work: Work, params: Articles) -> Cleaned:
    """The articles among the pages of one piece of work."""
    cleaned = Cleaned()
    for page in work if isinstance(work, list) else read_pages(work):
        reason = exclusion_reason(page, params)
        if reason is None:
            try:
                text, removed = plain_text(page.text) if page.markup else (page.text, 0)
            except (ParserError, RecursionError):  # one page in millions must not end a day's work, so it is counted
                cleaned.dropped[UNREADABLE] += 1
                continue
            text = long_lines(text, params.least_line_words)
            cleaned.lines.update({KEPT: text.count("\n") + bool(text), WITH_MARKUP: removed})
            if len(text.split()) >= params.least_words:
                cleaned.articles.append(Article(page.id, " ".join(page.title.split()), text))
                continue
            reason = STUB
        cleaned.dropped[reason] += 1
    return cleaned


def pieces(spec: ArticleSpec, files: Iterable[Path]) -> Iterator[Work]:
    """A source cut into pieces of work, in order."""
    for path in files:
        if spec.kind == "dump":
            yield from split_dump(path)
        else:
            pages = READERS[spec.kind](path)
            while batch := list(islice(pages, PAGES)):
                yield batch


def extract(spec: ArticleSpec, files: Iterable[Path], params: Articles, processes: int, scratch: Path | None = None) -> Iterator[Cleaned]:
    """The articles of a source, piece by piece, in order, whatever the number of processes. `scratch`, if given, keeps finished pieces."""
    work = pieces(spec, files)
    if scratch is None:
        yield from map_in_order(partial(clean, params=params), work, processes)
        return
    for path in resumable(partial(write_articles, params), grouped(work), scratch, processes):
        yield from read_articles(path)


def grouped(work: Iterable[Work]) -> Iterator[list[Work]]:
    """Group up to STREAMS streams, which are only places in a file. A piece that has its pages in memory ends its group."""
    group: list[Work] = []
    for piece in work:
        group.append(piece)
        if len(group) == STREAMS or not isinstance(piece, Stream):
            yield group
            group = []
    if group:
        yield group


def write_articles(params: Articles, group: list[Work], path: Path) -> None:
    """Write the articles of some pieces to a file, a batch for each, and their counts beside them."""
    results = [clean(piece, params) for piece in group]
    counts = json.dumps([[result.dropped, result.lines] for result in results]).encode()
    schema = DOCUMENTS.with_metadata({"counts": counts})
    with pa.ipc.new_file(path, schema) as out:
        for result in results:
            columns = list(map(list, zip(*result.articles, strict=True))) or [[], [], []]
            out.write_batch(pa.record_batch(columns, schema=schema))


def read_articles(path: Path) -> Iterator[Cleaned]:
    """Read the pieces that `write_articles` wrote."""
    with pa.memory_map(str(path)) as mapped, pa.ipc.open_file(mapped) as file:
        for number, (dropped, lines) in enumerate(json.loads(file.schema.metadata[b"counts"])):
            columns = [column.to_pylist() for column in file.get_batch(number).columns]
            yield Cleaned([Article(*row) for row in zip(*columns, strict=True)], Counter(dropped), Counter(lines))
