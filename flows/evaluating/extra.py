"""`extra` of params.yaml: measure every system of the project on further data sets, zero-shot, by one run in a second tree for each.

BM25 is built there, and a fusion keeps the weight that was chosen on the project's own dev. Results are in data/extra/NAME; no stage
reads them, so they influence no choice.
"""

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.evaluating import extra_results
from flows.evaluating.evaluate import SPLITS, Plan, Settings, Shown, chosen_entry, describe_texts, edits_of, second_run
from flows.evaluating.extra_results import RESULTS, ExtraResults
from flows.pages import measured
from flows.parameters.checks import PARAMS, check_file
from flows.parameters.sources import dataset_entry
from flows.process import locks
from flows.process.display import Display
from flows.process.problems import RunFailed, print_problems
from flows.process.processes import Processes, stopping_on_signals
from flows.repository.lock import Lock, current_lock, out_digests
from flows.results.fusions import BM25, SEARCHED, fusions, is_served
from flows.results.metrics import METRICS
from tasks.core.errors import Problem, UserError
from tasks.core.files import read_json
from tasks.core.params.sections import read_yaml
from tasks.core.sources.datasets import beir_layout, csv_layout, msmarco_layout, parse_dataset
from tasks.core.stage.frozen import CODE
from tasks.params import Extra, Parameters

STORES = Path(".retemper/extra")  # a folder per data set: finished pieces and dvc.lock of its runs
LAYOUTS = {"beir": beir_layout, "csv": csv_layout, "msmarco": msmarco_layout}  # kinds whose splits are known before reading them
# Sections of params.yaml, and stages, that figures on a further data set depend on, in addition to encoders, fusions, and the data.
READ = ("prepare", "base", "text", "tokenize", "bm25", "encode", "retrieve", "evaluate", "report")
STAGES = ("prepare", "base", "tokenize", "bm25", "train", "encode", "retrieve", "fuse", "evaluate")
FORM = 2  # of the content of data/extra/NAME; with a new number, all is measured again


@dataclass(frozen=True)
class Systems:
    """The systems that can be measured on other data: encoders, and fusions with the weights chosen. `left_out`: those reordering runs."""

    encoders: tuple[str, ...]
    fuse: Mapping[str, Mapping[str, Any]]
    left_out: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """All systems that are measured, in the order of tables."""
        return (BM25, *self.encoders, *self.fuse)


def is_configured() -> bool:
    """Whether params.yaml names further data sets, or did."""
    return bool(read_yaml(PARAMS).get("extra")) or RESULTS.exists()


def check() -> None:
    """Raise UserError if a data set of `extra` is unavailable and was never read before, or has no judgments of dev or test."""
    for name, entry in check_file().extra.items() if is_configured() else ():
        dataset_entry(f"extra.{name}", entry.source)
        spec = parse_dataset(entry.source)
        if spec.kind in LAYOUTS and spec.folder.exists():
            qrels = LAYOUTS[spec.kind](spec.folder).qrels
            if not qrels.keys() & set(SPLITS):
                raise UserError(
                    f"{PARAMS}: extra.{name}.source: {spec.folder}: found qrels of {', '.join(qrels)}, expected dev or test, on which "
                    f"systems are measured; add one of them, or remove extra.{name}"
                )


def run(*, measure: bool) -> int:
    """Bring data/extra up to date and print a table for each data set; return the exit status. Without `measure`, only update the page.

    The results of data sets that params.yaml no longer names are removed.
    """
    parameters, sections = check_file(), read_yaml(PARAMS)
    for folder in [folder for place in (RESULTS, STORES) if place.is_dir() for folder in place.iterdir()]:
        if folder.name not in parameters.extra:
            shutil.rmtree(folder, ignore_errors=True)
    if RESULTS.is_dir() and not any(RESULTS.iterdir()):
        RESULTS.rmdir()
    problems, current_results = list[Problem](), list[ExtraResults]()
    processes, display = Processes(), Display()
    with stopping_on_signals(processes, display.farewell), locks.hold_run_lock():
        lock = current_lock()
        for name, entry in parameters.extra.items():
            try:
                digest = digest_of(entry, revision(name, entry), sections, lock=lock)
                if measure and not extra_results.is_current(name, digest):
                    display.line(f"\nextra.{name}: measuring every system on {entry.source}")
                    measure_on(name, parameters, sections, digest=digest, processes=processes, display=display)
                if extra_results.is_current(name, digest):
                    current_results.append(extra_results.load(name))
            except RunFailed as failed:
                problems.append(failed.problem)
            except UserError as error:
                if measure:
                    problems.append(Problem(error.kind, f"extra.{name}: {error}"))
    best = measured.best_system()
    for made in current_results if measure else ():
        display.line(f"\n{extra_results.text(made, best)}")
    measured.add([extra_results.section(made, best) for made in current_results])
    print_problems(problems)
    return max((problem.status for problem in problems), default=0)


