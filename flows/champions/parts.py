"""The parts of a model as it is served, from a dvc.lock: encoders, indexes, corpus, settings; for a fusion also BM25 and its weights."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from flows.repository.lock import TO_COMMIT, Lock, corpus_of, out_digests, parameters
from flows.results.fusions import BM25, fusion_parts, fusions, is_served
from tasks.core.errors import UserError
from tasks.core.retrieval.fusion import DEPTH

OWN = ("text", "tokenize", "encode", "index")  # sections of params.yaml that say how an encoder is given texts, and what is searched
INDEXED = ("index", "centroids", "centroid_lr", "scores", "nprobe", "ef_search", "k_factor")  # keys of an entry of adore, for its index
DOCUMENTS = "_documents"  # end of the name of a round that only encodes documents for an index
SETTING = ("first", "second", "method", "weight", "k")  # keys of a fusion.json that decide how runs are fused


class NotServable(UserError):
    """The model cannot be served, whatever is in the cache."""


class Served(Protocol):
    """A model as it is served: a champion, or a candidate."""

    @property
    def digests(self) -> Mapping[str, str]: ...

    @property
    def fusion(self) -> Mapping[str, Any]: ...

    @property
    def settings(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True)
class Parts:
    """`paths` of outs, and their digests by DVC, by kind: encoder, index, corpus, bm25. `encoders`: the kind of each encoder's model.

    A fusion of several models has `encoder.NAME` and `index.NAME` of all but the first. `fusion`: settings of each fusion, and BM25's
    parameters. `settings`: see `settings_of`.
    """

    paths: Mapping[str, str]
    digests: Mapping[str, str]
    encoders: Mapping[str, str]
    fusion: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)


def parts_of(stages: Lock, model: str, read: Callable[[str], Any], *, where: str, indexed: bool = True) -> Parts:
    """The parts of `model` by the entries of dvc.lock. `read` reads JSON files of outs.

    NotServable, naming `where`, if one of its encoders is missing or, unless `indexed` is False, has no index.
    """
    outs, sections = outs_of(stages), _sections(stages)
    searched, dense, fused = _search_parts(model, sections)
    names = sorted(Path(path).name for path in outs if path.startswith("data/encoders/"))
    known = [name for name in names if not indexed or outs.get(f"data/indexes/{name}")]
    for name in dense:
        if name not in known:
            served = ", ".join([*known, *(fusion for fusion in fusions(sections) if is_served(fusion, sections))])
            expected = "cannot be served; " + (f"expected one of {served}" if served else TO_COMMIT)
            if {f"rerank@{name}", f"rescore@{name}", f"reranker@{name}"} & stages.keys():
                raise NotServable(f"{where}: {name} only reorders what others find, and {expected}")
            if name in names:
                raise NotServable(f"{where}: {name} has no index, and {expected}")
            others = f"expected one of {served}" if served else f"nor any other; {TO_COMMIT}"
            raise NotServable(f"{where} has no encoder {name}, {others}")
    paths, encoders = {"corpus": corpus_of(stages)}, dict[str, str]()
    for name in dense:
        suffix = "" if name == dense[0] else f".{name}"
        encoders[name] = f"encoder{suffix}"
        paths |= {f"encoder{suffix}": f"data/encoders/{name}", f"index{suffix}": f"data/indexes/{name}"}
    fusion: dict[str, Any] = {}
    if fused and BM25 in searched:
        paths["bm25"], fusion[BM25] = "data/bm25", parameters(stages["bm25"]).get("bm25", {})
    for name in fused:
        record = read(f"data/runs/{name}/fusion.json")
        fusion[name] = {key: record[key] for key in SETTING if key in record}
        if (depth := sections["fuse"].get(name, {}).get("depth", DEPTH)) != DEPTH:  # champions before this was recorded have none
            fusion[name]["depth"] = depth
    existing = {kind: path for kind, path in paths.items() if path in outs}
    return Parts(existing, {kind: outs[path] for kind, path in existing.items()}, encoders, fusion, settings_of(stages, model))


def settings_of(stages: Lock, model: str) -> dict[str, Any]:
    """The sections OWN of params.yaml as the stages of `model` read them, and the factories of its own indexes, if any."""
    sections, values = _sections(stages), dict(parameters(stages.get("tokenize", {})))
    _, dense, _ = _search_parts(model, sections)
    for name in dense:
        for stage in ("encode", "index"):
            values |= parameters(stages.get(f"{stage}@{sections['adore'].get(name, {}).get('round', name)}", {}))
    settings = {name: values[name] for name in OWN if name in values}
    if indexes := [sections["adore"][name]["index"] for name in dense if has_own_index(sections, name)]:
        settings["indexes"] = indexes
    return settings


def _search_parts(model: str, sections: Mapping[str, Any]) -> tuple[list[str], list[str], list[str]]:
    """The systems that a model searches with, those of them that are encoders, and the fusions that combine them."""
    searched, fused = fusion_parts(model, sections) if model in fusions(sections) else ([model], [])
    return searched, [name for name in searched if name != BM25 or not fused], fused


def is_same_model(one: Served, other: Served) -> bool:
    """Whether two models are the same, apart from the corpus and the indexes made from it."""
    first, second = ((encoder_digests(served), served.fusion, served.settings) for served in (one, other))
    return first == second


def encoder_digests(served: Served) -> dict[str, str]:
    """The digests of a model's encoders, by kind."""
    return {kind: digest for kind, digest in served.digests.items() if kind.startswith("encoder")}


