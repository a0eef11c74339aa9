"""DVC experiments as git has them: refs/exps/BASELINE/NAME, each a commit with params.yaml and dvc.lock. Saved and read here by git alone.

`dvc exp show | branch | push | pull` work on them. So does `dvc exp apply`, but it ends with status 255 if the cache lacks a stage's outs,
as for stages that a sweep's targets do not need. DVC's own `exp save` is not used: it goes through one set of refs (refs/exps/exec), so
two that end at the same time would overwrite each other's, and it reads every artifact again.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from flows.process.display import text_table
from flows.repository.git import git
from flows.repository.lock import Lock, lock_of, mapping_at
from flows.repository.tags import prefix_of
from flows.repository.worktree import code_files
from flows.results.generations import outdated
from flows.storage.cache import cache_folder, intact_path
from tasks.core.errors import UserError, printable
from tasks.core.metrics.selection import METRIC, best_system, metric_of
from tasks.core.plurals import counted

PARAMS = "params.yaml"
REF = re.compile(r"refs/exps/([0-9a-f]{2})/([0-9a-f]{38})/([^/]+)")
INPUTS = "Retemper-Inputs: "  # trailer of an experiment's message: digest of what it was computed from
PROJECT = "Retemper-Project: "  # likewise: the project's folder in its repository, ./ or such as ./law/; older messages have none


@dataclass(frozen=True)
class Experiment:
    """A stored experiment. `metrics` holds the models whose metrics this clone's cache has: {model: {split: {measure: value}}}.

    `lacking`: the models whose metrics it lacks, or has corrupt.
    """

    name: str
    commit: str
    baseline: str
    inputs: str
    params: Mapping[str, Any]  # by dotted key
    metrics: Mapping[str, Mapping[str, Mapping[str, float]]]
    lacking: Sequence[str] = ()


def save(tree: Path, baseline: str, name: str, *, inputs: str, files: Sequence[str]) -> str:
    """Store the working tree `tree` as experiment `name` on top of `baseline`; return its commit.

    It holds what git tracks, new code, and `files`. `tree`'s own index is not changed.
    """
    index = git("rev-parse", "--git-path", "retemper-index", folder=tree)
    path = str((tree / index).absolute())
    Path(path).unlink(missing_ok=True)
    indexed = partial(git, folder=tree, env={"GIT_INDEX_FILE": path})
    try:
        indexed("read-tree", baseline)
        indexed("add", "--update", ".")
        existing = [file for file in [*code_files(tree), *files] if (tree / file).exists()]
        indexed("add", "--force", "--", *existing, ":(exclude,glob)**/__pycache__/**")
        content = indexed("write-tree")
    finally:
        Path(path).unlink(missing_ok=True)
    message = f"retemper: experiment {name}\n\n{INPUTS}{inputs}\n{PROJECT}./{prefix_of(tree)}\n"
    commit = git("commit-tree", content, "-p", baseline, folder=tree, text=message)
    git("update-ref", f"{folder_of(baseline)}/{name}", commit, folder=tree)
    return commit


def folder_of(baseline: str) -> str:
    """The folder of refs for the experiments on a baseline."""
    return f"refs/exps/{baseline[:2]}/{baseline[2:]}"


def list_experiments(baseline: str | None = None) -> list[Experiment]:
    """The experiments of the project in the current folder, or only those on `baseline`, oldest first.

    Refs are the repository's: those of a project in another folder of it are left out.
    """
    cache, place = cache_folder(), f"./{prefix_of(Path())}"
    listed = git("for-each-ref", "--sort=creatordate", "--format=%(refname)", "refs/exps").splitlines()
    experiments = []
    for match in filter(None, map(REF.fullmatch, listed)):
        base = match[1] + match[2]
        if baseline in (None, base) and _trailer(git("show", "-s", "--format=%B", match[0]), PROJECT) in ("", place):
            experiments.append(read(match[3], match[0], base, cache=cache))
    return experiments


def read(name: str, ref: str, baseline: str, *, cache: Path) -> Experiment:
    """One experiment, with its metrics from the cache."""
    commit = git("rev-parse", ref)
    inputs = _trailer(git("show", "-s", "--format=%B", commit), INPUTS)
    lock = lock_of(commit, name) or {}
    metrics = cached_metrics(lock, cache)
    params = flatten(mapping_at(commit, PARAMS))
    return Experiment(name, commit, baseline, inputs, params, metrics, sorted(metric_digests(lock).keys() - metrics.keys()))


def _trailer(message: str, key: str) -> str:
    """The value of a trailer of an experiment's message; empty if it has none."""
    return next((line.removeprefix(key) for line in message.splitlines() if line.startswith(key)), "")