def revision(name: str, entry: Extra) -> str:
    """The digest of a data set, as `check` found it."""
    return str(dataset_entry(f"extra.{name}", entry.source, warn=lambda _: None)["digest"])


def systems(sections: Mapping[str, Any]) -> Systems:
    """The systems of params.yaml. Raises UserError if a fusion has not run."""
    chosen = {name: chosen_entry(name, sections) for name in fusions(sections) if is_served(name, sections)}
    others = [name for section in ("fuse", "rerank", "rescore") for name in sections.get(section) or {} if name not in chosen]
    return Systems(tuple(name for section in SEARCHED for name in sections.get(section) or {}), chosen, tuple(others))


def digest_of(entry: Extra, revision: str, sections: Mapping[str, Any], *, lock: Lock) -> str:
    """A digest of all that the figures depend on: the data, the systems as dvc.lock has them, parameters, and code."""
    all_systems, code = systems(sections), read_json(CODE)
    outs = out_digests(lock)
    content = {
        "form": FORM,
        "revision": revision,
        "entry": entry.model_dump(mode="json"),
        "encoders": {name: outs.get(f"data/encoders/{name}") for name in all_systems.encoders},
        "fuse": all_systems.fuse,
        "left_out": all_systems.left_out,
        "parameters": {section: sections.get(section) for section in READ},
        "code": {stage: code.get(stage) for stage in STAGES},
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


def plan_of(name: str, parameters: Parameters, sections: Mapping[str, Any]) -> tuple[Plan, Shown]:
    """The run that measures every system on data set `name`, and how texts are given to them there."""
    entry, all_systems, project = parameters.extra[name], systems(sections), parameters.tokenize
    shown = Shown(
        parameters.text.titles if entry.titles is None else entry.titles,
        parameters.retrieve.ignore_identical_ids if entry.ignore_identical_ids is None else entry.ignore_identical_ids,
        {str(split): grade for split, grade in entry.relevance.items()},
    )
    prefixes = {"query": project.query_prefix, "document": project.document_prefix}
    settings = Settings(prefixes, {"query": entry.query_length, "document": entry.document_length}, drop=entry.drop)
    encoders = {system: f"data/encoders/{system}" for system in all_systems.encoders}
    edits, notes = edits_of(encoders, entry.source, sections, settings=settings, shown=shown, fuse=all_systems.fuse)
    targets = [
        "evaluate_bm25",
        *(f"evaluate@{system}" for system in all_systems.encoders),
        *(f"evaluate_fuse@{system}" for system in all_systems.fuse),
    ]
    return Plan("systems", targets, edits, notes), shown


def measure_on(
    name: str, parameters: Parameters, sections: Mapping[str, Any], *, digest: str, processes: Processes, display: Display
) -> None:
    """Measure every system on data set `name` and write data/extra/NAME. Raises RunFailed, or UserError."""
    plan, shown = plan_of(name, parameters, sections)
    all_systems, entry = systems(sections), parameters.extra[name]
    with second_run(plan, STORES / name, processes=processes, display=display) as project:
        about = {
            "digest": digest,
            "source": entry.source,
            "revision": str(read_json(project / "data/source.json")["dataset"]["digest"]),
            "documents": int(read_json(project / "data/corpus/stats.json")["documents"]["count"]),
            "texts": describe_texts(project / "data", shown),
            "relevance": dict(shown.relevance),
            "metric": parameters.report.metric,
            "systems": list(all_systems.names),
            "left_out": list(all_systems.left_out),
        }
        data = project / "data"
        extra_results.write(name, about, parameters.report, metrics=project / METRICS, values=data / "values", qrels=data / "corpus/qrels")
