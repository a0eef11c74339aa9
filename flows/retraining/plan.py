"""What a retraining does: its mode, and params.yaml for it. The current folder is the retrainings' worktree."""

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from flows.champions import champion, history, tree
from flows.champions.champion import Champion
from flows.champions.measurement import lost_index
from flows.champions.outs import Lost
from flows.champions.parts import Parts, encoder_digests, has_own_index, outs_of
from flows.intake.settings import FILE
from flows.parameters import edit
from flows.parameters.checks import check, systems
from flows.parameters.needs import SECTIONS, entries, keep_needed
from flows.repository.lock import current_lock, mapping_at, parameters, read_blob, tracked
from flows.results.fusions import SEARCHED, is_served
from flows.results.metrics import Metrics
from flows.retraining import starting
from flows.retraining.modes import FROM_CHAMPION, Choice, Descent, Retrain, choose
from flows.retraining.news import News, compare
from tasks.core.errors import UserError
from tasks.core.files import read_json, write_json
from tasks.core.params.sections import FROZEN, read_yaml
from tasks.core.stage.frozen import CODE
from tasks.core.stage.references import frozen_references
from tasks.core.training.companions import KNOWN, LEARNED

STARTS = Path(".retemper/starts")  # encoders of champions, by digest: the names go into params.yaml
SOURCE = Path("data/source.json")
TRAINING = ("tokenize", "train", "encode", "adore")  # stages whose code decides what a model is
UNTRAINED = (  # sections that change no model: what the data are, and how models are measured and shown
    "dataset",
    "articles",
    "retrieve",
    "evaluate",
    "extra",
    "failures",
    "report",
    "analyses",
    "study",
    "rerank",
    "rescore",
)


@dataclass(frozen=True)
class Planned:
    """The choice, and its record: see `Ended.how`. `systems`: those that may become champion; None: all."""

    choice: Choice
    how: Mapping[str, Any]
    systems: Sequence[str] | None = None

    def eligible(self, found: Metrics) -> Metrics:
        """The metrics of the systems that may become champion."""
        return found if self.systems is None else {name: found[name] for name in self.systems if name in found}


def make(
    project: Path, settings: Retrain, champions: Sequence[Champion], *, fused: bool = True, run: Callable[[Sequence[str]], None]
) -> Planned:
    """Decide how to retrain, and edit params.yaml for it. `run` brings stages up to date: the data set is prepared before the decision.

    `fused`: whether a fusion may become champion. Raises UserError if `settings.systems` names a system that may not become champion, and
    if a mode that was asked for is impossible, for example because the champion's encoder or corpus is lost: `auto` then retrains fully.
    """
    sections = read_yaml(Path("params.yaml"))
    _check_systems(settings, sections, fused=fused)
    if settings.mode == "full" or not champions:
        return _plan_full(Choice("full", "retrain.mode" if settings.mode == "full" else "there is no champion yet"), settings, sections)
    now = champions[-1]
    name, corpus = f"champion/{now.number}", "data/pseudo" if sections.get("queries") == "pseudo" else "data/corpus"
    run([Path(corpus).name if corpus == "data/pseudo" else "prepare"])
    record = _record(project, now, champions)
    source = read_json(SOURCE)  # up to date, by the run
    own, own_source = _of_commit(project, now)
    parts, origins = champion.parts_at(project, now), record.get("origins", {})
    start = starting.Start(name, now.model, parts, own, sections, origins, now.number, _why_index_is_lost(project, now))
    refused = starting.refusals(start, named=settings.systems, changes=settings.round, fused=fused)
    before = record.get("recipe") or recipe(_of_systems(settings, own), own_source)
    after = recipe(_of_systems(settings, sections), source)
    compared = {*before, *after}.difference(UNTRAINED)  # the recipe that an older version recorded may have more
    changed = [key for key in sorted(compared) if before.get(key) != after.get(key)] + _changed_code(project, now)
    if settings.systems is not None and start.origin not in settings.systems:
        changed.append(f"retrain.systems of {FILE}")
    try:
        news = _news(project, now, Path(corpus), parts=start.parts)
    except Lost as error:
        return _plan_without(name, error, settings, sections=sections)
    if settings.mode != "auto":
        starting.refuse(settings.mode, refused, f"{FILE}: retrain.mode")
    descent = Descent.of(_records(project, champions))
    choice = choose(settings, name, news, changed=changed, refused=refused, descent=descent)
    if choice.mode == "full":
        return _plan_full(choice, settings, sections)
    how: dict[str, Any] = {"mode": choice.mode, "why": choice.why}
    if choice.mode in FROM_CHAMPION and news:
        indexes = [part for part in parts.encoders if choice.mode != "continue" and has_own_index(own, part)]
        try:
            known = _known(project, now, start.parts, news=news, indexed=record.get("mode") == "index")
            sources = _fetch(project, now, parts, known=known, indexes=indexes)
        except Lost as error:
            return _plan_without(name, error, settings, sections=sections)
        new_sections, origins = starting.sections_of(choice.mode, start, settings, sources=sources)
        new_sections |= starting.baselines_of(new_sections, sections)
        where = f"{FILE}: retrain (params.yaml of this retraining)"
        edit.apply([edit.setting(key, value) for key, value in new_sections.items()], Path("params.yaml"), partial(check, where=where))
        counts = {key: value for key, value in asdict(news).items() if key != "known"}
        number = champion.earliest_same(champions, now).number
        how |= {"start": number, "news": counts, "origins": origins, "recipe": after}
        return Planned(choice, how, starting.candidates(choice.mode, start, new_sections, named=settings.systems))
    return Planned(choice, how)


