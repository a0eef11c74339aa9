"""`retemper preview`: BM25, the encoder as it is, and one short training, measured on dev queries of a sample.

Stage prepare reads all of the data, in the project itself, so that its mistakes are found, and the next run need not repeat it. The sample
is then the data set of an ordinary run in a second tree over the shared cache. Stages have the same names there as in the project, so
`retemper run --dry-run` knows their times afterwards.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any, Protocol

from flows.evaluating.evaluate import AS_IT_IS, Plan, absolute_encoder, second_run
from flows.evaluating.extra_results import ExtraResults, legend, pairwise_tests
from flows.parameters import edit
from flows.parameters.checks import PARAMS, check
from flows.parameters.needs import EMPTIED
from flows.parameters.sources import source_keys
from flows.pipeline import run as pipeline
from flows.previewing.sample import LEAST, SHARES, Sample, draw
from flows.process import locks
from flows.process.display import Display, text_table
from flows.process.problems import RunFailed, print_problems
from flows.process.processes import Processes, stopping_on_signals
from flows.results.fusions import BM25
from flows.results.metrics import METRICS, read_metrics
from tasks.core.errors import UserError
from tasks.core.params.safe_yaml import parse_yaml
from tasks.core.plurals import counted
from tasks.core.sources.datasets import local_path
from tasks.params import Parameters

FOLDER = Path(".retemper/preview")  # the sample, and what the next preview can reuse
CORPUS, WEIGHTS = Path("data/corpus"), Path("data/weights/train.parquet")
PREPARE = "prepare"
FIRST = ("bm25", "random", "none")  # negatives that need neither an earlier round nor the source's own
OF_THE_DATA = ("dataset", "queries", PREPARE)  # keys that stage prepare has read already


class Trained(Protocol):
    """A round of params.yaml."""

    @property
    def init(self) -> str: ...
    @property
    def batch_queries(self) -> int: ...


@dataclass(frozen=True)
class Systems:
    """The systems to measure: `start`, a round that is the encoder as it is, and `trained`, the round that trains, if any."""

    start: str
    trained: str | None
    rounds: Mapping[str, Mapping[str, Any]]


def preview(documents: int, *, name: str | None = None, sets: Sequence[str] = ()) -> int:
    """Print the results of BM25, the start encoder, and round `name` (default: the first possible) on a sample; return the exit status.

    `sets`: edits of the parameters as in --set, for this preview only. Raises UserError if there is nothing to measure.
    """
    if documents < LEAST:
        raise UserError(f"--documents {documents}: expected at least {LEAST}, for {LEAST // SHARES['dev']} dev queries")
    refuse_data_edits(sets)
    text = edit.read_text(PARAMS)
    sections = dict[str, Any](parse_yaml(edit.apply_to_text(text, sets, check, by_user=True) or text))
    parameters = check(sections)
    chosen = systems(sections, name)
    try:
        pipeline.run([PREPARE], nested=True)
    except pipeline.StagesFailed as failed:
        print_problems(failed.problems)
        return failed.status
    processes, display = Processes(), Display()
    with stopping_on_signals(processes), locks.wait_and_hold(FOLDER / "turn", lambda: display.line("waiting for another preview to end")):
        sample = draw(CORPUS, WEIGHTS, documents, to=FOLDER / "data", trains=parameters.queries == "corpus")
        queries = sample.queries["train"].drawn if parameters.queries == "corpus" else sample.documents.drawn // SHARES["train"]
        if chosen.trained and not queries:
            if name:
                raise UserError(f"--round {name}: {CORPUS}: found no train queries with relevant documents, expected some to train on")
            chosen = Systems(chosen.start, None, {chosen.start: chosen.rounds[chosen.start]})
        steps = math.ceil(queries / parameters.rounds[chosen.trained].batch_queries) if chosen.trained else 0
        display.line(f"preview: {describe_sample(sample)}")
        plan = Plan("preview", targets(chosen), [*sets, *edits(sections, chosen, steps=steps)], [])
        try:
            with second_run(plan, FOLDER, processes=processes, display=display) as project:
                results = read_results(project / "data", parameters, chosen)
        except RunFailed as failed:
            print_problems([failed.problem])
            return failed.problem.status
    pseudo_dev = parameters.queries == "pseudo" and (parameters.pseudo.dev == "pseudo" or not sample.queries["dev"].drawn)
    trained, training_line = chosen.trained, ""
    if trained:
        training_line = describe_training(trained, parameters.rounds[trained], steps, origin=chosen.rounds[trained]["init"])
    display.line(f"\n{summary(results, sample, trained=training_line, pseudo_dev=pseudo_dev)}")
    return 0


def refuse_data_edits(sets: Sequence[str]) -> None:
    """Raise UserError for an edit that would change the data that the sample is drawn from."""
    for setting in sets:
        if setting.partition("=")[0].partition(".")[0].strip() in OF_THE_DATA:
            raise UserError(
                f"--set {setting}: a preview samples the project's data; set this first: retemper run {PREPARE} --set {setting}"
            )


def systems(sections: Mapping[str, Any], name: str | None) -> Systems:
    """The rounds of a preview: the encoder as it is, then `name` or the first round that trains without an earlier one."""
    rounds: Mapping[str, Mapping[str, Any]] = sections.get("rounds") or {}
    if name is not None and name not in rounds:
        raise UserError(f"--round {name}: found no such round in {PARAMS}, expected one of {', '.join(rounds) or 'its rounds (none yet)'}")
    trainable = [round_name for round_name, entry in rounds.items() if entry.get("steps") != 0 and not _needs(entry, sections)]
    if name is not None and (needs := _needs(rounds[name], sections)):
        hint = f", such as {', '.join(trainable)}" if trainable else ""
        raise UserError(f"--round {name}: needs {needs}, expected a round that needs no earlier one{hint}")
    trained = name or next(iter(trainable), None)
    origin = _origin(rounds[trained], sections) if trained else "base"
    untrained = [round_name for round_name, entry in rounds.items() if entry.get("steps") == 0 and entry.get("init") == origin]
    start = trained if trained and trained in untrained else next(iter(untrained), None) or _free_name(rounds, sections)
    chosen = {start: dict(rounds.get(start, AS_IT_IS | {"init": origin}))}
    if trained and trained != start:
        chosen[trained] = {**rounds[trained], "init": origin}
    return Systems(start, trained if trained != start else None, chosen)


def _free_name(rounds: Mapping[str, Any], sections: Mapping[str, Any]) -> str:
    """A name for the encoder as it is that no round and no encoder has."""
    used = {*rounds, *(sections.get("encoders") or {})}
    names = chain(("start", "as_it_is"), (f"as_it_is_{number}" for number in count(2)))
    return next(name for name in names if name not in used)


def _needs(entry: Mapping[str, Any], sections: Mapping[str, Any]) -> str:
    """What a round needs that a preview does not have; empty if it can be trained by itself, or is an encoder as it is."""
    is_trained = entry.get("steps") != 0
    pretrained = sections.get("pretrain") or () if is_trained else ()  # a training may start from base in its place
    if entry.get("init") not in {"base", *pretrained, *(sections.get("encoders") or {})}:
        return f"init: {entry.get('init')}"
    if is_trained and entry.get("negatives") not in FIRST:
        return f"negatives: {entry.get('negatives')}"
    return ""


def _origin(entry: Mapping[str, Any], sections: Mapping[str, Any]) -> str:
    """The encoder that a round starts from; base, if that is an entry of pretrain."""
    return str(entry["init"]) if entry.get("init") in (sections.get("encoders") or {}) else "base"


def edits(sections: Mapping[str, Any], chosen: Systems, *, steps: int) -> list[str]:
    """The edits of params.yaml in the second tree: the sample, the rounds of the preview, and nothing else that would take time."""
    unread = {"negatives": "none"}  # a round of no steps reads none, and those that it names are not made here
    rounds = {name: {**entry, **(unread if entry.get("steps") == 0 else {})} for name, entry in chosen.rounds.items()}
    if chosen.trained:
        full_training = {"steps": steps, "train_queries": None, "train_share": 1.0}
        rounds[chosen.trained] = {key: value for key, value in rounds[chosen.trained].items() if key != "epochs"} | full_training
    values = dict[str, Any]({section: {} for section in EMPTIED}) | {
        "dataset.source": f"parquet:{(FOLDER / 'data').resolve()}",
        "articles.source": "demo",
        "prepare.leaks": "drop",  # dev may be drawn from train queries, of which two may have the same text
        "prepare.official_depth": 0,
        "failures": {},
        "extra": {},
        "rounds": rounds,
    }
    for key, place in source_keys({name: sections.get(name) for name in ("encoder", "encoders", "pseudo")}):
        values[key] = absolute_encoder(place) if key != "pseudo.generator" or local_path(place).exists() else place
    return [edit.setting(key, value) for key, value in values.items()]


def targets(chosen: Systems) -> list[str]:
    """The stages of a preview."""
    return [f"evaluate_{BM25}", *(f"evaluate@{round_name}" for round_name in chosen.rounds)]


def read_results(data: Path, parameters: Parameters, chosen: Systems) -> ExtraResults:
    """The results of the systems on dev, and the tests between them, from the artifacts in folder `data`."""
    about = {"metric": parameters.report.metric, "systems": [BM25, *chosen.rounds], "left_out": []}
    tests = pairwise_tests(data / "values", about, parameters.report, qrels=_qrels(data))
    return ExtraResults("preview", about, read_metrics(data.parent / METRICS), tests)


def _qrels(data: Path) -> Path:
    """The folder of the judgments used: those of pseudo-queries if there are any, else the corpus's."""
    pseudo_qrels = data / "pseudo/qrels"
    return pseudo_qrels if pseudo_qrels.is_dir() else data / "corpus/qrels"


