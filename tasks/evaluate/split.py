"""One split of one system: its run written, its values per query, its means."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import ir_measures
import pyarrow as pa

from tasks.core.tables import write_table
from tasks.evaluate.measures import Qrels, Values, means, per_query, value_schema, value_tables
from tasks.evaluate.runs import rankings, write_run


def evaluate_split(
    ranked: Iterable[pa.RecordBatch], qrels: Qrels, measures: Mapping[str, ir_measures.Measure], stem: Path, tag: str
) -> tuple[Values, int]:
    """Means and the number of queries they are over; writes STEM.trec and STEM.parquet (query, one column a measure).

    `ranked` (schema RANKED, a query's rows together and by rank) is read once, a batch at a time.
    """
    values: dict[str, Values] = {}
    for block in rankings(write_run(stem.with_suffix(".trec"), ranked, tag)):
        values |= per_query(measures, {query: qrels[query] for query in block if query in qrels}, block)
    values |= per_query(measures, {query: grades for query, grades in qrels.items() if query not in values}, {})
    names = list(measures)
    write_table(stem.with_suffix(".parquet"), value_schema(names), value_tables(names, values))
    return means(names, values), len(values)
