"""The judgments of a split, in the form that measures take. Separate from measures.py, which every command imports with the parameters."""

from collections.abc import Iterable
from pathlib import Path

import pyarrow.compute as pc

from tasks.core.errors import UserError
from tasks.core.metrics.measures import Qrels, read_qrels
from tasks.core.tables.parquet import read_table
from tasks.core.tables.schemas import QRELS


def load_qrels(path: Path, split: str, relevance: int) -> Qrels:
    """`read_qrels` for one split's file; empty if there is none, or if no grade is positive.

    UserError if there are positive grades but none reaches `relevance`: binary measures would all be 0.
    """
    if not path.exists():
        return {}
    table = read_table(path, QRELS)
    largest = pc.max(table["grade"]).as_py() or 0
    if 0 < largest < relevance:
        raise UserError(
            f"params.yaml: evaluate.relevance: found {relevance} for {split}, whose highest grade is {largest}, so no document would "
            f"be relevant; expected at most {largest}; set a grade for each split, as in {{dev: 1, test: 2}}"
        )
    return read_qrels(table) if largest > 0 else {}


def relevant_documents(qrels: Qrels, queries: Iterable[str], least: int) -> dict[str, list[str]]:
    """The documents of grade >= `least` of each of `queries`, highest grade first, then by id."""
    graded = {query: sorted((-grade, doc) for doc, grade in qrels.get(query, {}).items() if grade >= least) for query in queries}
    return {query: [doc for _, doc in rows] for query, rows in graded.items()}