def describe_sample(sample: Sample) -> str:
    """`2,000 of 10,033 documents, 100 of 930 queries of dev, 1,000 of 7,373 queries of train`."""
    parts = [f"{sample.documents.drawn:,} of {counted(sample.documents.all, 'documents')}"]
    for split, part in sample.queries.items():
        if part.drawn:
            parts.append(f"{part.drawn:,} of {counted(part.all, f'queries of {split}')}")
    return ", ".join(parts) + ("; dev is held out of train, as the data has none" if sample.held_out else "")


def describe_training(name: str, entry: Trained, steps: int, *, origin: str) -> str:
    """How the round `entry` of params.yaml was trained here: for `steps`, from `origin`."""
    note = "" if entry.init == origin else f" from {origin}, in place of {entry.init}"
    return f"{name}: {counted(steps, 'steps')} of {counted(entry.batch_queries, 'queries')}{note}; a full run has its own steps or epochs"


def summary(results: ExtraResults, sample: Sample, *, trained: str, pseudo_dev: bool) -> str:
    """The table, and how to read it, for a terminal. `trained`: a line on the training; `pseudo_dev`: dev queries are pseudo-queries."""
    lines = [f"preview, dev, {results.queries('dev')}", text_table(*results.rows("dev", "")), *legend(results, "")]
    if trained:
        lines.append(trained)
    if pseudo_dev:
        lines.append("dev queries are copied from documents, which favors BM25: compare encoders with each other")
    if sample.documents.drawn < sample.documents.all:
        scope = f"on {sample.documents.drawn:,} of {counted(sample.documents.all, 'documents')}"
        lines.append(f"{scope}: figures are usually higher than on all of them, and systems may rank differently")
    return "\n".join([*lines, "next: retemper run --dry-run (times estimated from this preview), then retemper run"])
