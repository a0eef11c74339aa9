"""Evaluate one split of one system: the measures of every query."""

from collections.abc import Mapping
from pathlib import Path

from tasks.core.errors import UserError
from tasks.core.metrics.measures import Measure, Qrels, Values, needs_texts, per_query
from tasks.core.statistics.judged import is_click
from tasks.evaluate.answers import first_hits, read_answers
from tasks.evaluate.runs import read_rankings


def evaluate_split(run: Path, qrels: Qrels, measures: Mapping[str, Measure], *, corpus: Path, split: str) -> dict[str, Values]:
    """Measure one of our own runs: by judged query, the value of each measure.

    The run is read once, a block of queries at a time. Coverage reads it once more, with the texts of `corpus`; queries of a click log,
    which have no answers, have no value of it. UserError if a query that is no click has no answers, or if nothing can be measured.
    """
    ranked = {name: measure for name, measure in measures.items() if name not in needs_texts(measures)}
    measured: dict[str, Values] = {}
    for block in read_rankings(run):
        measured |= per_query(ranked, {query: qrels[query] for query in block if query in qrels}, block)
    measured |= per_query(ranked, {query: grades for query, grades in qrels.items() if query not in measured}, {})
    if cutoffs := {name: measures[name].cutoff for name in needs_texts(measures)}:
        answered = {query for query in qrels if split != "dev" or not is_click(query)}
        if not answered and not ranked:
            raise UserError(
                "dev: all judged queries come from clicks, which have no answers, and Coverage alone is measured; "
                "add queries with answers, or another measure to evaluate.measures"
            )
        answers = read_answers(corpus / "queries" / f"{split}.parquet", answered)
        hits = first_hits(run, corpus / "documents.parquet", answers, max(cutoffs.values()))
        for query in answered:
            measured[query] |= {name: float(hits.get(query, cutoff + 1) <= cutoff) for name, cutoff in cutoffs.items()}
    return measured
