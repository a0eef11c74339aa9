"""The width of rounds' vectors, as far as files and parameters show it, and a check of the index factories for them.

A stage would refuse a wrong one too, but only after the corpus has been encoded.
"""

import json
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flows.parameters.checks import PARAMS
from flows.parameters.needs import entries
from flows.parameters.sources import KEEP_SOURCE
from tasks.core.errors import UserError
from tasks.core.models.folder import ROUTER, read_shape
from tasks.core.models.layers import last_width
from tasks.core.params.sections import read_yaml, validate
from tasks.core.retrieval.ann.factories import nearest_factory, width_mismatch
from tasks.core.sources.datasets import parse_encoder
from tasks.params import Parameters

SOURCE = "encoder.source"


@dataclass(frozen=True)
class Width:
    """The width of a document's vector: as pooled, after the head (`full`), and as truncated (`kept`); and the key that sets it."""

    pooled: int
    full: int
    kept: int
    key: str


def refuse_unfit(stages: Collection[str]) -> None:
    """Raise UserError for a width of params.yaml that one of `stages` cannot have, or a factory that cannot index the vectors it gets.

    Unknown widths, for example of an encoder that is not on this machine, are left to the stage, as is everything if sources stand.
    """
    sections = read_yaml(PARAMS)
    trained = [name for kind, _, name in (stage.partition("@") for stage in stages) if kind == "train"]
    narrowed = [name for name in trained if entries(sections, "rounds").get(name, {}).get("width") is not None]
    indexed: dict[tuple[str, str], list[str]] = {}
    for key, factory, name in _indexes(stages, sections):
        if factory != "Flat":
            indexed.setdefault((key, factory), []).append(name)
    if KEEP_SOURCE in os.environ or not (narrowed or indexed):
        return
    parameters = validate(Parameters, sections, str(PARAMS))
    for name in narrowed:
        requested, initial = parameters.rounds[name].width or 0, width_of(parameters.rounds[name].init, parameters)
        if initial and requested > initial.full:
            found = f"found {requested}, expected at most {initial.full}, the vector's width"
            raise UserError(f"{PARAMS}: rounds.{name}.width: {found}; decrease it")
    known_widths = {name: width for names in indexed.values() for name in names if (width := width_of(name, parameters))}
    for (key, factory), names in indexed.items():
        widths = {known_widths[name].kept for name in names if name in known_widths}
        for name in names:
            if (width := known_widths.get(name)) and (mismatch := width_mismatch(factory, width.kept)):
                other = nearest_factory(factory, widths)
                raise UserError(
                    f"{PARAMS}: {key}: found {factory} for vectors of width {width.kept} (round {name}: {width.key}), {mismatch}; "
                    f"expected one that suits this width{f', such as {other}' if other else ''}"
                )


def _indexes(stages: Collection[str], sections: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Key, factory, and round of the indexes that `stages` build."""
    for kind, _, name in (stage.partition("@") for stage in stages):
        entry = entries(sections, kind).get(name, {})
        if kind == "index":
            yield "index.factory", entries(sections, "index").get("factory", "Flat"), name
        elif kind == "adore":
            yield f"adore.{name}.index", entry.get("index", "Flat"), entry.get("round", "")
        elif kind == "study":
            for factory in entry.get("factories", ()):
                yield f"study.{name}.factories", factory, entry.get("round", "")


def width_of(name: str, parameters: Parameters) -> Width | None:
    """The width of the document vectors of a round, or of another entry that is an encoder; None if it is unknown."""
    chain = list[str]()
    while name != "base" and name not in parameters.encoders:
        chain.append(name)
        adore = parameters.adore.get(name)  # which trains the query tower alone
        name = adore.round if adore else (parameters.rounds.get(name) or parameters.pretrain[name]).init
    width = _sources_width(name, parameters)
    for later in reversed(chain):
        if width is None:
            return None
        if (pretrain := parameters.pretrain.get(later)) and pretrain.scratch:
            scratch_width = pretrain.scratch.width
            width = Width(scratch_width, scratch_width, scratch_width, f"pretrain.{later}.scratch.width")
        elif entry := parameters.rounds.get(later):
            if entry.width is not None:
                if entry.width > width.full:  # that round is refused
                    return None
                width = replace(width, kept=entry.width, key=f"rounds.{later}.width")
            if entry.projector != "none":
                width = replace(width, full=width.pooled, kept=min(width.kept, width.pooled))
    return width


def _sources_width(name: str, parameters: Parameters) -> Width | None:
    """The width of `base`, or of an entry of `encoders`."""
    entry = parameters.encoders.get(name)
    params, source = entry or parameters.base, (entry or parameters.encoder).source
    try:
        folder = parse_encoder(source).folder
    except UserError:
        return None
    width = shaped_width(folder, pooling=params.pooling, head=params.head, width=params.width) if folder else None
    keys = {"width": f"encoders.{name}.width", "source": f"encoders.{name}.source"} if entry else {"width": "base.width", "source": SOURCE}
    return width and replace(width, key=keys[width.key])


def shaped_width(folder: Path, *, pooling: str, head: str, width: int | None) -> Width | None:
    """The width of a model folder (of two towers, the document tower's) after stage `base` has applied these parameters.

    None if its files do not show it, or `width` exceeds it. `key` is width or source.
    """
    if (hidden := hidden_width(folder)) is None:
        return None
    try:
        shape = read_shape(folder)
    except (UserError, OSError, KeyError):  # what stage base says
        return None
    pooled = hidden * len((shape.pooling if pooling == "source" else pooling).split("+"))
    full = last_width(shape.layers if head == "source" else (), pooled)
    if width is not None:
        return Width(pooled, full, width, "width") if width <= full else None
    return Width(pooled, full, min(shape.width or full, full), "source")


def hidden_width(encoder: Path) -> int | None:
    """The hidden width of a model folder (of two towers, the document tower's), whatever config.json calls it (T5: d_model)."""
    place = encoder / "document" if (encoder / ROUTER).exists() else encoder
    with suppress(OSError, ValueError, AttributeError):
        if isinstance(hidden_size := json.loads((place / "config.json").read_text(encoding="utf-8")).get("hidden_size"), int):
            return hidden_size  # saves the seconds that importing transformers takes
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    try:
        hidden = getattr(AutoConfig.from_pretrained(place, local_files_only=True, trust_remote_code=False), "hidden_size", None)
    except (OSError, ValueError, KeyError, StrictDataclassError):  # what stage base says
        return None
    return hidden if isinstance(hidden, int) else None
