"""`--set section.key=value`: a lasting edit of params.yaml that keeps its comments and order."""

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.error import YAMLError

from tasks.core.errors import UserError
from tasks.core.files import write_text
from tasks.core.params import read_yaml


def apply(assignments: Sequence[str], path: Path, check: Callable[[dict[str, Any]], object]) -> str | None:
    """Edit `path` by all `assignments` at once; returns its former text, or None where nothing changed and nothing was written.

    An assignment is `a.b=VALUE`, VALUE in YAML 1.2 (`1e-05` is a number, `[1, 2]` a list, `null` null); sections on the
    way are made. `a.b=` takes the key away. `check` sees the whole result first; where it refuses (UserError), `path` stays as it was.
    """
    if not assignments:
        return None
    read_yaml(path)  # a UserError where it cannot be read
    before = path.read_text(encoding="utf-8")
    document = _round_trip().load(before) or CommentedMap()
    changes = [_assign(document, assignment) for assignment in assignments]
    if not any(changes):
        return None
    text = io.StringIO()
    _round_trip().dump(document, text)
    check(YAML(typ="safe", pure=True).load(text.getvalue()) or {})
    write_text(path, text.getvalue())
    return before


def _assign(document: CommentedMap, assignment: str) -> bool:
    """Carry out one assignment; False where it changes nothing."""
    key, equals, written = assignment.partition("=")
    names = key.strip().split(".")
    if not equals or not all(names):
        raise UserError(f"--set {assignment}: expected section.key=value, such as rounds.star.lr=1e-5")
    node: Any = document
    for depth, name in enumerate(names[:-1]):
        if not isinstance(node, CommentedMap):
            raise UserError(f"--set {assignment}: {'.'.join(names[:depth])} is no section: it holds {node!r}")
        if node.get(name) is None:  # the rest of the way is new
            if not written:
                return False
            value = _parse(written, assignment)
            for below in reversed(names[depth + 1 :]):
                value = CommentedMap({below: value})
            _append(node, name, value)
            return True
        node = node[name]
    if not isinstance(node, CommentedMap):
        raise UserError(f"--set {assignment}: {'.'.join(names[:-1])} is no section: it holds {node!r}")
    last = names[-1]
    if not written:
        return _remove(node, last)
    value = _parse(written, assignment)
    if last not in node:
        _append(node, last, value)
    elif _same(node[last], value):
        return False
    else:
        node[last] = value
    return True


def _parse(written: str, assignment: str) -> Any:
    try:
        return _round_trip().load(written)
    except (YAMLError, ValueError):  # the latter of 2024-13-45 and !!int x
        raise UserError(f"--set {assignment}: the value is not YAML; quote it, such as --set 'text.separator=\": \"'") from None


def _same(old: Any, new: Any) -> bool:
    """Whether two values are one to every reader; True is not 1."""
    return isinstance(old, bool) == isinstance(new, bool) and bool(old == new)


def _append(node: CommentedMap, name: str, value: Any) -> None:
    """Add a last key. What trails the key before it, up to the next section, is to trail the new one."""
    trailing = _split_trailing(*_last_leaf(node))
    node.pop(name, None)  # where it held null
    node[name] = value
    _hang(trailing, node)


def _remove(node: CommentedMap, name: str) -> bool:
    """Take a key away; what trails it, up to the next key, is to trail the key before it."""
    if name not in node:
        return False
    was_last = next(reversed(node)) == name
    trailing = _split_trailing(*_last_leaf(node)) if was_last else None
    del node[name]
    _hang(trailing, node)
    return True


def _last_leaf(node: CommentedMap) -> tuple[CommentedMap, Any]:
    """The mapping and key of the last line of a block mapping; the key is None where it is empty."""
    last = next(reversed(node), None)
    value = node.get(last)
    if isinstance(value, CommentedMap) and value and not value.fa.flow_style():
        return _last_leaf(value)
    return node, last


def _hang(trailing: Any, node: CommentedMap) -> None:
    holder, last = _last_leaf(node)
    if trailing is not None and last is not None:
        token = (holder.ca.items.get(last) or [None] * 4)[2]
        if token is None:
            holder.ca.items[last] = [None, None, trailing, None]
        else:
            token.value = token.value.rstrip("\n") + trailing.value


def _split_trailing(holder: CommentedMap, last: Any) -> Any:
    """Take what stands after the line of `last` (blank lines, comments of what follows) off it, as a comment token of its own."""
    token = (holder.ca.items.get(last) or [None] * 4)[2]
    if token is None or "\n" not in token.value:
        return None
    own, _, rest = token.value.partition("\n")
    if not rest:
        return None
    trailing = type(token)("\n" + rest, token.start_mark, None)
    if own:
        token.value = own + "\n"
    else:
        holder.ca.items.pop(last)
    return trailing


def _round_trip() -> YAML:
    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 4096
    return yaml