def _why_index_is_lost(project: Path, now: Champion) -> str:
    """Why the champion's own index cannot take other documents: see `starting.Start`."""
    try:
        return lost_index(project, now) or ""
    except Lost as error:
        return str(error)


def _check_systems(settings: Retrain, sections: Mapping[str, Any], *, fused: bool) -> None:
    """Raise UserError if `settings.systems` names a system that cannot become champion, or params.yaml is invalid."""
    if settings.systems is None:
        return
    check(dict(sections))
    known = [name for section in (*SEARCHED, "fuse") if section != "fuse" or fused for name in entries(sections, section)]
    eligible = [name for name in known if is_served(name, sections)]
    if ineligible := [name for name in settings.systems if name not in eligible]:
        which = "rounds, entries of adore, and fusions that can be searched" if fused else "rounds and entries of adore"
        raise UserError(f"{FILE}: retrain.systems: found {ineligible[0]!r}, expected some of {', '.join(eligible)} ({which})")


def _of_systems(settings: Retrain, sections: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of params.yaml that `settings.systems` need."""
    return sections if settings.systems is None else keep_needed(sections, settings.systems)


def _plan_full(choice: Choice, settings: Retrain, sections: Mapping[str, Any]) -> Planned:
    """Plan a full retraining of `settings.systems`; remove from params.yaml what none of them needs."""
    how = {"mode": choice.mode, "why": choice.why}
    if settings.systems is None:
        return Planned(choice, how)
    needed = keep_needed(sections, settings.systems)
    edits = [f"{section}.{name}=" for section in SECTIONS for name in entries(sections, section) if name not in needed[section]]
    kept_systems = systems(needed)
    edits += [f"failures.{key}=" for key in ("model", "against") if entries(sections, "failures").get(key) not in (None, *kept_systems)]
    edits += [edit.setting(key, value) for key, value in starting.baselines_of(needed, sections).items()]
    edit.apply(edits, Path("params.yaml"), partial(check, where=f"{FILE}: retrain.systems (params.yaml of this retraining)"))
    return Planned(choice, how | {"systems": settings.systems}, settings.systems)


def _plan_without(name: str, error: Lost, settings: Retrain, *, sections: Mapping[str, Any]) -> Planned:
    """Plan a full retraining under `auto` if a part of the champion, `name`, is lost (`error`). Raises UserError under the other modes."""
    if settings.mode != "auto":
        raise UserError(f"{error}; to retrain without it, set retrain.mode: full (or auto) in {FILE}") from None
    return _plan_full(Choice("full", f"{error}, so no start from {name}"), settings, sections)


def recipe(sections: Mapping[str, Any], source: Mapping[str, Any]) -> dict[str, str]:
    """A digest of every section that decides what a model is, by name. Sources count by content, by `source` (data/source.json)."""
    values = {name: [_plain(value)] for name, value in sections.items() if name not in UNTRAINED and value}
    for kind in values.keys() & {"encoder", "encoders", "rerankers"}:
        entry = source.get(kind) or {}
        values[kind].append(entry.get("digest") or {name: item.get("digest") for name, item in entry.items() if name in sections[kind]})
    return {name: hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16] for name, value in values.items()}


def _plain(section: Any) -> Any:
    """A section without its `source` keys: where a source is does not matter."""
    if not isinstance(section, Mapping):
        return section
    return {key: _plain(value) for key, value in section.items() if key != "source"}


def _of_commit(project: Path, now: Champion) -> tuple[dict[str, Any], dict[str, Any]]:
    """params.yaml and data/source.json of the champion's commit."""
    return dict(mapping_at(now.commit, "params.yaml", project)), json.loads(read_blob(now.commit, str(SOURCE), project) or "{}")


def _record(project: Path, crowned: Champion, champions: Sequence[Champion]) -> Mapping[str, Any]:
    """How a retraining made the champion, as it recorded it (`Ended.how`); empty if its commit has no record, or that of an earlier one.

    Its mode is `index` if the champion has the weights that the retraining started from: what was trained then was not better.
    """
    entry = history.read_outcome(project, crowned.commit) if tree.records(project, f"{crowned.commit}^!") else None
    how = (entry.how if entry else None) or {}
    start = next((one for one in champions if one.number == how.get("start")), None)
    is_trained = start is None or not encoder_digests(start) or encoder_digests(start) != encoder_digests(crowned)
    return how if is_trained or how.get("mode") not in FROM_CHAMPION else {**how, "mode": "index"}


def _records(project: Path, champions: Sequence[Champion]) -> list[Mapping[str, Any]]:
    """The champion's record, that of the champion it started from, and so on."""
    by_number, records = {crowned.number: crowned for crowned in champions}, list[Mapping[str, Any]]()
    crowned: Champion | None = champions[-1]
    while crowned is not None and len(records) < len(champions):
        records.append(_record(project, crowned, champions))
        crowned = by_number.get(records[-1].get("start", 0))
    return records


def _changed_code(project: Path, now: Champion) -> list[str]:
    """The stages that decide models, and functions that parameters name, whose code has changed since the champion's commit."""
    stages = champion.lock_at(project, now.commit).values()
    functions = {name: digest for entry in stages for name, digest in frozen_references(dict(parameters(entry))).items()}
    before = tracked(CODE, *stages) | functions
    after = read_json(CODE) if CODE.exists() else {}
    after |= frozen_references(read_json(FROZEN)) if FROZEN.exists() else {}
    return [f"the code of {name}" for name in (*TRAINING, *functions) if name in before and before[name] != after.get(name)]


def _news(project: Path, now: Champion, corpus: Path, *, parts: Parts) -> News | None:
    """What is new in `corpus` since the champion; None if no document was added or removed and no training query is new."""
    if outs_of(current_lock()).get(str(corpus)) == parts.digests["corpus"]:
        return None
    with TemporaryDirectory(dir=".retemper") as folder:
        before = Path(folder) / "corpus"
        champion.get_out(project, now.commit, parts.paths["corpus"], out=before)
        news = compare(before, corpus)
    return news if news.documents or news.removed or news.queries else None


def _known(project: Path, now: Champion, parts: Parts, *, news: News, indexed: bool) -> list[str]:
    """The training queries that the champion's weights know: all unchanged ones, unless the champion was only `indexed` beside some.

    In that case its state lists the queries that the weights knew before; the list is passed on from training to training.
    """
    if not indexed:
        return list(news.known)
    known_before = set(champion.read_out(project, now.commit, f"data/state/{next(iter(parts.encoders))}/{KNOWN}"))
    return [query for query in news.known if query in known_before]


def _fetch(project: Path, now: Champion, parts: Parts, *, known: Sequence[str], indexes: Sequence[str]) -> dict[str, str]:
    """Write each of the champion's encoders to a folder, with the list of training queries that it knows; return the folders by model.

    Models in `indexes` also get what their index has learned. Folders of former champions are removed. UserError without an encoder.
    """
    sources = {}
    shutil.rmtree(STARTS, ignore_errors=True)
    for part, kind in parts.encoders.items():
        folder = STARTS / parts.digests[kind].partition(".")[0]
        champion.get_out(project, now.commit, parts.paths[kind], out=folder)
        write_json(folder / KNOWN, list(known))
        if part in indexes:
            champion.get_out(project, now.commit, f"data/indexes/{part}/{LEARNED}", out=folder / LEARNED)
        sources[part] = f"./{folder.as_posix()}"
    if not sources:
        raise UserError(f"champion/{now.number}: has no encoder to start from, expected one")
    return sources
