"""MS MARCO's own files, plain or gzip, as tasks.core.sources.datasets.msmarco_layout finds them.

collection.tsv              passage id, passage                     msmarco-docs.tsv    document id, URL, title, body
                            (a first line of column names, such as pid and passage, is skipped)
queries.SPLIT.tsv           query id, text
qrels.SPLIT.tsv             query id, 0, document id, grade (tabs or spaces: TREC's form)
qidpidtriples.train*.tsv    query id, positive, negative            (ready-made negatives)
top1000.train*              query id, passage id, query, passage    (ready-made negatives, except known positives)
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tasks.core.errors import UserError
from tasks.core.plurals import counted
from tasks.core.sources.columns import DOCUMENT_ID, TEXT
from tasks.core.sources.datasets import msmarco_layout
from tasks.core.trec.ids import WHITE
from tasks.prepare.readers.lines import SHOWN, Lines, blocks, grade, read_columns, read_lines
from tasks.prepare.source import At, Document, Documents, Negative, Qrel, Query, Source


def read(folder: Path) -> Source:
    """The MS MARCO files in `folder`: passages or documents."""
    layout = msmarco_layout(folder)
    return Source(
        documents=partial(documents, layout.documents),
        queries={split: partial(queries, file) for split, file in layout.queries.items()},
        qrels={split: partial(qrels, file) for split, file in layout.qrels.items()},
        negatives=partial(negatives, layout.official),
        parts=partial(parts, layout.documents),
    )


def parts(file: Path) -> Iterator[Documents]:
    """Cut the documents into parts of whole lines."""
    return (partial(documents, block) for block in blocks(file))


def documents(file: Path | Lines) -> Iterator[Document]:
    """Passages (two columns, no title), or documents if the file is msmarco-docs (four columns; the URL is discarded)."""
    path = file.path if isinstance(file, Lines) else file
    if path.name.startswith("msmarco-docs"):
        for at, (doc, _, title, body) in read_columns(file, ("document id", "URL", "title", "body")):
            if not _is_header(at, doc, body):
                yield Document(at, doc, title, body)
    else:
        for at, (doc, passage) in read_columns(file, ("passage id", "passage")):
            if not _is_header(at, doc, passage):
                yield Document(at, doc, "", passage)


def _is_header(at: At, first: str, last: str) -> bool:
    """Whether this is a file's first line, and its first and last cells are usual column names."""
    return at.line == 1 and first.strip().lower() in DOCUMENT_ID and last.strip().lower() in TEXT


def queries(file: Path) -> Iterator[Query]:
    for at, (query, text) in read_columns(file, ("query id", "query")):
        yield Query(at, query, text, [])


def qrels(file: Path) -> Iterator[Qrel]:
    for at, line in read_lines(file):
        cells = list(filter(None, WHITE.split(line)))
        if len(cells) != 4 and len(tabbed := line.split("\t")) == 4:  # ids with blanks
            cells = tabbed
        if len(cells) != 4:
            raise UserError(
                f"{at}: found {counted(len(cells), 'columns')} ({line[:SHOWN]!r}), expected 4 (query id, 0, document id, grade); "
                "fix that line"
            )
        yield Qrel(at, cells[0], cells[2], grade(at, cells[3]))


def negatives(files: tuple[Path, ...]) -> Iterator[Negative]:
    """The third column of triples and the second of a top-1000 file, in the order of the files and their lines."""
    for file in files:
        if file.name.startswith("qidpidtriples"):
            for at, (query, _, doc) in read_columns(file, ("query id", "positive id", "negative id")):
                yield Negative(at, query, doc)
        else:
            for at, (query, doc, _, _) in read_columns(file, ("query id", "passage id", "query", "passage")):
                yield Negative(at, query, doc)
