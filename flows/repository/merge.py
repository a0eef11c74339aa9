"""`retemper merge`: resolve git's conflicts in params.yaml, dvc.lock, and data/source.json, where DVC and git would leave markers.

Additions by both sides are kept, and so are changes by one side only. If both sides changed a parameter, the user must decide. If both
sides recomputed a stage, the entry whose run is recorded in the cache is taken, else ours, which the next run checks.
"""

import io
import json
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from flows.repository.git import git
from flows.repository.lock import LOCK, Lock
from tasks.core.errors import UserError
from tasks.core.files import write_text
from tasks.core.plurals import counted

PARAMS = "params.yaml"
SOURCE = "data/source.json"  # a run updates it, so ours is good enough if both sides changed it
BASE, OURS, THEIRS = 1, 2, 3  # git's stages of a file in conflict
MISSING = object()

Known = Callable[[Mapping[str, Any]], bool]  # whether a dvc.lock entry's run is recorded here


@dataclass(frozen=True)
class Merged:
    """A merged dvc.lock, the names of entries taken from theirs, and for entries that both sides changed, the side that was taken."""

    lock: Lock
    added: tuple[str, ...]
    both: Mapping[str, str]


def merge(root: Path) -> list[str]:
    """Resolve git's conflicts in the current folder and stage the result for the commit. Return lines that say how.

    `root` is the cache. UserError, with nothing written, if there is no such conflict, or if a parameter has two values.
    """
    conflicts = _conflicts()
    ours = {name for name in (PARAMS, LOCK, SOURCE) if {OURS, THEIRS} & set(conflicts.get(name, {}))}
    if not ours and not git("rev-parse", "--verify", "--quiet", "MERGE_HEAD", check=False):
        raise UserError(f"{LOCK}, {PARAMS}: found no git conflict in them; run retemper merge after a git merge that stopped at one")
    texts: dict[str, str] = {}
    messages: list[str] = []
    for name in sorted(ours):
        base, mine, other = (git("cat-file", "blob", blob) + "\n" if blob else "" for blob in _blobs(conflicts[name]))
        if not {OURS, THEIRS} <= set(conflicts[name]):
            texts[name], lines = mine or other, [f"{name}: kept as {'ours' if mine else 'theirs'}; the other side deleted it"]
        elif name == LOCK:
            texts[name], lines = _merge_lock(base, mine, other, known=lambda entry: is_recorded(entry, root))
        elif name == PARAMS:
            texts[name], lines = merge_params(base, mine, other), [f"{PARAMS}: merged the changes of both sides"]
        else:
            texts[name], lines = _merge_source(base, mine, other), [f"{name}: merged the sources of both sides; the next run updates it"]
        messages += lines
    for name, text in texts.items():
        write_text(Path(name), text)
    if texts:
        git("add", "--", *texts)
    unresolved = sorted(set(conflicts) - set(texts))
    return [*messages, f"still in conflict: {', '.join(unresolved)}" if unresolved else "resolved; git commit, then retemper run"]


def merge_locks(base: Lock, ours: Lock, theirs: Lock, *, known: Known) -> Merged:
    """The union of two dvc.locks that derive from `base`. Entries are taken whole, so each one was written by a run."""
    lock: dict[str, Mapping[str, Any]] = {}
    sides: dict[str, str] = {}
    for name in dict.fromkeys([*ours, *theirs]):
        mine, other, before = ours.get(name), theirs.get(name), base.get(name)
        if mine is None or other is None:
            lock[name] = mine or other or {}
        elif mine == other or other == before:
            lock[name] = mine
        elif mine == before:
            lock[name] = other
        else:
            lock[name], sides[name] = (other, "theirs") if known(other) and not known(mine) else (mine, "ours")
    return Merged(lock, tuple(name for name in lock if lock[name] != ours.get(name) and name not in sides), sides)


def three_way(base: Any, ours: Any, theirs: Any, *, clashes: list[str], key: str = "") -> Any:
    """Merge both sides' changes to `base`, mapping by mapping.

    If they clash, ours is taken, and the dotted key is added to `clashes`. MISSING stands for a key that a side lacks.
    """
    if _same(ours, theirs) or _same(theirs, base):
        return ours
    if _same(ours, base):
        return theirs
    if not (isinstance(ours, dict) and isinstance(theirs, dict)):
        clashes.append(key)
        return ours
    before = base if isinstance(base, dict) else {}
    merged = {
        name: three_way(
            before.get(name, MISSING), ours.get(name, MISSING), theirs.get(name, MISSING), clashes=clashes, key=f"{key}.{name}".strip(".")
        )
        for name in dict.fromkeys([*ours, *theirs])
    }
    return {name: value for name, value in merged.items() if value is not MISSING}


def merge_params(base: str, ours: str, theirs: str) -> str:
    """The text of params.yaml with both sides' changes and the comments. UserError if a parameter has two values."""
    values = [_load(text, side) for text, side in ((base, "base"), (ours, "ours"), (theirs, "theirs"))]
    clashes: list[str] = []
    merged = three_way(values[0], values[1], values[2], clashes=clashes)
    if clashes:
        key = clashes[0]
        mine, other = (json.dumps(_at(value, key), default=str) for value in values[1:])
        more = f" (and {len(clashes) - 1} more)" if clashes[1:] else ""
        raise UserError(
            f"{PARAMS}: {key}: ours {mine}, theirs {other}{more}; choose in {PARAMS}, git add {PARAMS}, then retemper merge again"
        )
    union = _union(base, ours, theirs)
    return union if _loads_as(union, merged) else _edit_text(ours, merged)