def cached_metrics(lock: Lock, cache: Path) -> dict[str, Any]:
    """The metrics of a dvc.lock's models, as far as this clone's cache has them intact, without those of an earlier generation."""
    files = {model: intact_path(cache / "files" / "md5", oid) for model, oid in metric_digests(lock).items()}
    return {model: json.loads(file.read_text(encoding="utf-8")) for model, file in files.items() if file}


def metric_digests(lock: Lock) -> dict[str, str]:
    """The digest of every model's metrics in a dvc.lock, without those of an earlier generation."""
    late = outdated(lock)
    return {
        path.stem: str(out["md5"])
        for name, entry in lock.items()
        for out in entry.get("outs", [])
        if name not in late and (path := Path(out["path"])).parent == Path("data/metrics") and path.suffix == ".json"
    }


def best_model(name: str, lock: Lock, sections: Mapping[str, Any]) -> str:
    """The best model of a dvc.lock on dev by report.metric. UserError as of `means_on_dev`."""
    return best_system(means_on_dev(name, lock, sections), sections)


def means_on_dev(name: str, lock: Lock, sections: Mapping[str, Any]) -> dict[str, float]:
    """Every model's report.metric on dev. UserError, beginning with `name`, if metrics are missing or corrupt."""
    metric, found = metric_of(sections), cached_metrics(lock, cache_folder())
    means = {model: splits["dev"][metric] for model, splits in found.items() if metric in splits.get("dev", {})}
    if not means:
        raise UserError(f"{name}: this clone's cache has none of its metrics on dev; run dvc fetch --all-commits, or name REVISION:MODEL")
    if lacking := sorted(metric_digests(lock).keys() - found.keys()):
        raise UserError(
            f"{name}: metrics of {', '.join(lacking)} are missing from this clone's cache, or corrupt, so its best model is unknown; "
            "run retemper verify, then dvc fetch --all-commits, or name REVISION:MODEL"
        )
    return means


def value_at(sections: Mapping[str, Any], key: str) -> Any:
    """The value at a dotted key; None if there is none."""
    value: Any = sections
    for name in key.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    """A nested mapping by dotted key; an empty one is a value."""
    if not isinstance(value, dict) or (not value and prefix):
        return {prefix: value}
    return {k: v for name, below in value.items() for k, v in flatten(below, f"{prefix}.{name}" if prefix else str(name)).items()}


def table(experiments: Sequence[Experiment], test: bool) -> str:
    """A row for each experiment: the parameters in which they differ, and `report.metric` of every model on dev (and on test)."""
    keys = [
        key
        for key in dict.fromkeys(key for experiment in experiments for key in experiment.params)
        if len({_text(experiment, key) for experiment in experiments}) > 1
    ]
    models = list(dict.fromkeys(model for experiment in experiments for model in experiment.metrics))
    splits = ["dev", "test"] if test else ["dev"]
    measure = next((str(experiment.params["report.metric"]) for experiment in experiments if "report.metric" in experiment.params), METRIC)
    columns = [
        (split, model)
        for split in splits
        for model in models
        if any(split in experiment.metrics.get(model, {}) for experiment in experiments)
    ]
    header = ["experiment", *keys, *(f"{split} {model}" for split, model in columns)]
    rows = [
        [experiment.name, *(_text(experiment, key) for key in keys), *(_figure(experiment, s, m, measure=measure) for s, m in columns)]
        for experiment in experiments
    ]
    return f"{measure}\n{text_table(header, rows)}"


def show(test: bool, as_json: bool) -> None:
    """Print the experiments of every baseline, as tables or as JSON."""
    experiments = list_experiments()
    if as_json:
        rows = [asdict(experiment) for experiment in experiments]
        for row in rows if not test else []:
            row["metrics"] = {model: {s: v for s, v in splits.items() if s != "test"} for model, splits in row["metrics"].items()}
        print(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    for baseline in dict.fromkeys(experiment.baseline for experiment in experiments):
        print(f"based on {printable(git('show', '-s', '--format=%h %s', baseline))}")
        print(printable(table([experiment for experiment in experiments if experiment.baseline == baseline], test)))
        print(f"to adopt one: git restore --source={folder_of(baseline)}/NAME {PARAMS} dvc.lock, then retemper run\n")
    print(f"{counted(len(experiments), 'experiments')}; dvc exp push origin NAME shares one with colleagues")


def _text(experiment: Experiment, key: str) -> str:
    value = experiment.params.get(key, "")
    return value if isinstance(value, str) else json.dumps(value)


def _figure(experiment: Experiment, split: str, model: str, *, measure: str) -> str:
    value = experiment.metrics.get(model, {}).get(split, {}).get(measure)
    return f"{value:.4f}" if isinstance(value, int | float) else ""