def entry_of(sections: Mapping[str, Any], section: str, name: str) -> dict[str, Any]:
    """An entry of params.yaml; empty if there is none."""
    entry = (sections.get(section) or {}).get(name)
    return dict(entry) if isinstance(entry, Mapping) else {}


def has_own_index(sections: Mapping[str, Any], name: str) -> bool:
    """Whether model `name` of a params.yaml is searched in a compressed index that it was trained with."""
    return bool(entry_of(sections, "adore", name).get("index", "Flat") != "Flat")


def documents_of(sections: Mapping[str, Any], name: str) -> str:
    """The name of the round of no steps that encodes documents for model `name`: the same name, unless an entry of adore has it."""
    return f"{name}{DOCUMENTS}" if has_own_index(sections, name) else name


def with_its_index(sections: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The entry of adore for model `name` over other documents, which are added to its index as it was trained."""
    entry = sections["adore"][name]
    index_settings = {key: entry[key] for key in INDEXED if key in entry}
    return {"round": documents_of(sections, name), "negatives": "none", "steps": 0, "quantizer": "given", **index_settings}


def searched_sections(own: Mapping[str, Any], encoders: Iterable[str], fusion: Mapping[str, Any]) -> dict[str, Any]:
    """The sections of params.yaml with which a model is searched over other documents as it is served. `own`: its own params.yaml.

    A compressed index stays as it was trained, and a fusion keeps its weights (`fusion`: see Parts). BM25 keeps its settings if it is a
    part. Otherwise they are not the model's: stage pseudo makes queries with them.
    """
    sections: dict[str, Any] = {"adore": {name: with_its_index(own, name) for name in encoders if has_own_index(own, name)}}
    sections["fuse"] = {name: {**entry_of(own, "fuse", name), **setting} for name, setting in fusion.items() if name != BM25}
    return sections | ({"bm25": own.get("bm25") or {}} if BM25 in fusion else {})


def outs_of(stages: Lock) -> dict[str, str]:
    """Digest of every out in a dvc.lock, by path. A query tower without its own index gets that of its round, in which it is searched."""
    outs = out_digests(stages)
    for name in stages:
        model = name.removeprefix("adore@")
        if model != name:
            entry = parameters(stages[name])[f"adore.{model}"]
            if entry.get("index", "Flat") == "Flat":
                outs[f"data/indexes/{model}"] = outs.get(f"data/indexes/{entry['round']}", "")
    return outs


def _sections(stages: Lock) -> dict[str, dict[str, Any]]:
    """The entries of rounds, adore, and fuse whose stages have run."""
    sections: dict[str, dict[str, Any]] = {"rounds": {}, "adore": {}, "fuse": {}}
    for stage in stages:
        kind, _, name = stage.partition("@")
        section = {"train": "rounds", "adore": "adore", "fuse": "fuse"}.get(kind)
        if section:
            sections[section][name] = parameters(stages[stage]).get(f"{section}.{name}", {})
    return sections