def is_recorded(entry: Mapping[str, Any], root: Path) -> bool:
    """Whether the cache `root` has a record of exactly the run in a dvc.lock entry: command, inputs, and outputs."""
    from dvc.stage.cache import _get_cache_hash

    key, value = (str(_get_cache_hash(json.loads(json.dumps(entry, default=str)), key=of_inputs)) for of_inputs in (True, False))
    return Path(root, "runs", key[:2], key, value).is_file()


def _merge_lock(base: str, ours: str, theirs: str, *, known: Known) -> tuple[str, list[str]]:
    document = _lock(ours, "ours")
    stages = [_lock(text, side).get("stages") or {} for text, side in ((base, "base"), (ours, "ours"), (theirs, "theirs"))]
    merged = merge_locks(stages[0], stages[1], stages[2], known=known)
    document["stages"] = dict(merged.lock)
    verified = sum(map(known, merged.lock.values()))
    lines = [f"{LOCK}: {counted(len(merged.lock), 'entries')}, {len(merged.added)} of them from theirs{_named(merged.added)}"]
    if merged.both:
        lines.append(
            f"{LOCK}: computed on both sides, one was taken: {', '.join(f'{name} ({side})' for name, side in merged.both.items())}"
        )
    unverified = len(merged.lock) - verified
    lines.append(
        f"{LOCK}: the runs of {counted(verified, 'entries')} are recorded in the cache"
        + (f"; the next run checks the other {unverified}" if unverified else "")
    )
    text = io.StringIO()
    yaml = YAML()
    yaml.default_flow_style = False
    yaml.dump(document, text)  # as DVC does
    return text.getvalue(), lines


def _merge_source(base: str, ours: str, theirs: str) -> str:
    values = [json.loads(text or "{}") for text in (base, ours, theirs)]
    return json.dumps(three_way(values[0], values[1], values[2], clashes=[]), indent=2) + "\n"


def _conflicts() -> dict[str, dict[int, str]]:
    """For every file in conflict in the current folder and below it, the blob of each git stage."""
    conflicts: dict[str, dict[int, str]] = defaultdict(dict)
    for line in filter(None, git("ls-files", "--unmerged", "-z").split("\0")):
        header, _, path = line.partition("\t")
        _, blob, stage = header.split()
        conflicts[path][int(stage)] = blob
    return dict(conflicts)


def _blobs(stages: Mapping[int, str]) -> list[str]:
    return [stages.get(stage, "") for stage in (BASE, OURS, THEIRS)]


def _lock(text: str, side: str) -> dict[str, Any]:
    """Parse a dvc.lock so that it can be written as DVC would. UserError if it is invalid."""
    from dvc.schema import COMPILED_LOCKFILE_SCHEMA
    from voluptuous import Invalid

    try:
        lock = YAML().load(text) or {}
        COMPILED_LOCKFILE_SCHEMA(lock or {"schema": "2.0"})
    except (YAMLError, Invalid, AttributeError) as error:
        raise UserError(
            f"{LOCK} of {side}: invalid dvc.lock ({' '.join(str(error).split())[:100]}); git checkout --theirs or --ours"
        ) from None
    return dict(lock)


def _load(text: str, side: str) -> Any:
    try:
        return YAML(typ="safe", pure=True).load(text) or {}
    except (YAMLError, ValueError) as error:
        raise UserError(f"{PARAMS} of {side}: not YAML ({' '.join(str(error).split())[:100]}); fix that line there") from None


def _loads_as(text: str, value: Any) -> bool:
    try:
        return _same(_load(text, "both"), value)
    except UserError:
        return False


def _union(base: str, ours: str, theirs: str) -> str:
    """git's union merge: at a conflict, ours followed by theirs. It keeps the comments of both, but its value must be checked."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, side) for side in ("ours", "base", "theirs")]
        for file, text in zip(files, (ours, base, theirs), strict=True):
            file.write_text(text, encoding="utf-8")
        return git("merge-file", "--union", "-p", *map(str, files), check=False) + "\n"


def _edit_text(ours: str, merged: Mapping[str, Any]) -> str:
    """The text of ours, edited so that its value is `merged`."""
    keeper = YAML()  # keeps comments and quotes
    keeper.preserve_quotes, keeper.width = True, 4096
    document = keeper.load(ours)
    _update_node(document, merged)
    text = io.StringIO()
    keeper.dump(document, text)
    return text.getvalue()


def _update_node(node: Any, value: Mapping[str, Any]) -> None:
    for name in [name for name in node if name not in value]:
        del node[name]
    for name, wanted in value.items():
        if isinstance(wanted, dict) and isinstance(node.get(name), dict):
            _update_node(node[name], wanted)
        elif name not in node or not _same(node[name], wanted):
            node[name] = wanted


def _at(value: Any, key: str) -> Any:
    for name in key.split("."):
        value = value.get(name, "(none)") if isinstance(value, dict) else "(none)"
    return value


def _same(first: Any, second: Any) -> bool:
    """Whether two values are equal as JSON, so that True is not 1. MISSING equals only itself."""
    if first is MISSING or second is MISSING:
        return first is second
    return json.dumps(first, sort_keys=True, default=str) == json.dumps(second, sort_keys=True, default=str)


def _named(names: tuple[str, ...]) -> str:
    return f": {', '.join(names[:6])}{', ...' if len(names) > 6 else ''}" if names else ""
