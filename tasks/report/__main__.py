"""Report the metrics and runs of all systems: one table, significance tests, and one page."""

import dataclasses
from argparse import Namespace
from pathlib import Path
from typing import Any

from tasks.core.charts.curves import load_curves, losses_by_kind
from tasks.core.files import new_folder, read_json, write_json, write_text
from tasks.core.metrics.mteb import task_result
from tasks.core.metrics.selection import least_grade
from tasks.core.params.sections import load, read_parameters
from tasks.core.plurals import counted
from tasks.core.stage.entry import parser, stage
from tasks.core.statistics.clusters import read_groups
from tasks.core.statistics.power import WANTED
from tasks.core.text.document import Text
from tasks.report.examples import load_examples
from tasks.report.learning import learning_curves, loss_kinds, steps_of
from tasks.report.page import Contents, render
from tasks.report.params import Report
from tasks.report.significance import PAPERS, compare, headline, shared_documents_note
from tasks.report.systems import (
    SPLITS,
    best,
    compared,
    depth_note,
    load_systems,
    opponents,
    order_names,
    reported_split,
    shared_settings_text,
)
from tasks.report.table import build, caption, legend, letters, text, two_splits_note, unjudged_note
from tasks.report.weaknesses import load_weaknesses


def significance(contents: Contents) -> dict[str, Any]:
    """The content of significance.json."""
    params = contents.params
    return {
        "metric": params.metric,
        "alpha": params.alpha,
        "test": f"{params.tests} {params.over}",
        "correction": "Holm over all pairs of a split",
        "power": f"of a paired two-sided t-test at level {params.alpha:g} before correction; detectable and needed: for {WANTED:.0%} power",
        "marked": PAPERS,
        "best": {"system": contents.best.name, "chosen_on": contents.chosen_on},
        "splits": {split: [dataclasses.asdict(pair) for pair in pairs] for split, pairs in contents.pairs.items()},
    }


def write_mteb(folder: Path, contents: Contents, revision: str) -> None:
    """Write an MTEB task result for each system that has scores."""
    sections = read_parameters()
    relevance = {split: least_grade(split, sections) for split in SPLITS}
    folder.mkdir()
    for system in contents.systems:
        result = task_result(contents.dataset, revision, system.metrics, relevance)
        if result["scores"]:
            write_json(folder / f"{system.name}.json", result)


def read_contents(arguments: Namespace) -> Contents:
    """Read everything that the report shows, from the folders that `main` is given."""
    params, settings, sections = load(Report, "report"), load(Text, "text"), read_parameters()
    systems = load_systems(arguments.metrics, arguments.values, params.metric, sections)
    statistics = read_json(arguments.corpus / "stats.json")
    fair = {name: compared(systems, name, statistics, sections) for name in SPLITS}
    fair_names = {system.name for system in fair["dev"]}
    favored = [system.name for system in systems if system.name not in fair_names]
    split, (chosen, chosen_on) = reported_split(systems), best(fair["dev"], params.metric, sections)
    lettered = letters(params.baselines, fair[split])
    groups = {name: read_groups(arguments.corpus / "qrels" / f"{name}.parquet") for name in SPLITS}
    pairs = {name: compare(fair[name], name, params, groups[name]) for name in SPLITS if any(name in s.values for s in systems)}
    duel = opponents(fair[split], chosen, params.baselines, params.metric, split=split, sections=sections)
    # errors are studied on dev, not on test
    example_split = chosen_on if duel and all(chosen_on in system.values for system in duel) else split
    fair_there = {system.name for system in fair[example_split]}
    shown = duel if duel and all(system.name in fair_there for system in duel) else None  # not with BM25 on made dev queries
    trained = order_names({path.name for path in arguments.curves.glob("*")}, sections)
    return Contents(
        dataset=str((sections.get("dataset") or {}).get("source", "")),
        encoder=str((sections.get("encoder") or {}).get("source", "")),
        in_common=shared_settings_text(sections),
        cut_short=depth_note(systems, sections),
        unjudged=unjudged_note(statistics, favored),
        in_two_splits=two_splits_note(statistics),
        titles=settings.titles,
        statistics=statistics,
        sections=sections,
        params=params,
        systems=systems,
        compared=fair["dev"],
        groups=groups,
        best=chosen,
        chosen_on=chosen_on,
        table=build(systems, params.metric, split, chosen.name, pairs[split], lettered),
        letters=lettered,
        pairs=pairs,
        duel=duel,
        curves=losses_by_kind(load_curves(arguments.curves, trained), loss_kinds(trained, sections)),
        learning=learning_curves(systems, params.metric, steps_of(arguments.curves), sections),
        indexes={
            name: read_json(arguments.index_metrics / f"{name}.json")
            for name in order_names({p.stem for p in arguments.index_metrics.glob("*.json")}, sections)
        },
        fusions={name: read_json(path) for name in sections.get("fuse") or {} if (path := arguments.runs / name / "fusion.json").exists()},
        weaknesses=load_weaknesses(arguments.failures),
        examples=load_examples(*shown, example_split, params.seed, arguments.runs, arguments.corpus, least_grade(example_split, sections))
        if shown
        else None,
    )


def terminal_table(contents: Contents) -> str:
    """The table for the terminal, with a caption above and a legend below."""
    params, split = contents.params, contents.table.split
    pairs = contents.pairs[split]
    queries = len(next(system.queries[split] for system in contents.systems if split in system.queries))
    heading = caption(contents.dataset, contents.statistics["documents"]["count"], contents.titles, split, queries)
    best_pair = headline(pairs, contents.duel)
    on_pair = shared_documents_note(best_pair), best_pair.warning if best_pair else ""
    notes = "\n".join(filter(None, (contents.unjudged, contents.in_two_splits, contents.cut_short, *on_pair)))
    tested = f"{params.tests} on {params.metric} {params.over}, Holm over {counted(len(pairs), 'pairs')}, level {params.alpha:g}"
    chosen_on = contents.chosen_on + (" without BM25" if len(contents.compared) < len(contents.systems) else "")
    return text(contents.table, heading, legend(params.metric, chosen_on, tested if pairs else "", notes))


def main() -> None:
    arguments = parser(
        __doc__ or "",
        metrics="folder of the systems' metrics",
        values="folder of their measures for every query",
        runs="folder of their runs",
        index_metrics="folder of the indexes' metrics",
        failures="folder of failures: groups, worst queries, suspects",
        curves="folder of the rounds' training curves",
        corpus="corpus folder",
        source="source.json, for the digest of the data set",
        out="folder to write: report.html, table.txt, significance.json, mteb/SYSTEM.json",
    ).parse_args()
    contents = read_contents(arguments)
    table = terminal_table(contents)
    with new_folder(arguments.out) as out:
        write_json(out / "significance.json", significance(contents))
        write_text(out / "table.txt", f"{table}\n")
        write_mteb(out / "mteb", contents, str(read_json(arguments.source).get("dataset", {}).get("digest", "")))
        write_text(out / "report.html", render(contents))
    print(table)
    if absent := [name for name in contents.params.baselines if name not in {system.name for system in contents.systems}]:
        print(f"baselines not in the table: {', '.join(absent)}")


if __name__ == "__main__":
    with stage():
        main()
