"""Compute the measures of a system's runs on dev and test: means, and the values of every query.

Dev queries of a click log are measured apart, as split CLICKS of tasks.core.statistics.judged.
"""

from tasks.core.errors import UserError
from tasks.core.files import new_folder, write_json
from tasks.core.metrics.measures import means, parse, value_schema, value_tables
from tasks.core.metrics.qrels import load_qrels
from tasks.core.params.sections import load
from tasks.core.plurals import counted
from tasks.core.stage.entry import parser, stage
from tasks.core.statistics.judged import parts
from tasks.core.tables.parquet import write_table
from tasks.evaluate.params import Evaluate
from tasks.evaluate.split import evaluate_split


def main() -> None:
    arguments = parser(
        __doc__ or "",
        runs="folder of the system's runs, SPLIT.trec",
        corpus="corpus folder; only Coverage reads the texts of its documents and queries",
        values="folder to write: measures of every query, SPLIT.parquet",
        metrics="JSON file to write: {split: {measure: mean}}",
    )
    arguments.add_argument("--name", required=True, help="the system's name")
    args, params = arguments.parse_args(), load(Evaluate, "evaluate")
    metrics = {}
    with new_folder(args.values) as folder:
        judged = {split: load_qrels(args.corpus / "qrels" / f"{split}.parquet", split, least) for split, least in params.relevance.items()}
        for split, qrels in judged.items():
            if not qrels:
                print(f"{args.name}: {split} has no judged queries, skipped")
                continue
            measures = parse(params.measures, params.relevance[split])
            measured = evaluate_split(args.runs / f"{split}.trec", qrels, measures, corpus=args.corpus, split=split)
            for part, queries in parts(split, qrels).items():
                values = {query: measured[query] for query in queries}
                names = [name for name in measures if name in values[queries[0]]]
                write_table(folder / f"{part}.parquet", value_schema(names), value_tables(names, values))
                metrics[part] = means(names, values)
                if empty := sum(max(qrels[query].values()) < params.relevance[split] for query in queries):
                    print(f"{args.name}: {part}, {counted(empty, 'queries')} without a relevant document, counted as 0 in binary measures")
                print(
                    f"{args.name}: {part}, {counted(len(queries), 'queries')}: "
                    + ", ".join(f"{name} {value:.4f}" for name, value in metrics[part].items())
                )
        if not metrics:
            raise UserError(
                f"{args.corpus / 'qrels'}: found no relevant document in dev.parquet or test.parquet, "
                "expected at least one to evaluate on; add qrels"
            )
    write_json(args.metrics, metrics)


if __name__ == "__main__":
    with stage():
        main()
