"""data/extra/NAME: the results of every system on a further data set, as files, a table for the terminal, and a section of the page."""

import itertools
import shutil
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from flows.pages.measured import Section
from flows.process.display import text_table
from flows.results.metrics import Metrics, read_metrics
from tasks.core.charts.page import table
from tasks.core.errors import UserError
from tasks.core.files import new_folder, read_json, write_json
from tasks.core.metrics.mteb import task_result
from tasks.core.plurals import counted
from tasks.core.statistics.tested import Tested

if TYPE_CHECKING:
    from tasks.core.statistics.clusters import Numbers

RESULTS = Path("data/extra")
MADE = "made.json"
REPORTED = ("test", "dev")  # splits, in the order of their tables


@dataclass(frozen=True)
class ExtraResults:
    """The results on one data set: `about`, the content of made.json; means by system; and tests of all pairs of systems by split."""

    name: str
    about: Mapping[str, Any]
    metrics: Metrics
    tests: Mapping[str, Any]

    @property
    def letters(self) -> dict[str, str]:
        """A letter for each system."""
        names = (first + last for first in ["", *string.ascii_lowercase] for last in string.ascii_lowercase)
        return dict(zip(self.about["systems"], names, strict=False))

    @property
    def splits(self) -> list[str]:
        return [split for split in REPORTED if split in self.tests["splits"]]

    def queries(self, split: str) -> str:
        """`300 queries`, with the number of groups in the tests, if any queries share relevant documents."""
        queries, groups = (self.tests["splits"][split][count] for count in ("queries", "groups"))
        return counted(queries, "queries") + (f" in {counted(groups, 'groups')}" if groups < queries else "")

    def rows(self, split: str, best: str) -> tuple[list[str], list[list[str]]]:
        """Header and one row per system. Column `above` has the letters of the systems that it is significantly above; `best` is marked."""
        metric = self.about["metric"]
        measures = [metric, *(name for name in next(iter(self.metrics.values()))[split] if name != metric)]
        above: dict[str, list[str]] = {system: [] for system in self.about["systems"]}
        between = " " if len(above) > len(string.ascii_lowercase) else ""  # aa is then one letter
        for pair in self.tests["splits"][split]["pairs"]:
            if pair["significant"]:
                winner, loser = ("system", "baseline") if pair["difference"] > 0 else ("baseline", "system")
                above[pair[winner]].append(self.letters[pair[loser]])
        body = [
            [
                f"{self.letters[system]} {system}{' *' if system == best else ''}",
                f"{self.metrics[system][split][metric]:.4f}",
                between.join(sorted(marks, key=lambda mark: (len(mark), mark))),
                *(f"{self.metrics[system][split][name]:.4f}" for name in measures[1:]),
            ]
            for system, marks in above.items()
        ]
        return ["system", metric, "above", *measures[1:]], body


def is_current(name: str, digest: str) -> bool:
    """Whether the results on a data set have this `digest` of all that they depend on."""
    made = RESULTS / name / MADE
    return made.is_file() and read_json(made)["digest"] == digest


def load(name: str) -> ExtraResults:
    """The results on a data set."""
    folder = RESULTS / name
    return ExtraResults(name, read_json(folder / MADE), read_metrics(folder / "metrics"), read_json(folder / "significance.json"))


def write(name: str, about: Mapping[str, Any], test: Tested, *, metrics: Path, values: Path, qrels: Path) -> None:
    """Write data/extra/NAME from the files of a second tree: metrics, values by query, tests, and MTEB's JSON if there is a score.

    `qrels`: the folder of its judgments by split, for the groups of queries that share relevant documents."""
    with new_folder(RESULTS / name) as out:
        for folder in ("metrics", "values", "mteb"):
            (out / folder).mkdir()
        for system in about["systems"]:
            shutil.copyfile(metrics / f"{system}.json", out / "metrics" / f"{system}.json")
            (out / "values" / system).mkdir()
            for file in (values / system).glob("*.parquet"):
                shutil.copyfile(file, out / "values" / system / file.name)
            result = task_result(about["source"], about["revision"], read_json(metrics / f"{system}.json"), about["relevance"])
            if result["scores"]:
                write_json(out / "mteb" / f"{system}.json", result)
        write_json(out / "significance.json", pairwise_tests(out / "values", about, test, qrels=qrels))
        write_json(out / MADE, about)


