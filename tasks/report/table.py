"""The table: systems as rows, measures as columns, letters for significant differences from baselines."""

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tasks.core.metrics.added import lower_is_better
from tasks.core.plurals import counted
from tasks.report.significance import Pair
from tasks.report.systems import System


@dataclass(frozen=True)
class Row:
    """A system. `letter` marks it as a baseline. `above`, `below`: letters of the baselines that it is significantly above or below."""

    name: str
    recipe: str
    letter: str
    cells: tuple[str, ...]
    above: str
    below: str
    chooser: str
    best: bool


@dataclass(frozen=True)
class Table:
    """Means on `split`. The report's metric is the first column. `chooser`: the heading of the dev metric's column, or empty."""

    split: str
    columns: tuple[str, ...]
    chooser: str
    rows: tuple[Row, ...]
    top: tuple[str, ...]  # the best value in every column


def letters(baselines: Sequence[str], systems: Sequence[System]) -> dict[str, str]:
    """A letter for each baseline in the table, in table order; empty if there is only one system."""
    if len(systems) < 2:
        return {}
    present = [system.name for system in systems if system.name in baselines]
    names = [a + b for a in ["", *string.ascii_lowercase] for b in string.ascii_lowercase]
    return dict(zip(present, names, strict=False))


def build(systems: Sequence[System], metric: str, split: str, chosen: str, pairs: Sequence[Pair], lettered: Mapping[str, str]) -> Table:
    """Build the table on `split`, with the marks of `pairs`. `chosen`: the best model's name."""
    measured = next(system.metrics[split] for system in systems if split in system.metrics)
    columns = (metric, *(name for name in measured if name != metric))
    with_dev = split != "dev" and any("dev" in system.metrics for system in systems)
    rows = tuple(_row(system, columns, metric, split, chosen, pairs, lettered) for system in systems)
    top = tuple(_top(column, [row.cells[place] for row in rows if row.cells[place] != "-"]) for place, column in enumerate(columns))
    return Table(split, columns, f"dev {metric}" if with_dev else "", rows, top)


def _top(column: str, cells: Sequence[str]) -> str:
    return (min if lower_is_better(column) else max)(cells, key=float)


def _row(
    system: System, columns: Sequence[str], metric: str, split: str, chosen: str, pairs: Sequence[Pair], lettered: Mapping[str, str]
) -> Row:
    differences = {pair.baseline: pair.difference for pair in pairs if pair.system == system.name and pair.significant}
    differences |= {pair.system: -pair.difference for pair in pairs if pair.baseline == system.name and pair.significant}
    marks = [(letter, differences[name]) for name, letter in lettered.items() if name in differences]
    return Row(
        system.name,
        system.recipe,
        lettered.get(system.name, ""),
        tuple(_cell(system, split, column) for column in columns),
        "".join(letter for letter, difference in marks if difference > 0),
        "".join(letter for letter, difference in marks if difference < 0),
        _cell(system, "dev", metric),
        system.name == chosen,
    )


def _cell(system: System, split: str, measure: str) -> str:
    value = system.metrics.get(split, {}).get(measure)
    return "-" if value is None else f"{value:.4f}"


def text(table: Table, caption: str, legend: str) -> str:
    """The table as text for a terminal."""
    head = ["", "system", table.columns[0], "", *table.columns[1:], *([table.chooser] if table.chooser else [])]
    lines = [
        [
            row.letter,
            row.name + (" *" if row.best else ""),
            row.cells[0],
            marks(row),
            *row.cells[1:],
            *([row.chooser] if table.chooser else []),
        ]
        for row in table.rows
    ]
    widths = [max(len(line[place]) for line in [head, *lines]) for place in range(len(head))]
    left_aligned = {0, 1, 3}
    aligned = [
        "  ".join(
            cell.ljust(width) if place in left_aligned else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in [head, *lines]
    ]
    rule = "-" * max(map(len, aligned))
    return "\n".join(line.rstrip() for line in [caption, rule, aligned[0], rule, *aligned[1:], rule, legend])


def marks(row: Row) -> str:
    """`ab -c`: significantly above a and b, and below c."""
    return " ".join(part for part in (row.above, f"-{row.below}" if row.below else "") if part)


def caption(dataset: str, documents: int, titles: bool, split: str, queries: int) -> str:
    """One line on the data set, its documents and titles, the split, and its queries."""
    return f"{dataset}, {counted(documents, 'documents')}, titles {'on' if titles else 'off'}; {split}, {counted(queries, 'queries')}"


def unjudged_note(statistics: Mapping[str, Any], favored: Sequence[str] = ()) -> str:
    """A note on queries that no human judged, from the corpus's stats.json; empty if the queries are the source's own.

    `favored`: the systems that are not compared with others on made dev queries.
    """
    pseudo = statistics.get("pseudo")
    if not pseudo:
        return ""
    counts = ", ".join(f"{row['train']:,} from {row['made']:,} {kind}s" for kind, row in pseudo["kinds"].items())
    note = f"no human judged the training queries: they are made from documents, and kept if BM25 and the start encoder agree: {counts}"
    if pseudo["dev"] == "pseudo":
        note += "; dev queries are made from documents too, so the choice of the best system used no human judgment"
        if favored:
            note += f"; made queries have their documents' words, which favors BM25: on dev, compare nothing with {', '.join(favored)}"
    return note


def two_splits_note(statistics: Mapping[str, Any]) -> str:
    """A note on queries that are in two splits, which flatters figures, from the corpus's stats.json; empty if there are none."""
    shared = [
        f"{counted(statistics[key], f'queries of {name}')} {'is' if statistics[key] == 1 else 'are'} also in {others}"
        for key, name, others in (("leaks", "train", "dev or test"), ("dev_in_test", "dev", "test"))
        if statistics.get(key)
    ]
    return f"{', and '.join(shared)}, by id or text, which flatters the figures" if shared else ""


def legend(metric: str, chosen_on: str, tests: str, short: str = "") -> str:
    """How to read the marks. `tests` describes the tests behind them; empty: no tests. `short`: lines on the limits of the figures."""
    lines = "\n".join([*([short] if short else []), f"*: best {metric} on {chosen_on}"])
    return f"{lines}\na letter: significantly above that system, -letter: below ({tests})" if tests else lines
