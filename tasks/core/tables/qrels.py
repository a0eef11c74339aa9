"""The judgments of a split as measures take them. Apart from the measures, which every command imports with the parameters."""

from pathlib import Path

import pyarrow.compute as pc

from tasks.core.stage.errors import UserError
from tasks.core.tables.measures import Qrels, read_qrels
from tasks.core.tables.parquet import read_table
from tasks.core.tables.schemas import QRELS


def load_qrels(path: Path, split: str, relevance: int) -> Qrels:
    """`read_qrels` of one split's file, empty where there is none.

    UserError where grades are positive and none reaches `relevance`: the split would go, and with dev the choice of models to test.
    """
    if not path.exists():
        return {}
    table = read_table(path, QRELS)
    qrels = read_qrels(table, relevance)
    largest = pc.max(table["grade"]).as_py() or 0
    if largest > 0 and not qrels:
        raise UserError(
            f"params.yaml: evaluate.relevance: found {relevance} for {split}, where the largest grade is {largest}, so that no query of it "
            f"is left; expected {largest} at most; set a grade for each split, as in {{dev: 1, test: 2}}"
        )
    return qrels
