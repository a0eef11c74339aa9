"""The two sides of a difference: a champion or another revision, its model, and what that model was made from."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.champions.champion import read_champions
from flows.experiments.store import cached_metrics, means_on_dev, value_at
from flows.parameters.checks import SYSTEMS
from flows.parameters.needs import NEGATIVES
from flows.repository.lock import Lock, commit_of, lock_of, mapping_at, parameters, read_blob, tracked
from flows.repository.worktree import SOURCE
from flows.results.fusions import BM25
from flows.results.generations import outdated
from flows.storage.cache import cache_folder, intact_path, listing
from flows.team.lineage import ancestors
from tasks.core.errors import UserError
from tasks.core.metrics.selection import best_system, metric_of
from tasks.core.stage.frozen import CODE
from tasks.core.stage.references import frozen_references

ENTRIES = dict.fromkeys(("encoders", "pretrain", *SYSTEMS, *NEGATIVES, "study", "analyses"))  # sections with an entry for each name
PSEUDO = "pseudo"  # the section, the stage, and a value of `queries` and of pseudo.dev
YARDSTICK = ("evaluate", "retrieve", "report")  # sections that say how models are measured, always taken from the newer side
DATA = ("dataset", "articles")  # entries of data/source.json for the data; the others are encoders that params.yaml names


@dataclass(frozen=True)
class Side:
    """A revision and its model. `stages`: the entries of its dvc.lock that made the model, up to its metrics.

    `sections`: params.yaml, with only those rounds, negatives, and other entries that the model is made from.
    """

    name: str
    commit: str
    model: str
    stages: Lock
    sections: Mapping[str, Any]
    source: Mapping[str, Any]
    graph: Mapping[str, Any]
    measure: str  # the champion's, or report.metric
    recorded: Mapping[str, Any]  # the model's metrics, if this clone's cache has them
    note: str = ""  # why the model is not the best system on dev

    @property
    def evaluation(self) -> str:
        """The stage that measured the model."""
        return next(reversed(list(self.stages)))


@dataclass(frozen=True)
class Factor:
    """Something that differs between two sides and can be old or new independently, and how it differs, in words."""

    name: str
    sections: tuple[str, ...] = ()  # of params.yaml
    batches: tuple[str, ...] = ()  # of the inbox
    data: bool = False  # the data as a whole
    code: bool = False
    model: bool = False  # which model is measured
    differs: tuple[str, ...] = ()


def read_side(name: str) -> Side:
    """The side called `name`: champion/N, REVISION:MODEL, or a REVISION, which stands for its best model on dev other than BM25.

    Raises UserError if git lacks it, or its commit does not say what its model was made from.
    """
    champions = read_champions(Path.cwd())
    champion = next((one for one in champions if name == f"champion/{one.number}"), None)
    if champion is None and re.fullmatch(r"champion/\d+", name):
        last = f"the last is champion/{champions[-1].number}" if champions else "there is none yet"
        raise UserError(f"{name}: no such champion; {last}")
    revision, colon, model = name.rpartition(":")
    commit = champion.commit if champion else commit_of(revision if colon else name)
    lock = lock_of(commit, name)
    if lock is None:
        raise UserError(f"{name}: its commit has no dvc.lock, which says what its model was made from; commit it after a run")
    sections = mapping_at(commit, "params.yaml")
    source = _source(name, commit)
    measure = (champion.measure if champion else "") or metric_of(sections)
    note = ""
    if champion or colon:
        model = champion.model if champion else model
    else:
        model, note = _best_model(name, lock, sections)
    stage = next((one for one, entry in lock.items() if _makes(entry, f"data/metrics/{model}.json")), None)
    if stage is None:
        raise UserError(f"{name}: its dvc.lock has no metrics of {model}, expected a model that its run measured; name REVISION:MODEL")
    if replaced := outdated(lock).get(stage):
        raise UserError(f"{name}: {model} was measured before {replaced} was replaced; run retemper run there, and commit dvc.lock")
    stages = {one: lock[one] for one in ancestors(lock, stage)}
    model_sections = _of_model(sections, stages)
    recorded = cached_metrics(lock, cache_folder()).get(model, {})
    graph = mapping_at(commit, "dvc.yaml").get("stages") or {}
    return Side(name, commit, model, stages, model_sections, source, graph, measure, recorded, note)


def refuse_made_dev(old: Side, new: Side, *, direct: bool) -> None:
    """Raise UserError if stage pseudo made the dev queries, and the models of a split would be measured on different ones.

    It makes them of the data, with BM25 and the start encoder as judges. `direct`: whether every model is measured by the run that trains
    it; otherwise it is measured in a run of its own, whose start encoder is the model.
    """
    if not (_makes_dev(old) or _makes_dev(new)) or (direct and _dev(old) == _dev(new)):
        return
    raise UserError(
        f"{old.name} and {new.name}: found dev queries made from the documents (pseudo.dev), which change with data, parameters, and code, "
        "expected the same for every model between the two; give the source dev queries, and set pseudo.dev=corpus"
    )


def _makes_dev(side: Side) -> bool:
    """Whether stage pseudo made the dev queries; if it copied those of the source, it did not."""
    if side.sections.get("queries") != PSEUDO:
        return False
    if dev := (side.sections.get(PSEUDO) or {}).get("dev"):
        return bool(dev == PSEUDO)
    objects = cache_folder() / "files" / "md5"
    outs = [str(out.get("md5", "")) for out in side.stages.get(PSEUDO, {}).get("outs") or []]
    stats = [intact_path(objects, listing(objects, oid).get("stats.json", "")) for oid in outs]
    return not any(path and json.loads(path.read_text(encoding="utf-8")).get("pseudo", {}).get("dev") == "corpus" for path in stats)


def _dev(side: Side) -> dict[str, Any]:
    """The digests of the dev queries and judgments that the model was measured on."""
    return {dep["path"]: dep.get("md5") for dep in side.stages[side.evaluation].get("deps") or [] if dep["path"].endswith("dev.parquet")}


def factors(old: Side, new: Side) -> list[Factor]:
    """The factors that differ between two sides: data, each section of params.yaml, the model, and code; none if all records agree."""
    differing = []
    if digests := _differing(_tracked(old, SOURCE), _tracked(new, SOURCE), DATA):
        lines = [f"{key.partition('.')[0]}: {_digest(old, key)} -> {_digest(new, key)}" for key in digests]
        differing.append(Factor("data", data=True, differs=tuple(lines)))
    by_section: dict[str, list[str]] = {}
    for key in sorted(_keys(old) | _keys(new)):
        if key.partition(".")[0] not in YARDSTICK:
            for line in _lines(key, value_at(old.sections, key), value_at(new.sections, key)):
                by_section.setdefault(key.partition(".")[0], []).append(line)
    for key in _differing(_tracked(old, SOURCE), _tracked(new, SOURCE)):
        if key.partition(".")[0] not in DATA:
            by_section.setdefault(key.partition(".")[0], []).append(f"{key}: {_digest(old, key)} -> {_digest(new, key)}")
    differing += [Factor(section, sections=(section,), differs=tuple(lines)) for section, lines in by_section.items()]
    if old.model != new.model:
        differing.append(Factor("model", model=True, differs=(f"{old.model} -> {new.model}",)))
    if lines := _code(old, new):
        differing.append(Factor("code", code=True, differs=(", ".join(lines),)))
    return differing


def join_factors(name: str, several: list[Factor]) -> Factor:
    """Several factors as one."""
    return Factor(
        name,
        tuple(section for factor in several for section in factor.sections),
        tuple(batch for factor in several for batch in factor.batches),
        data=any(factor.data for factor in several),
        code=any(factor.code for factor in several),
        model=any(factor.model for factor in several),
        differs=tuple(line for factor in several for line in factor.differs),
    )


def _best_model(name: str, lock: Lock, sections: Mapping[str, Any]) -> tuple[str, str]:
    """The best model on dev other than BM25, and a line if BM25 is better. BM25 if there is no other model."""
    means = means_on_dev(name, lock, sections)
    model = best_system({other: mean for other, mean in means.items() if other != BM25} or means, sections)
    if model == best_system(means, sections):
        return model, ""
    better = f"{metric_of(sections)} {means[BM25]:.4f}, {model} {means[model]:.4f}"
    return model, f"{name}: BM25 is the best on dev ({better}), but is not trained, so {model} is explained; for BM25, name {name}:{BM25}"


def _makes(entry: Mapping[str, Any], path: str) -> bool:
    return any(out["path"] == path for out in entry.get("outs") or [])


def _source(name: str, commit: str) -> Mapping[str, Any]:
    source = json.loads(read_blob(commit, SOURCE) or "{}")
    if not source.get("dataset", {}).get("digest"):
        raise UserError(f"{name}: its commit has no record of its data ({SOURCE}), so it cannot be trained again; commit that file")
    return dict(source)


def _of_model(sections: Mapping[str, Any], stages: Lock) -> dict[str, Any]:
    """`sections` with only the entries that these `stages`, which made the model, depend on."""
    used = {tuple(key.split(".")[:2]) for entry in stages.values() for key in parameters(entry)}
    return {
        section: {name: entry for name, entry in (value or {}).items() if (section, name) in used} if section in ENTRIES else value
        for section, value in sections.items()
    }


def _keys(side: Side) -> set[str]:
    """The keys of params.yaml that the model depends on: `rounds.star`, `bm25`."""
    return {key for entry in side.stages.values() for key in parameters(entry)}


def _lines(key: str, old: Any, new: Any) -> list[str]:
    """How a value differs, by the deepest keys: `rounds.star.lr: 1e-05 -> 2e-05`."""
    if old == new:
        return []
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return [line for below in dict.fromkeys((*old, *new)) for line in _lines(f"{key}.{below}", old.get(below), new.get(below))]
    shown = ("not given" if value is None else "given" if isinstance(value, Mapping) else json.dumps(value) for value in (old, new))
    return [f"{key}: {' -> '.join(shown)}"]


def _tracked(side: Side, file: Path | str) -> dict[str, Any]:
    return tracked(file, *side.stages.values())


def _differing(old: Mapping[str, Any], new: Mapping[str, Any], sections: tuple[str, ...] = ()) -> list[str]:
    keys = sorted(key for key in {*old, *new} if old.get(key) != new.get(key))
    return [key for key in keys if not sections or key.partition(".")[0] in sections]


def _digest(side: Side, key: str) -> str:
    return str(_tracked(side, SOURCE).get(key, "none"))[:10]


def _code(old: Side, new: Side) -> list[str]:
    """The model's stages whose code, or definition in dvc.yaml, differs, such as `train`; also named functions and files of code."""
    old_digests, new_digests = _tracked(old, CODE), _tracked(new, CODE)
    old_digests, new_digests = old_digests | _named(old), new_digests | _named(new)
    names = [key for key in sorted(old_digests.keys() & new_digests.keys()) if old_digests[key] != new_digests[key]]
    bases = dict.fromkeys(stage.partition("@")[0] for stage in (*old.stages, *new.stages))
    names += [stage for stage in bases if stage in old.graph and stage in new.graph and old.graph[stage] != new.graph[stage]]
    names += [stage for stage in bases if (stage in old.graph) != (stage in new.graph)]
    names += _differing(code_files(*old.stages.values()), code_files(*new.stages.values()))
    return list(dict.fromkeys(names))


def _named(side: Side) -> dict[str, str]:
    """Digests of the functions that the model's parameters name."""
    return frozen_references([dict(parameters(entry)) for entry in side.stages.values()])


def code_files(*entries: Mapping[str, Any]) -> dict[str, Any]:
    """The digests of files of code that these stages depend on directly, not by data/code.json."""
    deps = [dep for entry in entries for dep in entry.get("deps") or []]
    return {dep["path"]: dep.get("md5") for dep in deps if not dep["path"].startswith("data/")}
