"""`retemper evaluate` of several models or data sets: all checks first, then runs on each data set, then one table.

Models that read the same texts as the same tokens share a run; every other one, and each fusion, has its own. The finished work of a killed
evaluation is kept, as with one model, and the same command uses it without computing it again.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flows.evaluating.evaluate import (
    SPLITS,
    Plan,
    Settings,
    Shown,
    absolute_encoder,
    canonical_spec,
    edits_of,
    make_plan,
    make_store,
    refuse_before,
    resolve_settings,
    second_run,
    short_name,
    texts_of,
)
from flows.evaluating.extra import LAYOUTS
from flows.evaluating.several_results import Results, Table, combine, read, record, text, write_mteb
from flows.parameters.checks import check_file
from flows.parameters.sources import list_dataset
from flows.process.display import Display, terminal_width
from flows.process.problems import RunFailed, print_problems
from flows.process.processes import Processes, stopping_on_signals
from flows.results.fusions import BM25, fusions
from tasks.core.errors import Problem, UserError
from tasks.core.files import file_digest, read_json, write_json
from tasks.core.params.sections import read_yaml
from tasks.core.sources.datasets import PATH_KINDS, local_path, parse_dataset, parse_encoder
from tasks.core.sources.downloads import encoder_folder
from tasks.core.statistics.tested import tests_of

TOKENIZER = ("tokenizer", "vocab", "merges", "special_tokens", "added_tokens", "sentencepiece", "spiece")  # beginnings of its files' names


@dataclass(frozen=True)
class Group:
    """Models that one run measures. `systems`: their names in that run, by label. `sources`: encoders by system; empty for a fusion, or
    BM25 alone, which `make_plan` handles."""

    systems: Mapping[str, str]
    sources: Mapping[str, str]
    lock: str

    def plan(self, data: str, sections: Mapping[str, Any], *, settings: Settings, shown: Shown) -> Plan:
        """The run that measures them on `data`."""
        if not self.sources:
            return make_plan(next(iter(self.systems.values())), data, sections, settings=settings, shown=shown)
        edits, notes = edits_of(self.sources, data, sections, settings=settings, shown=shown, fuse={})
        targets = ["evaluate_bm25" if system == BM25 else f"evaluate@{system}" for system in self.systems.values()]
        return Plan(self.lock, targets, edits, [f"{', '.join(self.systems)}: {note}" for note in notes])


def evaluate_all(
    models: Sequence[str], data: Sequence[str], settings: Settings, *, out: Path | None = None, mteb: Path | None = None
) -> int:
    """Print the report's metric of every model on every data set, their means, and paired tests against the first model.

    Also write all measures to `out`, and to folder `mteb`, one file per model and data set. Return the exit status; if one run fails, the
    others still run.
    """
    sections, metric = read_yaml(Path("params.yaml")), check_file().report.metric
    refuse_before(models, sections, settings, mteb=mteb)
    labelled, sets = labelled_models(models, sections), labelled_data(data)
    shown = {label: resolve_settings(settings, spec) for label, spec in sets.items()}
    for spec in sets.values():
        refuse_unjudged(spec)
    groups = list(group_runs(labelled, sections, settings))
    runs = [(label, group, group.plan(sets[label], sections, settings=settings, shown=shown[label])) for label in sets for group in groups]
    measured, problems = dict[str, list[Results]](), dict[str, Problem]()
    processes, display = Processes(), Display()
    with stopping_on_signals(processes, display.farewell):
        for number, (label, group, plan) in enumerate(runs, 1):
            where = f"{', '.join(group.systems)} on {sets[label]}"
            display.line(f"{number} of {len(runs)}: {where}")
            notes = plan.notes if label == next(iter(sets)) else ()  # notes on reduced lengths are shown once
            try:
                with second_run(
                    replace(plan, notes=notes, partial=True), make_store(sets[label], len(sets)), processes=processes, display=display
                ) as project:
                    measured.setdefault(label, []).append(read(project, group.systems, shown[label], metric=metric))
            except RunFailed as failed:
                problems[where] = failed.problem
            except UserError as error:
                problems[where] = Problem(error.kind, str(error), 2)
    results = {label: one for label, parts in measured.items() if (one := combine(parts, labelled)).metrics}
    table = Table(labelled, sets, results, metric, tests_of(sections, "params.yaml"))
    if results:
        display.line("\n" + text(table, sections, terminal_width()))
    if out:
        write_json(out, record(table, problems))
    if mteb:
        write_mteb(mteb, table, shown)
    print_problems([Problem(problem.kind, f"{where}: {problem.message}", problem.status) for where, problem in problems.items()])
    return max((problem.status for problem in problems.values()), default=0)


def labelled_models(models: Sequence[str], sections: Mapping[str, Any]) -> dict[str, str]:
    """The models by short, distinct labels. Raises UserError if one is given twice, or is invalid."""
    places = [model if model == BM25 or model in fusions(sections) else absolute_encoder(model) for model in models]
    refuse_duplicates("--model", models, places)
    folders = [
        _absolute(Path(model)) if place != model and Path(model).exists() else place for model, place in zip(models, places, strict=True)
    ]
    return dict(zip(labels(folders, models), models, strict=True))


def labelled_data(data: Sequence[str]) -> dict[str, str]:
    """The data sets by short, distinct labels. Raises UserError if one is given twice, or is invalid."""
    specs = [parse_dataset(one) for one in data]
    refuse_duplicates("--data", data, [" ".join(canonical_spec(one)) for one in data])
    places = [
        _absolute(local_path(spec.place)) + spec.columns if spec.kind in PATH_KINDS else str(spec).removeprefix("irds:") for spec in specs
    ]
    return dict(zip(labels(places, data), data, strict=True))


def _absolute(folder: Path) -> str:
    """The absolute path of a folder; a link keeps its own name."""
    return os.path.normpath(folder.absolute())


def refuse_duplicates(option: str, given: Sequence[str], places: Sequence[str]) -> None:
    """Raise UserError if two of `places`, which are what the user has `given` in resolved form, are the same."""
    for later, place in enumerate(places):
        if (first := places.index(place)) < later:
            raise UserError(f"{option} {given[later]}: found the same as {option} {given[first]}, expected each once; remove one of them")


def labels(places: Sequence[str], given: Sequence[str]) -> list[str]:
    """For each of `places`, the last parts of its path, as few as make it unique; all as `given` if that is not possible."""
    parts = [place.removeprefix("package:").rstrip("/").split("/") for place in places]

    def label(path_parts: list[str]) -> str:
        ends = (path_parts[-depth:] for depth in range(1, len(path_parts) + 1))
        return "/".join(next((end for end in ends if sum(other[-len(end) :] == end for other in parts) == 1), path_parts))

    found = [label(path_parts) for path_parts in parts]
    return found if len(set(found)) == len(found) else list(given)


def refuse_unjudged(data: str) -> None:
    """Raise UserError if a data set is missing, or is known to have no judgments of dev or test."""
    list_dataset(data)
    spec = parse_dataset(data)
    if spec.kind in LAYOUTS and not (qrels := LAYOUTS[spec.kind](spec.folder).qrels).keys() & set(SPLITS):
        raise UserError(
            f"--data {data}: found qrels of {', '.join(qrels)}, expected dev or test, on which models are measured; add one of them"
        )


def group_runs(models: Mapping[str, str], sections: Mapping[str, Any], settings: Settings) -> Iterator[Group]:
    """The runs that measure models (by label) on a data set; BM25 joins the first encoders. UserError if one cannot be measured."""
    by_tokens: dict[str, dict[str, str]] = {}  # sources by label, by what must be equal in one run
    for label, model in models.items():
        if model != BM25 and model not in fusions(sections):
            by_tokens.setdefault(tokens_of(model, sections, settings), {})[label] = model
    used_names = {BM25}
    for place, sources in enumerate(by_tokens.values()):
        systems = {label: _unique_name(short_name(label), used_names) for label in sources}
        several = len(systems) > 1
        encoders = {system: sources[label] for label, system in systems.items()}
        if not place and (bm25 := next((label for label, model in models.items() if model == BM25), "")):
            systems[bm25] = BM25
        yield Group(systems, encoders, f"several-{place}" if several else next(iter(encoders)))
    for label, model in models.items():
        if model in fusions(sections) or (model == BM25 and not by_tokens):
            yield Group({label: model}, {}, model)


def tokens_of(model: str, sections: Mapping[str, Any], settings: Settings) -> str:
    """A key that is equal for encoders that read the same tokens: prefixes, lengths, the longest text, lowercasing, and the tokenizer's
    files."""
    from tasks.core.models.limits import most_tokens

    folder = encoder_folder(model)
    values, _ = texts_of({parse_encoder(model).name: model}, sections, settings)
    files = {file.name: file_digest(file) for file in sorted(folder.rglob("*")) if file.name.startswith(TOKENIZER) and file.is_file()}
    lowercase = any(read_json(path).get("do_lower_case") for path in folder.glob("sentence_*_config.json"))  # as load_tokenizer has it
    return json.dumps([values, most_tokens(folder), bool(lowercase), files or str(folder)], sort_keys=True)


def _unique_name(name: str, used_names: set[str]) -> str:
    """`name`, or with a number added if it is taken; the result is added to `used_names`."""
    unique = next(one for one in (name, *(f"{name}_{number}" for number in range(2, len(used_names) + 2))) if one not in used_names)
    used_names.add(unique)
    return unique
