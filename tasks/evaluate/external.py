"""Evaluate any TREC run against any TREC qrels: python -m tasks.evaluate.external --run R --qrels Q --measures nDCG@10 AP --relevance 2."""

import json
from pathlib import Path

from tasks.core.metrics.external_trec import read_trec_qrels, read_trec_run
from tasks.core.metrics.measures import Values, means, parse, per_query
from tasks.core.stage.entry import parser
from tasks.core.stage.errors import UserError, one_line_errors


def evaluate_files(run: Path, qrels: Path, measures: list[str], relevance: int) -> Values:
    """The mean of each measure over the queries of `qrels` with a document of grade >= `relevance`; a query missing from `run` counts 0."""
    try:
        parsed = parse(measures, relevance)
    except ValueError as error:
        raise UserError(str(error)) from None
    judged = {query: grades for query, grades in read_trec_qrels(qrels).items() if max(grades.values()) >= relevance}
    if not judged:
        raise UserError(f"{qrels}: found no query with a document of grade {relevance} or higher, expected at least one; lower --relevance")
    return means(measures, per_query(parsed, judged, read_trec_run(run)))


def main() -> None:
    arguments = parser(__doc__, run="TREC run, plain or .gz", qrels="TREC qrels, plain or .gz")
    arguments.add_argument("--measures", nargs="+", default=["nDCG@10", "RR@10", "R@100", "AP"])
    arguments.add_argument("--relevance", type=int, default=1, help="lowest grade that counts as relevant in binary measures")
    given = arguments.parse_args()
    print(json.dumps(evaluate_files(given.run, given.qrels, given.measures, given.relevance), indent=2))


if __name__ == "__main__":
    with one_line_errors():
        main()
