"""Read runs for the measures, a block of queries at a time."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from tasks.core.errors import UserError
from tasks.core.trec.runs import read_run

QUERY_BLOCK = 512  # queries measured at once


def read_rankings(path: Path) -> Iterator[dict[str, list[str]]]:
    """Document ids, best first, for QUERY_BLOCK queries of a run at a time; see `read_run`.

    UserError if the lines of a query are not together, or a query has a document twice.
    """
    lists = _checked(path)
    while block := dict(islice(lists, QUERY_BLOCK)):
        yield block


def _checked(path: Path) -> Iterator[tuple[str, list[str]]]:
    seen: set[str] = set()
    for query, docs in read_run(path):
        if query in seen:
            raise UserError(f"{path}: found lines of query {query} in two places, expected them together; re-run the stage that writes it")
        seen.add(query)
        if len(set(docs)) < len(docs):
            duplicate = next(doc for place, doc in enumerate(docs) if doc in docs[:place])
            raise UserError(
                f"{path}: found document {duplicate} twice for query {query}, expected it once; re-run the stage that writes it"
            )
        yield query, docs
