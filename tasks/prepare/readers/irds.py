"""Datasets of ir_datasets: `beir/scifact` reads beir/scifact/train, /dev, and /test where they exist; `beir/scifact/test` only that split.

A dataset with its own qrels that is not named after a split (vaswani) is a test set. ir_datasets downloads to its own
cache (IR_DATASETS_HOME); a failed download is a one-line error.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import ir_datasets

from tasks.core.errors import UserError, user_error
from tasks.core.sources.datasets import SPLIT_NAMES
from tasks.core.sources.grades import EXPECTED, MOST
from tasks.prepare.source import At, Document, Qrel, Query, Source

BODIES = ("text", "body", "abstract", "contents")


def read(name: str) -> Source:
    """The dataset `name`. UserError if ir_datasets does not know it, or if it has no documents or no qrels."""
    dataset = _load(name)
    if dataset is None:
        raise UserError(f"irds:{name}: unknown to ir_datasets {ir_datasets.__version__}; its ids are listed at ir-datasets.com")
    judged = _splits(name, dataset)
    if not dataset.has_docs() or not judged:
        missing = "qrels with queries" if dataset.has_docs() else "documents"
        raise UserError(f"irds:{name}: has no {missing}, expected documents, and queries and qrels of its own or of /train, /dev, or /test")
    return Source(
        documents=partial(documents, name, dataset),
        queries={split: partial(queries, f"{name} {split}", part) for split, part in judged.items()},
        qrels={split: partial(qrels, f"{name} {split}", part) for split, part in judged.items()},
    )


def documents(name: str, dataset: Any) -> Iterator[Document]:
    """Documents with their title and the first field of BODIES that they have; without one, the default text, which includes the title."""
    for at, doc in _numbered(name, dataset.docs_iter):
        body = next((getattr(doc, field) for field in BODIES if isinstance(getattr(doc, field, None), str)), None)
        title = getattr(doc, "title", None) if body is not None else None
        yield Document(at, doc.doc_id, title or "", doc.default_text() if body is None else body)


def queries(name: str, dataset: Any) -> Iterator[Query]:
    for at, query in _numbered(name, dataset.queries_iter):
        yield Query(at, query.query_id, query.default_text(), [])


def qrels(name: str, dataset: Any) -> Iterator[Qrel]:
    for at, qrel in _numbered(name, dataset.qrels_iter):
        if qrel.relevance > MOST:
            raise UserError(f"{at}: found grade {qrel.relevance}, expected {EXPECTED}; export the data set with lower grades")
        yield Qrel(at, qrel.query_id, qrel.doc_id, int(qrel.relevance))


def _splits(name: str, dataset: Any) -> dict[str, Any]:
    own_split = SPLIT_NAMES.get(name.rpartition("/")[2])
    if own_split is None:
        names = {"dev/small": "dev"} | SPLIT_NAMES  # as for the official downloads: papers report the small dev set
        children: dict[str, Any] = {}
        for child, split in names.items():
            if split not in children and (split_dataset := _load(f"{name}/{child}")) is not None and _is_judged(split_dataset):
                children[split] = split_dataset
        if children:
            return children
    return {own_split or "test": dataset} if _is_judged(dataset) else {}


def _is_judged(dataset: Any) -> bool:
    return bool(dataset.has_queries() and dataset.has_qrels())


def _load(name: str) -> Any | None:
    try:
        return ir_datasets.load(name)
    except KeyError:
        return None


def _numbered(name: str, start: Any) -> Iterator[tuple[At, Any]]:
    """The items of an ir_datasets iterator, with their places from 1 on. Any failure but the disk's becomes a UserError."""
    items: Iterator[Any] | None = None
    number = 0
    while True:
        try:
            items = iter(start()) if items is None else items
            item = next(items)
        except StopIteration:
            return
        except Exception as error:
            if user_error(error):  # a full disk, say: no download helps
                raise
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:160]
            raise UserError(
                f"irds:{name}: ir_datasets could not read it ({reason}); go online once, or put the files in its cache"
            ) from None
        number += 1
        yield At(f"irds:{name}", number), item
