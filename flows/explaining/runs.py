"""Counterfactual trainings: the code of one revision with any parameters and data, as ordinary runs in a second tree over the cache.

The flow around the stages is the current one; tasks/ and dvc.yaml are the revision's. Whatever was computed before, here or by a
colleague, is taken from the cache, and the figures of finished runs are kept, so a killed command resumes.
"""

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import flows
from flows.champions.measurement import measured_sections, values
from flows.champions.parts import Parts, has_own_index, parts_of
from flows.evaluating.evaluate import AS_IT_IS
from flows.experiments.table import evaluations
from flows.measuring import timing
from flows.parameters.sources import KEEP_SOURCE, Memory, describe, list_encoder
from flows.pipeline import server
from flows.process.problems import RunFailed
from flows.process.processes import Processes, Stopped
from flows.repository.lock import LOCK, Lock, corpus_of, read_lock, stages_in_graph
from flows.repository.worktree import SOURCE, equip, link_sources, make_worktree, remove_worktree, run_in, tree_place
from flows.results.metrics import METRICS
from flows.storage.remote import WARNING
from tasks.core.errors import USER_ERROR, DiskError, GpuFailed, InputChanged, MemoryFull, Problem, UserError, WorkersLost
from tasks.core.files import read_json, write_json, write_text
from tasks.core.statistics.clusters import read_groups
from tasks.core.training.companions import LEARNED
from tasks.params import Parameters

RUN = (sys.executable, "-m", "flows.pipeline.alone")
FLOWS = str(Path(flows.__file__).resolve().parents[1])
TRAINED = {"rounds": "train", "adore": "adore", "fuse": "fuse"}  # the stage that makes an entry
TRAININGS = ("train", "adore", "pretrain", "reranker")
# problems that are not due to a configuration
OF_MACHINE = tuple(error.kind for error in (DiskError, MemoryFull, GpuFailed, WorkersLost, InputChanged))
TREES = ("tree", "measure")
CHECK = """
import json, sys
from pathlib import Path
from flows.parameters.checks import check
from tasks.core.errors import UserError
found = {}
for name in sys.argv[2:]:
    try:
        check(json.loads(Path(name).read_text(encoding="utf-8")), "params.yaml")
    except UserError as error:
        found[name] = str(error)
Path(sys.argv[1]).write_text(json.dumps(found), encoding="utf-8")
"""


class Refused(UserError):
    """A run refused what it was given: parameters that its code does not know, or data that is lost."""


@dataclass(frozen=True)
class Configuration:
    """What a model is made from: code of a commit, sections of params.yaml, entries of data/source.json."""

    commit: str
    sections: Mapping[str, Any]
    source: Mapping[str, Any]
    model: str


@dataclass(frozen=True)
class Measured:
    """The measure of a model on dev: its mean, as in the metrics, its values by query, and the group of each query (read_groups)."""

    mean: float
    values: Mapping[str, float]
    groups: Mapping[str, str]


