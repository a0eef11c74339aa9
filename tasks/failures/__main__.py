"""Compare the best system with a baseline by groups of queries; show the worst queries, and unjudged documents that may be relevant."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tasks.core.files import new_folder, read_json, write_json
from tasks.core.metrics.lexical import DERIVED
from tasks.core.metrics.qrels import load_qrels, relevant_documents
from tasks.core.metrics.selection import least_grade, metric_of
from tasks.core.params.sections import load, read_parameters
from tasks.core.plurals import counted
from tasks.core.stage.entry import parser, stage
from tasks.core.statistics.clusters import read_groups
from tasks.core.statistics.groups import read_columns
from tasks.core.statistics.judged import judged_queries
from tasks.core.statistics.tested import tests_of
from tasks.core.tables.documents import texts_of
from tasks.core.tables.schemas import MEASURED
from tasks.core.text.document import Text
from tasks.core.text.mapped import query_texts
from tasks.core.trec.runs import first_results
from tasks.failures.groups import Group, compare
from tasks.failures.params import Failures
from tasks.failures.queries import Words, dimensions
from tasks.failures.suspects import suspects, write_suspects
from tasks.failures.systems import Values, load_values, opponents, read_means
from tasks.failures.worst import RELEVANT, FirstResults, describe, losers


def worst_entries(
    values: Values, texts: Mapping[str, str], relevant: Mapping[str, Sequence[str]], found: FirstResults, documents: Path, words: Words
) -> list[dict[str, Any]]:
    """The entries of worst.json for the queries of `relevant`, in its order."""
    shown = {doc for docs in relevant.values() for doc in docs[:RELEVANT]}
    shown |= {first for lists in found.values() for first, _ in lists.values() if first}
    shown_documents, settings = texts_of(documents, shown), load(Text, "text")
    places = {query: place for place, query in enumerate(values.queries)}
    entries = []
    for query, docs in relevant.items():
        entry = describe(
            texts[query], docs, {name: lists.get(query, (None, None)) for name, lists in found.items()}, shown_documents, settings, words
        )
        against = None if values.against is None else float(values.against[places[query]])
        entries.append({"query": query, "model": float(values.model[places[query]]), "against": against, **entry})
    return entries


def group_lines(groups: Sequence[Group], model: str, against: str | None, metric: str, split: str, alpha: float) -> Iterator[str]:
    """The groups, as lines for the terminal."""
    yield f"{metric} on {split} by groups of queries, {100 * (1 - alpha):.10g}% intervals of the {'difference' if against else 'mean'}"
    other = f"{against[:10]:>10} {'difference':>10}" if against else ""
    yield f"{'queries by':<18} {'':<16} {'number':>7} {model[:10]:>10} {other}"
    for group in groups:
        figures = f"{group.model:10.4f}" + ("" if group.against is None else f" {group.against:10.4f} {group.difference:+10.4f}")
        interval = "" if group.low is None or group.high is None else f" [{group.low:+.4f}, {group.high:+.4f}]"
        verdict = f" {model} loses" if group.p_holm is not None and group.p_holm <= alpha and group.difference < 0 else ""
        yield f"{group.dimension:<18} {group.name:<16} {group.queries:>7,} {figures}{interval}{verdict}"


def main() -> None:
    args = parser(
        __doc__ or "",
        metrics="folder of the systems' metrics",
        values="folder of their measures for every query",
        runs="folder of their runs",
        corpus="corpus folder",
        index="folder of the BM25 index",
        out="folder to write: groups.json, worst.json, suspects/SPLIT.csv",
    ).parse_args()
    params, sections = load(Failures, "failures"), read_parameters()
    metric, tests = metric_of(sections), tests_of(sections, "params.yaml")
    means = read_means(args.metrics, metric)
    statistics = args.corpus / "stats.json"
    pseudo = (read_json(statistics).get("pseudo") if statistics.exists() else None) or {}
    model, against = opponents(means, metric, params, sections, made=pseudo.get("dev") == "pseudo")
    names = [name for name in (model, against) if name]
    words, documents = Words(args.index), args.corpus / "documents.parquet"
    derived = {name for section in DERIVED for name in sections.get(section) or {}}
    header = {"metric": metric, "model": model, "against": against, "alpha": params.alpha}
    groups: dict[str, list[dict[str, Any]]] = {}
    worst: dict[str, Any] = {}
    with new_folder(args.out) as out:
        for split in MEASURED:
            values = load_values(args.values, split, metric, means, names)
            if values is None:
                continue
            least = least_grade(split, sections)
            qrels, texts = load_qrels(args.corpus / "qrels" / f"{split}.parquet", split, least), dict(query_texts(args.corpus, split))
            groupings = dimensions(
                {query: texts[query] for query in values.queries},
                read_columns(args.corpus / "columns" / f"{split}.parquet"),
                words,
                params.bins,
            )
            drawn = tests.drawn(values.queries, read_groups(args.corpus / "qrels" / f"{split}.parquet"))
            split_groups = compare(groupings, values.model, values.against, drawn=drawn, least=params.least_queries, alpha=params.alpha)
            groups[split] = [dataclasses.asdict(group) for group in split_groups]
            runs = {name: args.runs / name / f"{split}.trec" for name in means if split in means[name]}
            if not worst:  # errors are studied on dev, not on test
                print("\n".join(group_lines(split_groups, model, against, metric, split, params.alpha)))
                relevant = {query: docs for query, docs in relevant_documents(qrels, values.queries, least).items() if docs}
                relevant = {query: relevant[query] for query in losers(values, params.worst, relevant)}
                results = {name: first_results(runs[name], relevant) for name in names}
                entries = worst_entries(values, texts, relevant, results, documents, words)
                worst = {"split": split, "queries": entries}
            searched = {name: path for name, path in runs.items() if name not in derived}
            judged = {query: qrels[query] for query in judged_queries(qrels)}  # judgments of queries of a click log decide nothing
            suspected = suspects(searched, judged, depth=params.suspect_depth, least=params.suspect_systems, most=params.suspects)
            path = f"suspects/{split}.csv"
            write_suspects(out / path, suspected, texts, texts_of(documents, {suspect.doc for suspect in suspected}))
            found = f"{counted(len(suspected), 'documents')} without a judgment in the top {params.suspect_depth}"
            print(f"{split}: {found} of {params.suspect_systems} or more systems, to be judged: {args.out / path}")
        write_json(out / "groups.json", header | {"splits": groups})
        write_json(out / "worst.json", header | worst)


if __name__ == "__main__":
    with stage():
        main()
