"""One split of one system: its values per query and their means."""

from collections.abc import Mapping
from pathlib import Path

import ir_measures
import pyarrow.compute as pc

from tasks.core.stage.errors import UserError
from tasks.core.tables.parquet import read_table, write_table
from tasks.core.tables.schemas import QRELS
from tasks.evaluate.measures import Qrels, Values, means, per_query, read_qrels, value_schema, value_tables
from tasks.evaluate.runs import rankings


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


def evaluate_split(run: Path, qrels: Qrels, measures: Mapping[str, ir_measures.Measure], values: Path) -> tuple[Values, int]:
    """Means of a run of this project and the number of queries they are over; writes `values` (query, one column a measure).

    The run is read once, a block of queries at a time.
    """
    found: dict[str, Values] = {}
    for block in rankings(run):
        found |= per_query(measures, {query: qrels[query] for query in block if query in qrels}, block)
    found |= per_query(measures, {query: grades for query, grades in qrels.items() if query not in found}, {})
    names = list(measures)
    write_table(values, value_schema(names), value_tables(names, found))
    return means(names, found), len(found)
