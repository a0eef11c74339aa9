"""Fuse two systems' runs: choose the method's free setting on dev, and write the runs of dev and test with it."""

from pathlib import Path
from typing import Any

from tasks.core.files import new_folder, write_json
from tasks.core.metrics.measures import parse
from tasks.core.metrics.qrels import load_qrels
from tasks.core.metrics.selection import least_grade, metric_of
from tasks.core.params.sections import load, read_parameters
from tasks.core.plurals import counted
from tasks.core.retrieval.fusion import NAMES, UNTUNED
from tasks.core.stage.entry import parser, stage
from tasks.core.statistics.clusters import read_groups
from tasks.core.statistics.confirmation import is_selection_query
from tasks.core.statistics.judged import judged_queries
from tasks.core.tables.parquet import read_table
from tasks.core.tables.schemas import MEASURED, QUERIES
from tasks.core.trec.runs import write_run
from tasks.fuse.grid import best_setting, fused_batches, grid_means, side_by_side
from tasks.fuse.params import Fuse

RECORD = "fusion.json"  # beside the runs: the two systems, the setting, and the whole grid
CHOSEN_ON = {"dev": "dev", "selection": "dev (selection part)"}


def queries_of(folder: Path, split: str) -> list[str]:
    """The ids of a split's queries, in corpus order."""
    ids: list[str] = read_table(folder / f"{split}.parquet", QUERIES, ["id"])["id"].to_pylist()
    return ids


def choose_setting(first: Path, second: Path, params: Fuse, *, queries: Path, qrels: Path) -> dict[str, Any]:
    """Choose the setting, and return the content of RECORD.

    The setting is the one in params.yaml, if set, else the best on dev by report.metric, or UNTUNED if dev has no judgments. Queries of a
    click log do not choose, unless dev has no others: they favor the system that was logged. Only dev runs are read.
    """
    sections = read_parameters()
    name, relevance = metric_of(sections), least_grade("dev", sections)
    measure, judged = parse([name], relevance), load_qrels(qrels / "dev.parquet", "dev", relevance)
    judged = {query: judged[query] for query in judged_queries(judged)}
    none_left = "there are no judged dev queries"
    if judged and params.queries == "selection":
        none_left = f"none of {counted(len(judged), 'judged dev queries')} is in the selection part; set queries: dev"
        groups = read_groups(qrels / "dev.parquet")
        judged = {query: grades for query, grades in judged.items() if is_selection_query(query, groups)}
    record: dict[str, Any] = {"first": params.first, "second": params.second, "method": params.method, "depth": params.depth}
    setting_name = NAMES[params.method]
    if params.setting is not None:
        return record | {setting_name: params.setting, "measure": name, "chosen_on": "params.yaml", "grid": []}
    if not judged:
        return record | {setting_name: UNTUNED[params.method], "measure": name, "chosen_on": None, "why": none_left, "grid": []}
    pairs = side_by_side(queries_of(queries, "dev"), first / "dev.trec", second / "dev.trec", params.method)
    means = grid_means(pairs, params.method, params.depth, qrels=judged, measure=measure)
    grid = [{setting_name: setting, name: mean} for setting, mean in means.items()]
    return record | {setting_name: best_setting(means), "measure": name, "chosen_on": CHOSEN_ON[params.queries], "grid": grid}


def setting_line(name: str, record: dict[str, Any]) -> str:
    """A line to print: the chosen setting, its value on dev, and those at both ends of the grid."""
    setting_name = NAMES[record["method"]]
    setting = f"fuse {name}: {record['method']} of {record['first']} and {record['second']}, {setting_name} {record[setting_name]:g}"
    if record["chosen_on"] == "params.yaml":
        return f"{setting}, as in params.yaml"
    if not record["grid"]:
        return f"{setting}, not chosen: {record['why']}"
    measure, means = record["measure"], {point[setting_name]: point[record["measure"]] for point in record["grid"]}
    ends = ", ".join(f"{end:g}: {means[end]:.4f}" for end in (min(means), max(means)))
    return (
        f"{setting}: {measure} {means[record[setting_name]]:.4f} on {record['chosen_on']}, the best of {len(means)} ({ends}; all: {RECORD})"
    )


def main() -> None:
    arguments = parser(
        __doc__ or "",
        first="folder of one system's runs, SPLIT.trec",
        second="folder of the other system's runs",
        queries="folder of the splits' queries, for their ids",
        qrels="folder of the splits' qrels",
        out=f"run folder to write: SPLIT.trec and {RECORD}",
    )
    arguments.add_argument("--name", required=True, help="the entry of `fuse`")
    args = arguments.parse_args()
    params = load(Fuse, f"fuse.{args.name}")
    record = choose_setting(args.first, args.second, params, queries=args.queries, qrels=args.qrels)
    print(setting_line(args.name, record))
    setting = record[NAMES[params.method]]
    with new_folder(args.out) as out:
        for split in MEASURED:
            queries = queries_of(args.queries, split)
            if queries:
                runs = args.first / f"{split}.trec", args.second / f"{split}.trec"
                pairs = side_by_side(queries, *runs, params.method)
                documents = write_run(out / f"{split}.trec", fused_batches(pairs, setting, params.depth), args.name)
                print(f"fuse {args.name}: {split}, {counted(len(queries), 'queries')}, {counted(documents, 'documents')}")
        write_json(out / RECORD, record)


if __name__ == "__main__":
    with stage():
        main()
