"""The results of several models on several data sets: one table for the terminal, one JSON object, and files in MTEB's form."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flows.evaluating.evaluate import SPLITS, Shown, describe_model, describe_texts
from flows.experiments.compare import Row, Side, rows
from flows.process.display import fitted_table
from flows.repository.worktree import SOURCE
from flows.results.fusions import BM25
from flows.results.metrics import METRICS
from tasks.core.errors import Problem
from tasks.core.files import read_json, write_json
from tasks.core.metrics.mteb import task_result
from tasks.core.metrics.selection import best_of
from tasks.core.statistics.tested import Tested

VALUES = Path("data/values")


@dataclass(frozen=True)
class Results:
    """The results on one data set, by label of a model: means by split, the report's metric by split and query, and how texts were
    given. `groups`: those of queries, by split; `revision`: the data set's digest."""

    metrics: dict[str, dict[str, dict[str, float]]]
    values: dict[str, dict[str, dict[str, float]]]
    texts: dict[str, str]
    groups: dict[str, dict[str, str]]
    revision: str

    @property
    def splits(self) -> list[str]:
        return [split for split in SPLITS if any(split in splits for splits in self.metrics.values())]

    def sides(self, split: str) -> list[Side]:
        """The models that were measured on a split, in their order."""
        return [Side(model, splits[split]) for model, splits in self.values.items() if split in splits]


@dataclass(frozen=True)
class Table:
    """All results, by label of a data set. `models` and `data`: what the user gave, by label."""

    models: Mapping[str, str]
    data: Mapping[str, str]
    results: Mapping[str, Results]
    metric: str
    test: Tested

    @property
    def first(self) -> str:
        """The model that the others are tested against."""
        return next(iter(self.models))

    def tests(self, label: str, split: str) -> list[Row]:
        """Test every other model against the first on a split of a data set; empty if the first one failed."""
        sides = self.results[label].sides(split)
        if len(sides) < 2 or sides[0].name != self.first:
            return []
        return rows(sides, self.test, split=split, groups=self.results[label].groups[split])

    @property
    def averaged(self) -> dict[str, str]:
        """By data set on which every model was measured: the split for the mean, test or else dev."""
        last = {label: results.splits[-1] for label, results in self.results.items() if results.splits}
        return {label: split for label, split in last.items() if len(self.results[label].sides(split)) == len(self.models)}

    def means(self) -> dict[str, dict[str, float]]:
        """The unweighted mean over data sets, by model and measure, as in BEIR's tables (arXiv:2104.08663); empty for fewer than two."""
        sets = self.averaged
        if len(sets) < 2:
            return {}
        each = {model: [self.results[label].metrics[model][split] for label, split in sets.items()] for model in self.models}
        return {
            model: {name: sum(means[name] for means in measured) / len(measured) for name in measured[0]}
            for model, measured in each.items()
        }


def read(project: Path, systems: Mapping[str, str], shown: Shown, *, metric: str) -> Results:
    """The results of a run in `project`, for those of `systems` (by label) that have not failed."""
    from tasks.core.statistics.clusters import read_groups
    from tasks.core.tables.parquet import values_of

    done = {label: system for label, system in systems.items() if (project / METRICS / f"{system}.json").exists()}
    means = {label: read_json(project / METRICS / f"{system}.json") for label, system in done.items()}
    values: dict[str, dict[str, dict[str, float]]] = {}
    for label, system in done.items():
        splits = [split for split in SPLITS if split in means[label]]
        values[label] = {split: values_of(project / VALUES / system / f"{split}.parquet", metric) for split in splits}
    judged = {str(split): read_groups(project / f"data/corpus/qrels/{split}.parquet") for split in SPLITS}
    texts = {label: describe_texts(project / "data", shown) for label, system in done.items() if system != BM25}
    revision = str(read_json(project / SOURCE)["dataset"]["digest"])
    return Results(means, values, texts, judged, revision)


def combine(parts: Sequence[Results], order: Mapping[str, str]) -> Results:
    """The results of several runs on one data set as one, with models in `order`."""
    metrics = {label: part.metrics[label] for label in order for part in parts if label in part.metrics}
    values = {label: part.values[label] for label in order for part in parts if label in part.values}
    texts = {label: part.texts[label] for label in order for part in parts if label in part.texts}
    return Results(metrics, values, texts, parts[-1].groups, parts[-1].revision)


