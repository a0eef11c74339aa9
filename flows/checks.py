"""What must hold of params.yaml before DVC sees it. DVC's own words for these mistakes are a raw ENOENT or a traceback."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.core.errors import UserError
from tasks.core.params import read_yaml, validate
from tasks.core.sources import parse_dataset
from tasks.params import Parameters

PARAMS = Path("params.yaml")
NAME = re.compile(r"[a-z][a-z0-9_]*")
RESERVED = ("base", "none", "bm25", "official")
GIVEN_NEGATIVES = ("none", "official", "bm25")
ENCODERS = ("pretrain", "rounds", "adore")  # sections whose entries are encoders, one namespace with `base`
NEGATIVES = ("mine", "mix")  # sections whose entries are negatives, one namespace with GIVEN_NEGATIVES


def check_file(path: Path = PARAMS) -> Parameters:
    """The parameter file as one record; UserError, one line with file and key, where it cannot be run."""
    return check(read_yaml(path), str(path))


def check(sections: dict[str, Any], where: str = str(PARAMS)) -> Parameters:
    """`check_file`, on what the file holds."""
    check_names(sections, where)
    try:
        parameters = validate(Parameters, sections, where)
    except UserError as error:
        raise UserError(str(error).replace(f"{where}.", f"{where}: ", 1)) from None
    try:
        parse_dataset(parameters.dataset.source)
    except UserError as error:
        raise UserError(f"{where}: dataset.source: {error}") from None
    check_references(sections, where)
    measures = parameters.evaluate.measures
    if parameters.report.metric not in measures:
        raise UserError(
            f"{where}: report.metric: found {parameters.report.metric!r}, expected one of evaluate.measures: {', '.join(measures)}"
        )
    return parameters


def check_names(sections: Mapping[str, Any], where: str) -> None:
    """Names of entries: their form, none reserved, none used twice in a namespace."""
    for namespace in (ENCODERS, NEGATIVES, ("study",)):
        owner: dict[str, str] = {}
        for section in namespace:
            for name in _entries(sections, section):
                key = f"{where}: {section}.{name}"
                if not isinstance(name, str) or not NAME.fullmatch(name):
                    raise UserError(f"{key}: found the name {name!r}, expected lower-case letters, digits and _, a letter first")
                if name in RESERVED:
                    raise UserError(f"{key}: the name {name} is reserved ({', '.join(RESERVED)}); choose another")
                if name in owner:
                    raise UserError(f"{key}: the name {name} is taken by {owner[name]}.{name}; choose another")
                owner[name] = section


def check_references(sections: Mapping[str, Any], where: str) -> None:
    """Every `init`, `negatives` and mined round exists, and no round needs itself."""
    encoders = {"base", *(name for section in ENCODERS for name in _entries(sections, section))}
    negatives = {*GIVEN_NEGATIVES, *(name for section in NEGATIVES for name in _entries(sections, section))}
    rounds, adores = _entries(sections, "rounds"), _entries(sections, "adore")
    for name in _entries(sections, "mine"):
        if name not in rounds:
            raise UserError(f"{where}: mine.{name}: no round {name}; negatives are mined with a round: {', '.join(rounds)}")
    for name, entry in rounds.items():
        for field, known in (("init", encoders), ("negatives", negatives)):
            if entry[field] not in known:
                hint = f"; add mine.{entry[field]}" if field == "negatives" and entry[field] in rounds else ""
                raise UserError(f"{where}: rounds.{name}.{field}: found {entry[field]!r}, expected one of {', '.join(sorted(known))}{hint}")
    for section, entries in (("adore", adores), ("study", _entries(sections, "study"))):
        for name, entry in entries.items():
            if entry["round"] not in rounds:
                raise UserError(f"{where}: {section}.{name}.round: found {entry['round']!r}, expected a round: {', '.join(rounds)}")
    for name, entry in adores.items():
        if entry["negatives"] not in negatives:
            raise UserError(
                f"{where}: adore.{name}.negatives: found {entry['negatives']!r}, expected one of {', '.join(sorted(negatives))}"
            )
    needs = {name: [entry["init"], entry["negatives"]] for name, entry in rounds.items()}
    cycle = find_cycle(needs | {name: [entry["round"], entry["negatives"]] for name, entry in adores.items()})
    if cycle:
        entry = f"{'rounds' if cycle[0] in rounds else 'adore'}.{cycle[0]}"
        raise UserError(f"{where}: {entry}: needs itself: {' -> '.join(cycle)}; let one of them start from base or earlier negatives")


def find_cycle(needs: Mapping[str, list[str]]) -> list[str]:
    """A path through `needs` that ends where it begins, or an empty list; names that are no keys end a path."""
    done: set[str] = set()

    def walk(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return []
        for needed in needs.get(name, []):
            if found := walk(needed, [*path, name]):
                return found
        done.add(name)
        return []

    return next((found for name in needs if (found := walk(name, []))), [])


def _entries(sections: Mapping[str, Any], section: str) -> dict[Any, Any]:
    value = sections.get(section)
    return value if isinstance(value, dict) else {}