class Bench:
    """Trains and measures configurations, one at a time, in trees below `folder`. The current folder is the project's.

    Use it as a context. After a user's mistake, it removes its trees, except those that existed before. If the machine or a stage failed,
    or the user stopped it, the trees stay, with their logs, and the next try resumes there.
    """

    def __init__(self, folder: Path, measure: str, processes: Processes, *, show: Callable[[str, str], None]) -> None:
        """`show` receives the label of a run and each line of its stages' output."""
        self._folder, self._measure, self._processes, self._show = folder, measure, processes, show
        self._memory = Memory()
        self._found = {name for name in TREES if (folder / name).exists()}  # of an earlier command, which may resume
        self._warned: set[str] = set()
        self.trained = 0  # runs with a training that neither the cache nor a colleague had

    def __enter__(self) -> "Bench":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, UserError) and error.kind not in OF_MACHINE:
            self.close(keep_found=True)

    def known(self, configuration: Configuration, yardstick: Configuration) -> Measured | None:
        """The result of an earlier run, or None."""
        try:
            return Measured(**json.loads(self._record(configuration, yardstick).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    def measured(self, configuration: Configuration, yardstick: Configuration, label: str) -> Measured:
        """Train `configuration`, and measure its model with the code, data, and settings of the `yardstick`.

        `label` names it in the output. Raises Refused or RunFailed if a run does not succeed.
        """
        if found := self.known(configuration, yardstick):
            return found
        room = self._folder / "tree"
        if is_direct(configuration, yardstick):
            place = self._run(room, configuration, evaluation(configuration), label=label)
        else:
            place = self._run(room, configuration, training(configuration), label=label)
            other = self._on(yardstick, configuration, place)
            place = self._run(self._folder / "measure", other, evaluation(other), label=label)
        metrics = read_json(place / METRICS / f"{configuration.model}.json")
        if self._measure not in metrics.get("dev", {}):
            raise UserError(
                f"{label}: found no {self._measure} on dev, expected one of {', '.join(metrics.get('dev', {})) or 'its measures'}"
            )
        by_query = values(place / "data/values" / configuration.model, self._measure)
        groups = read_groups(place / corpus_of(read_lock(place / LOCK)) / "qrels/dev.parquet")
        found = Measured(float(metrics["dev"][self._measure]), by_query, groups)
        write_json(self._record(configuration, yardstick), asdict(found))
        return found

    def refusals(self, configurations: Mapping[str, Configuration]) -> dict[str, str]:
        """By name of each refused configuration: why the code of its commit does not accept its parameters.

        A commit whose check cannot be run refuses none here; its stages report the problem later.
        """
        refusals: dict[str, str] = {}
        for commit in dict.fromkeys(configuration.commit for configuration in configurations.values()):
            tree = make_worktree(tree_place(self._folder / "tree"), commit)
            folder = self._folder.absolute() / "asked"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            files = {}
            for number, (name, configuration) in enumerate(configurations.items()):
                if configuration.commit == commit:
                    files[str(folder / f"{number}.json")] = name
                    report = {key: value for key, value in (configuration.sections.get("report") or {}).items() if key != "baselines"}
                    plain = {"failures": {}, "report": report}  # without names of systems that this configuration lacks
                    if not configuration.sections.get("rounds"):  # BM25 needs none, but a params.yaml has at least one
                        plain["rounds"] = {"untrained": AS_IT_IS}
                    write_json(folder / f"{number}.json", {**configuration.sections, **plain})
            path = os.pathsep.join([str(tree.absolute()), FLOWS])
            run_in(
                tree,
                (sys.executable, "-c", CHECK, str(folder / "found"), *files),
                self._processes,
                show=lambda _: None,
                env={"PYTHONPATH": path},
            )
            with suppress(OSError, ValueError):
                messages = json.loads((folder / "found").read_text(encoding="utf-8"))
                refusals |= {files[file]: message for file, message in messages.items()}
            shutil.rmtree(folder)
        return refusals

    def close(self, *, keep_found: bool = False) -> None:
        """Remove the trees. Their results are in the cache, and the figures are kept. `keep_found`: keep trees that existed before."""
        for name in TREES if not keep_found else [name for name in TREES if name not in self._found]:
            remove_worktree(self._folder / name)

    def _record(self, configuration: Configuration, yardstick: Configuration) -> Path:
        compared = [asdict(each) for each in (configuration, yardstick)]
        for each in compared:  # identified by content, wherever it is
            each["source"] = {key: entry.get("digest", entry) for key, entry in each["source"].items()}
            each["sections"] = {key: value for key, value in each["sections"].items() if key != "dataset"}
        digest = hashlib.sha256(json.dumps([self._measure, compared], sort_keys=True, default=str).encode()).hexdigest()
        return self._folder / "values" / f"{digest[:32]}.json"

    def _run(self, room: Path, configuration: Configuration, target: str, *, label: str) -> Path:
        """Bring `target` up to date in a tree in its `room`; return the project's folder in the tree."""
        if self._processes.stopped:
            raise Stopped
        place = make_worktree(tree_place(room), configuration.commit)
        write_text(place / "params.yaml", json.dumps(configuration.sections, indent=1, ensure_ascii=False) + "\n")  # JSON is YAML
        write_json(place / SOURCE, configuration.source)
        equip(place)
        link_sources(place, room)
        env = {
            "PYTHONPATH": os.pathsep.join(filter(None, [FLOWS, os.environ.get("PYTHONPATH", "")])),
            "PYTHONSAFEPATH": "1",  # the flow is ours, not the tree's
            KEEP_SOURCE: "1",
            "PREFECT_HOME": str(server.HOME.absolute()),
        }
        last = ""

        def show(line: str) -> None:
            nonlocal last
            if " | " in line:
                self._show(label, line)
            elif line.startswith(WARNING):
                if line not in self._warned:  # the same in every run: an unavailable remote
                    self._warned.add(line)
                    self._show(label, line)
            elif line.startswith("retemper: "):
                last = line.removeprefix("retemper: ")

        before = len(timing.read(place / timing.LOG))
        status, problems = run_in(place, (*RUN, target), self._processes, show=show, env=env)
        ran = [line["ended"] for line in timing.read(place / timing.LOG)[before:] if line.get("state") == "Ran"]
        self.trained += any(stage.partition("@")[0] in TRAININGS for stage in ran)
        if self._processes.stopped:
            raise Stopped
        if status:
            problem = problems[-1] if problems else Problem("pipeline", last or f"{target}: its run ended with status {status}", status)
            if problem.status == USER_ERROR and problem.kind not in OF_MACHINE:
                raise Refused(problem.message)
            raise RunFailed(Problem(problem.kind, f"{label}: {problem.message}", status))
        return place

    def _on(self, yardstick: Configuration, configuration: Configuration, place: Path) -> Configuration:
        """The configuration that measures the model of `configuration`, made in `place`, like the yardstick but as the model is served."""
        parts = _parts(configuration, place)
        folders = {name: _weights(configuration, place, name) for name in parts.encoders}
        sections = {**yardstick.sections, **_nested(measured_sections(configuration.sections, folders, parts.fusion))}
        entries = [describe(source, list_encoder(source), self._memory) for source in map(str, folders.values())]
        source = {key: entry for key, entry in yardstick.source.items() if key not in ("encoder", "encoders", "rerankers")}
        source |= {"encoder": entries[0], "encoders": dict(zip(sections["encoders"], entries[1:], strict=True))}
        return Configuration(yardstick.commit, sections, source, configuration.model)


def refuse_unmeasured(measure: str, sections: Mapping[str, Any]) -> None:
    """Raise UserError if runs with these parameters do not compute `measure`, before a training whose run would lack it."""
    evaluate: Any = Parameters.model_fields["evaluate"].annotation
    known = (sections.get("evaluate") or {}).get("measures", evaluate.model_fields["measures"].default)
    if measure not in known:
        raise UserError(f"--measure: found {measure}, expected one of evaluate.measures: {', '.join(map(str, known))}")


def is_direct(configuration: Configuration, yardstick: Configuration) -> bool:
    """Whether an ordinary run of `configuration` measures its model exactly as the yardstick does."""
    same = all(configuration.sections.get(key) == yardstick.sections.get(key) for key in ("queries", "prepare", "evaluate", "retrieve"))
    return (
        same
        and configuration.commit == yardstick.commit
        and all(configuration.source.get(key) == yardstick.source.get(key) for key in ("dataset", "articles"))
    )


def evaluation(configuration: Configuration) -> str:
    """The stage that measures a configuration's model. Raises Refused if its params.yaml has no model of that name."""
    stages = evaluations(configuration.sections)
    if configuration.model not in stages:
        raise Refused(f"{configuration.model}: no such model in params.yaml, expected one of {', '.join(stages)}")
    return stages[configuration.model]


def training(configuration: Configuration) -> str:
    """The stage that makes a configuration's model. Raises Refused for one that is not served: a reordered run, or BM25 alone."""
    for section, stage in TRAINED.items():
        if configuration.model in (configuration.sections.get(section) or {}):
            return f"{stage}@{configuration.model}"
    raise Refused(f"{configuration.model}: cannot be measured on other data, expected a round, an adore, or a fusion; name REVISION:MODEL")


def _parts(configuration: Configuration, place: Path) -> Parts:
    lock: Lock = stages_in_graph(
        read_lock(place / LOCK), (place / "dvc.yaml").read_text(encoding="utf-8"), json.dumps(configuration.sections)
    )
    parts = parts_of(lock, configuration.model, lambda path: read_json(place / path), where=f"{place}: dvc.lock", indexed=False)
    for name in parts.encoders:
        if has_own_index(configuration.sections, name) and not (place / "data/indexes" / name / LEARNED).exists():
            raise UserError(f"{name}: made before Retemper kept what its own index has learned, so it cannot be measured on other data")
    return parts


def _weights(configuration: Configuration, place: Path, name: str) -> Path:
    """The absolute folder of encoder `name`, to be used as a source; with what its own index has learned, if it has one."""
    encoder = (place / "data/encoders" / name).absolute()
    if not has_own_index(configuration.sections, name):
        return encoder
    combined = (place / ".retemper/measured" / name).absolute()
    shutil.rmtree(combined, ignore_errors=True)
    shutil.copytree(encoder, combined)
    shutil.copy(place / "data/indexes" / name / LEARNED, combined / LEARNED)
    return combined


def _nested(assignments: Mapping[str, Any]) -> dict[str, Any]:
    """Nested sections, from values given by key of a section (`encoder.source`) or by whole section."""
    nested: dict[str, Any] = {}
    for key, value in assignments.items():
        section, dot, name = key.partition(".")
        nested[section] = {name: value} if dot else value
    return nested
