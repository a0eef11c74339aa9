"""params.yaml of a retraining that starts from the champion: an ordinary run of fewer entries.

Its encoder is an entry of `encoders`, and a round of no steps under its name: the same weights give the same digests, so vectors of
known documents come from the shard store. What is trained is a round over that (`continue`) or an entry of adore (`query_tower`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flows.champions.parts import DOCUMENTS, INDEXED, Parts, documents_of, entry_of, has_own_index, searched_sections, with_its_index
from flows.parameters.checks import GIVEN_NEGATIVES, systems
from flows.parameters.needs import EMPTIED
from flows.results.fusions import BM25, fusion_parts, fusions
from flows.retraining.modes import Mode, Retrain
from tasks.core.errors import UserError

Sections = Mapping[str, Any]

WEIGHTS = "from_champion"  # name of the champion's encoder in `encoders`
AS_IT_IS = {"negatives": "none", "steps": 0}  # a round that trains nothing
OWN = ("text", "tokenize", "encode")  # sections under which the champion's document vectors were made
TIED = (  # keys of a round that depend on its start
    "negatives",
    "steps",
    "train_queries",
    "train_share",
    "optimizer_from",
    "schedule_steps",
    "projector",
)
STARTED = ("steps", *INDEXED)  # keys of an entry of adore, likewise
DISTILLED = ("margin_mse", "kl")
TRAINED = {"continue": "continued", "query_tower": "queries"}  # end of the name of what is trained
BELOW = "_round"  # end of the name of the round that is trained before an entry of adore
DEPTH = 200  # negatives mined for `continue`, at least


@dataclass(frozen=True)
class Start:
    """The champion as a start: its parts, its own params.yaml, the recipe (params.yaml now), and `origins`, the recipe's entry by model.

    `lost`: why its own index cannot take other documents; empty if it can, or if there is no such index.
    """

    name: str  # champion/3
    model: str
    parts: Parts
    own: Sections
    recipe: Sections
    origins: Mapping[str, str]
    number: int
    lost: str = ""

    @property
    def is_compressed(self) -> bool:
        """Whether it is searched in a compressed index of its own."""
        return any(has_own_index(self.own, part) for part in self.parts.encoders)

    @property
    def origin(self) -> str:
        """The recipe's entry that the champion comes from."""
        return self.origins.get(self.model, self.model)

    @property
    def dense(self) -> str:
        """The recipe's entry that its (first) encoder comes from."""
        part = next(iter(self.parts.encoders))
        return self.origins.get(part, part)


def round_of(start: Start) -> dict[str, Any]:
    """The recipe's round that the champion comes from; the round below it, if it comes from an entry of adore."""
    tower = entry_of(start.recipe, "adore", start.dense)
    return entry_of(start.recipe, "rounds", str(tower.get("round", start.dense)))


def refusals(
    start: Start, *, named: Sequence[str] | None = None, changes: Mapping[str, Any] | None = None, fused: bool = True
) -> dict[Mode, str]:
    """The modes that this champion rules out, with the reason. `named`: `retrain.systems`, which alone may become champion.

    `changes`: `retrain.round`, which replaces keys of the recipe's round in mode continue. `fused`: whether a fusion may become champion.
    """
    refused: dict[Mode, str] = {}
    if not fused and start.model in start.parts.fusion:  # as it is, it could not be crowned again
        refused["index"] = f"{start.name} is a fusion, which promotion.fusions excludes"
    if named is not None and start.origin not in named:
        refused["continue"] = refused["query_tower"] = refused["index"] = (
            f"{start.name} comes from {start.origin}, which retrain.systems lacks"
        )
    if entry_of(start.recipe, "rounds", start.dense) == entry_of(start.recipe, "adore", start.dense) == {}:
        refused["continue"] = refused["query_tower"] = f"params.yaml no longer has {start.dense}, which {start.name} comes from"
    trained = round_of(start) | dict(changes or {})
    what = start.name if trained == round_of(start) else f"{start.name}, trained with retrain.round,"
    if trained.get("loss") in DISTILLED or trained.get("distill"):
        refused["continue"] = f"{what} is distilled from a teacher's scores, which new queries lack"
    if trained.get("positive_ranks") is not None and trained.get("negatives") not in GIVEN_NEGATIVES:
        refused["continue"] = f"{what} imitates the ranking of {trained.get('negatives')}, which new queries lack"
    if len(start.parts.encoders) > 1:
        refused["continue"] = refused["query_tower"] = f"{start.name} has {len(start.parts.encoders)} encoders, expected one"
    if changed := [name for name in OWN if (start.own.get(name) or {}) != (start.recipe.get(name) or {})]:
        refused["query_tower"] = refused["index"] = f"{', '.join(changed)} of params.yaml changed since {start.name} encoded its documents"
    if start.lost:
        refused["query_tower"] = refused["index"] = start.lost
    return refused