def pairwise_tests(values: Path, about: Mapping[str, Any], test: Tested, *, qrels: Path) -> dict[str, Any]:
    """Test all pairs of systems on every split, with Holm's correction over all pairs of the split."""
    from tasks.core.statistics.clusters import read_groups

    by_split = dict[str, Any]()
    for split in REPORTED:
        by_system = {system: _values(values / system / f"{split}.parquet", about["metric"]) for system in about["systems"]}
        measured = {system: one for system, one in by_system.items() if one}
        if measured:
            queries = next(iter(measured.values())).keys()
            if any(one.keys() != queries for one in measured.values()):
                raise UserError(f"{values}: found systems with different {split} queries, expected the same; run again")
            drawn = test.drawn(list(queries), read_groups(qrels / f"{split}.parquet"))
            by_split[split] = {"queries": len(queries), "groups": int(drawn.max()) + 1, "pairs": compare_pairs(measured, test, drawn)}
    return {
        "metric": about["metric"],
        "alpha": test.alpha,
        "test": f"{test.tests} {test.over}",
        "correction": "Holm over all pairs of a split",
        "splits": by_split,
    }


def compare_pairs(values: Mapping[str, Mapping[str, float]], test: Tested, drawn: "Numbers") -> list[dict[str, Any]]:
    """Test every system against each earlier one, over the same queries. Queries with the same number in `drawn` [Q] are one draw."""
    import numpy as np

    from tasks.core.statistics.paired_tests import holm, paired_t_test

    queries = list(next(iter(values.values())))
    arrays = {system: np.array([one[query] for query in queries], dtype=np.float64) for system, one in values.items()}
    order = [(later, earlier) for earlier, later in itertools.combinations(arrays, 2)]
    p_values = [test.p(arrays[later], arrays[earlier], drawn) for later, earlier in order]
    pairs = []
    for (later, earlier), p, p_holm in zip(order, p_values, holm(p_values), strict=True):
        _, low, high = paired_t_test(arrays[later], arrays[earlier], test.alpha, drawn)
        difference = float((arrays[later] - arrays[earlier]).mean())
        pairs.append({"system": later, "baseline": earlier, "difference": difference, "low": low, "high": high, "p": p, "p_holm": p_holm})
        pairs[-1]["significant"] = p_holm <= test.alpha
    return pairs


def _values(path: Path, metric: str) -> dict[str, float]:
    """The measure of every query; empty without the file."""
    from tasks.core.tables.parquet import values_of

    return values_of(path, metric) if path.is_file() else {}


def text(made: ExtraResults, best: str) -> str:
    """A table for each split, for a terminal."""
    about = made.about
    lines = [f"extra.{made.name}: {about['source']}, {counted(about['documents'], 'documents')}, zero-shot"]
    for split in made.splits:
        lines += [f"{split}, {made.queries(split)}", text_table(*made.rows(split, best))]
    return "\n".join([*lines, *legend(made, best), about["texts"]])


def section(made: ExtraResults, best: str) -> Section:
    """The same as a section of the page."""
    parts: Sequence[Markup] = [
        Markup("<h3>{}, {}</h3>{}").format(split, made.queries(split), table(*made.rows(split, best), words=("above",)))
        for split in made.splits
    ]
    about = made.about
    sentences = [f"Zero-shot on {about['source']}, {counted(about['documents'], 'documents')}", *legend(made, best), about["texts"]]
    note = " ".join(f"{line[0].upper()}{line[1:]}." for line in sentences)
    return Section(f"extra-{made.name}", f"On {made.name}", Markup("").join(parts), note)


def legend(made: ExtraResults, best: str) -> list[str]:
    """How to read the tables."""
    tests = made.tests
    compared = counted(len(next(iter(tests["splits"].values()))["pairs"]), "pairs")
    lines = [f"above: systems that this one significantly outperforms ({tests['test']}, Holm over {compared}, level {tests['alpha']:g})"]
    if best in made.about["systems"]:
        lines.append(f"*: {best}, the best on the main data set, where it was chosen")
    if left_out := made.about["left_out"]:
        lines.append(f"not measured here: {', '.join(left_out)}, which reorder other systems' runs")
    return lines