def text(table: Table, sections: Mapping[str, Any], width: int | None) -> str:
    """The table, in lines of at most `width` if given, and how to read it."""
    import numpy as np

    from tasks.core.statistics.clusters import LARGEST, describe_groups

    several, body, lines = len(table.models) > 1, list[list[str]](), list[str]()
    tests = {(label, split): table.tests(label, split) for label, one in table.results.items() for split in one.splits}
    for label, split in tests:
        results = table.results[label]
        means = {model: splits[split][table.metric] for model, splits in results.metrics.items() if split in splits}
        marks = {row.name: "+" if row.difference > 0 else "-" for row in tests[label, split] if row.p_holm <= table.test.alpha}
        queries = sorted(results.sides(split)[0].values)
        sizes = np.bincount(table.test.drawn(queries, results.groups[split]))
        groups, largest = len(sizes), int(sizes.max())
        body.append([label, split, f"{len(queries):,}", f"{groups:,}", *_cells(table, means, marks)])
        if several and (groups == 1 or (table.test.test == "t" and largest > LARGEST * len(queries))):
            lines.append(f"{label}, {split}: {describe_groups(len(queries), groups, 1.0, largest=largest)}")
    if averages := table.means():
        taken = list(table.averaged.values())
        means = {model: one[table.metric] for model, one in averages.items()}
        body.append(["mean", " or ".join(sorted(set(taken), reverse=True)), "", "", *_cells(table, means, {})])
        lines.append(describe_mean(table))
    header = ["data", "split", "queries", "groups", *(f"{model}  " if several else model for model in table.models)]
    if not several or all(row[2] == row[3] for row in body):  # groups of one query each are not worth a column
        header, *body = ([*row[:3], *row[4:]] for row in (header, *body))
    legend = []
    if several:
        legend.append("*: the best of its row")
        if any(tests.values()):
            legend.append(
                f"+ or -: significantly above or below {table.first}, the first model ({table.test.tests} {table.test.over}, "
                f"Holm over the other models of a row, level {table.test.alpha:g})"
            )
    return "\n".join([f"{table.metric}, zero-shot", fitted_table(header, body, width), *legend, *lines, *text_notes(table, sections)])


def _cells(table: Table, means: Mapping[str, float], marks: Mapping[str, str]) -> list[str]:
    """One cell per model: its mean, * if it is the best, and its mark."""
    if len(table.models) == 1:
        return [f"{mean:.4f}" for mean in means.values()]
    best = best_of(means, list(table.models).index)
    return [f"{means[model]:.4f}{'*' if model == best else ' '}{marks.get(model, ' ')}" if model in means else "" for model in table.models]


def describe_mean(table: Table) -> str:
    """A line on what the mean covers."""
    sets, splits = table.averaged, list(table.averaged.values())
    split = "test" if "test" in splits else "dev"
    others = [label for label, one in sets.items() if one != split]
    message = (
        f"mean: unweighted, over {split} of {len(sets)} data sets"
        if not others
        else (f"mean: unweighted, over {len(sets)} data sets: test, but dev of {', '.join(others)}, which has no test")
    )
    missing = [label for label in table.data if label not in sets]
    return message + (f"; without {', '.join(missing)}, where a model failed" if missing else "")


def text_notes(table: Table, sections: Mapping[str, Any]) -> list[str]:
    """Lines on how texts were given to the models, one per way, and on how fusions and BM25 are made."""
    by_description: dict[str, list[tuple[str, str]]] = {}
    for label, results in table.results.items():
        for model, description in results.texts.items():
            by_description.setdefault(description, []).append((model, label))
    lines = []
    for description, pairs in by_description.items():
        models, sets = (list(dict.fromkeys(pair[place] for pair in pairs)) for place in (0, 1))
        whose = [", ".join(models)] if len(table.models) > 1 else []
        whose += [f"on {', '.join(sets)}"] if len(sets) < len(table.results) else []
        lines.append(f"{' '.join(whose)}: {description}" if whose else description)
    return lines + [line for model in table.models.values() for line in describe_model(model, sections)]


def record(table: Table, problems: Mapping[str, Problem]) -> dict[str, Any]:
    """The JSON object of --out (docs/measures.md)."""
    tests: dict[str, Any] = {}
    for label, results in table.results.items():
        for split in results.splits:
            by_model = {
                row.name: {key: value for key, value in asdict(row).items() if key not in ("name", "differs")}
                for row in table.tests(label, split)
            }
            if by_model:
                tests.setdefault(label, {})[split] = {
                    name: one | {"significant": one["p_holm"] <= table.test.alpha} for name, one in by_model.items()
                }
    return {
        "metric": table.metric,
        "models": table.models,
        "data": {
            label: {"source": spec, "revision": table.results[label].revision if label in table.results else None}
            for label, spec in table.data.items()
        },
        "metrics": {label: results.metrics for label, results in table.results.items()},
        "mean": {"splits": table.averaged, "models": table.means()},
        "texts": {label: results.texts for label, results in table.results.items()},
        "tests": {"against": table.first, "test": f"{table.test.tests} {table.test.over}", "alpha": table.test.alpha, "data": tests},
        "failed": {where: problem.message for where, problem in problems.items()},
    }


def write_mteb(folder: Path, table: Table, shown: Mapping[str, Shown]) -> None:
    """Write FOLDER/MODEL/DATA.json in the form of MTEB's task results; / in a name becomes __, as in MTEB's folders."""
    for label, results in table.results.items():
        for model, means in results.metrics.items():
            place = folder / model.replace("/", "__")
            place.mkdir(parents=True, exist_ok=True)
            write_json(
                place / f"{label.replace('/', '__')}.json", task_result(table.data[label], results.revision, means, shown[label].relevance)
            )