def sections_of(mode: Mode, start: Start, settings: Retrain, *, sources: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """The settings of this retraining's params.yaml, by key, and the recipe's entry for each of its models.

    `sources`: the folder of each of the champion's encoders, by model.
    """
    sections: dict[str, Any] = {section: {} for section in EMPTIED}
    sections["failures"] = {key: value for key, value in (start.recipe.get("failures") or {}).items() if key not in ("model", "against")}
    weights = {part: WEIGHTS if not number else f"{WEIGHTS}_{number + 1}" for number, part in enumerate(sources)}
    sections["encoders"] = {weights[part]: {"source": source} for part, source in sources.items()}
    if mode == "index":  # as it is served, under its own names: the same model over other documents
        sections["rounds"] = {documents_of(start.own, part): {"init": weights[part], **AS_IT_IS} for part in sources}
        sections |= searched_sections(start.own, sources, start.parts.fusion)
        return _looked_at(sections, start.model, start), dict(start.origins)
    dense, ((part, init),) = start.dense, weights.items()
    trained, known = f"{dense}_{TRAINED[mode]}", f"{dense}{DOCUMENTS}" if has_own_index(start.own, part) else dense
    sections["rounds"] = {known: {"init": init, **AS_IT_IS}}
    tower = entry_of(start.recipe, "adore", dense)
    if mode == "continue":
        base = round_of(start)
        entry = {key: value for key, value in base.items() if key not in TIED}
        entry |= {"init": init, "negatives": _negatives(base.get("negatives", "none"), known), "replay": settings.replay}
        entry |= _seeds(base, start.number) | settings.round
        name = f"{dense}{BELOW}" if tower else trained
        sections["rounds"][name] = entry
        readers = [(base, entry)]
        if tower:
            sections["adore"] = {trained: tower | {"round": name, "negatives": _negatives(tower["negatives"], known)}}
            readers.append((tower, sections["adore"][trained]))
        sections["mine"] = _mined(known, start.recipe, *readers)
    else:
        base = {key: value for key, value in tower.items() if key not in STARTED}
        if known != dense:
            base |= {key: value for key, value in with_its_index(start.own, part).items() if key not in ("round", "negatives", "steps")}
        entry = {"temperature": round_of(start)["temperature"]} if not tower and "temperature" in round_of(start) else {}
        entry |= base | {"round": known, "negatives": _negatives(base.get("negatives", "none"), known), "replay": settings.replay}
        sections["adore"] = {trained: entry | {"seed": base.get("seed", 42) + start.number} | settings.adore}
        sections["mine"] = _mined(known, start.recipe, (base, sections["adore"][trained]))
    fusion_names = fusion_parts(start.origin, start.recipe)[1] if start.origin in fusions(start.recipe) else []
    for name in fusion_names:
        entry = entry_of(start.recipe, "fuse", name)
        sections["fuse"][name] = entry | {part: trained for part in ("first", "second") if entry[part] == dense}
    origins = dict.fromkeys((*sections["rounds"], *sections["adore"]), dense) | {name: name for name in fusion_names}
    return _looked_at(sections, start.origin if fusion_names else trained, start), origins


def _looked_at(sections: dict[str, Any], model: str, start: Start) -> dict[str, Any]:
    """`sections`, showing the failures of `model` if the best system may be unable to become champion (see `candidates`)."""
    if start.is_compressed:
        sections["failures"] |= {"model": model}
    return sections


def candidates(mode: Mode, start: Start, sections: Mapping[str, Any], *, named: Sequence[str] | None = None) -> list[str] | None:
    """The systems of `sections` (see `sections_of`) that may become champion; None: all.

    A champion with a compressed index of its own is not replaced by a round, which is searched uncompressed. Its successor comes from one
    of the recipe's entries `named` (`retrain.systems`), as it does itself (`refusals`).
    """
    if mode == "index":
        return [start.model]
    if not start.is_compressed and named is None:
        return None
    eligible = [name for name in systems(sections) if not (start.is_compressed and name in sections["rounds"])]
    return eligible if named is None else [name for name in eligible if _entry(name, start, sections) in named]


def _entry(name: str, start: Start, sections: Mapping[str, Any]) -> str:
    """The recipe's entry that a system of `sections` stands for; a round below an entry of adore stands for the recipe's round there."""
    if name == BM25 or name in sections["fuse"]:
        return name
    base_round = entry_of(start.recipe, "adore", start.dense).get("round", start.dense)
    return str(base_round) if name == f"{start.dense}{BELOW}" else start.dense


def baselines_of(sections: Mapping[str, Any], recipe: Mapping[str, Any]) -> dict[str, Any]:
    """`report.baselines` for this retraining: the recipe's baselines that are systems of `sections` (see `sections_of`)."""
    named = (recipe.get("report") or {}).get("baselines") or []
    return {"report.baselines": [name for name in named if name in systems(sections)]} if named else {}


def refuse(mode: Mode, refused: Mapping[Mode, str], where: str) -> None:
    """Raise UserError if the mode that was asked for is ruled out."""
    if mode in refused:
        raise UserError(f"{where}: found {mode}, but {refused[mode]}; expected full, or auto, which then retrains fully")


def _negatives(source: str, dense: str) -> str:
    """`source` if the data gives these negatives, else those that the champion mines (`dense`)."""
    return source if source in GIVEN_NEGATIVES else dense


def _mined(known: str, recipe: Sections, *readers: tuple[Mapping[str, Any], Mapping[str, Any]]) -> dict[str, Any]:
    """Section `mine`: the lists that the champion, `known`, mines, as the recipe mines those of the first reader, deep enough for all.

    A reader is an entry of the recipe, and what becomes of it. The section is empty if none reads these lists.
    """
    reading = [(entry_of(recipe, "mine", str(before.get("negatives"))), now) for before, now in readers if now.get("negatives") == known]
    ranks = [rank for mine, now in reading for rank in (mine.get("depth", 0), *(now.get("window") or ()), now.get("depth", 0))]
    settings = next((mine for mine, _ in reading if mine), {})
    return {known: {**settings, "search": "embeddings", "depth": max(DEPTH, *ranks)}} if reading else {}


def _seeds(entry: Mapping[str, Any], number: int) -> dict[str, int]:
    """Seeds that give each retraining other queries in another order, and each attempt at the same retraining the same."""
    return {"seed": int(entry.get("seed", 42)) + number, "split_seed": number}
