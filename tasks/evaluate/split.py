"""Evaluate one split of one system: values per query and their means."""

from collections.abc import Mapping
from pathlib import Path

import ir_measures

from tasks.core.metrics.measures import Qrels, Values, means, per_query, value_schema, value_tables
from tasks.core.tables.parquet import write_table
from tasks.evaluate.runs import rankings


def evaluate_split(run: Path, qrels: Qrels, measures: Mapping[str, ir_measures.Measure], values: Path) -> tuple[Values, int]:
    """Means of one of our own runs, and the number of queries behind them; writes `values` (query, one column per measure).

    The run is read once, a block of queries at a time.
    """
    found: dict[str, Values] = {}
    for block in rankings(run):
        found |= per_query(measures, {query: qrels[query] for query in block if query in qrels}, block)
    found |= per_query(measures, {query: grades for query, grades in qrels.items() if query not in found}, {})
    names = list(measures)
    write_table(values, value_schema(names), value_tables(names, found))
    return means(names, found), len(found)
