"""Evaluate any TREC run against any TREC qrels: python -m tasks.evaluate.external --run R --qrels Q --measures nDCG@10 AP --relevance 2."""

import json
from pathlib import Path

from tasks.core.errors import UserError, one_line_errors
from tasks.core.metrics.measures import Values, means, needs_texts, parse, per_query
from tasks.core.sources.grades import MOST
from tasks.core.stage.entry import parser
from tasks.core.trec.external import read_trec_qrels, read_trec_run, refuse_strangers


def evaluate_files(run: Path, qrels: Path, measures: list[str], relevance: int) -> Values:
    """The mean of each measure over all queries of `qrels`, as with trec_eval -c. UserError if the run has none of them."""
    if not 1 <= relevance <= MOST:
        raise UserError(f"--relevance: found {relevance}, expected 1 to {MOST:,}: grade 0 is not relevant")
    try:
        parsed = parse(measures, relevance)
    except ValueError as error:
        raise UserError(str(error)) from None
    if texts := needs_texts(parsed):
        raise UserError(
            f"--measures: found {texts[0]}, which reads documents, expected measures of a run; add it to evaluate.measures instead"
        )
    judged = read_trec_qrels(qrels)
    if (highest := max((max(grades.values()) for grades in judged.values()), default=0)) < relevance:
        remedy = f"set --relevance to at most {highest}" if highest >= 1 else "judge a relevant document"
        raise UserError(f"{qrels}: found no query with a document of grade {relevance} or higher, expected at least one; {remedy}")
    ranked = read_trec_run(run)
    refuse_strangers(run, ranked, qrels, judged)
    return means(measures, per_query(parsed, judged, ranked))


def main() -> None:
    arguments = parser(__doc__, run="TREC run, plain or .gz", qrels="TREC qrels, plain or .gz")
    arguments.add_argument("--measures", nargs="+", default=["nDCG@10", "RR@10", "R@100", "AP"])
    arguments.add_argument("--relevance", type=int, default=1, help="lowest grade that counts as relevant in binary measures")
    args = arguments.parse_args()
    print(json.dumps(evaluate_files(args.run, args.qrels, args.measures, args.relevance), indent=2))


if __name__ == "__main__":
    with one_line_errors():
        main()
