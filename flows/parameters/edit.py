"""`--set section.key=value`: a permanent edit of params.yaml that keeps its comments and order. `migrations` edits by the same rules."""

import io
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import compress
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import CommentMark, YAMLError
from ruamel.yaml.scalarstring import DoubleQuotedScalarString
from ruamel.yaml.tokens import CommentToken

from tasks.core.errors import UserError
from tasks.core.files import write_text
from tasks.core.params.safe_yaml import Refused, parse_yaml
from tasks.core.params.sections import read_yaml

PAIR = re.compile(r"\\ud[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2}")  # JSON's escapes of a character beyond U+FFFF
PLAIN_IN_BLOCKS = re.compile("[:?]")  # in a word that needs no quotes, except within {} and []
Place = tuple[Any, Any]  # a mapping or sequence, and the key at which a comment hangs


def apply(assignments: Sequence[str], path: Path, check: Callable[[dict[str, Any]], object], *, by_user: bool = False) -> str | None:
    """Apply all `assignments` to `path` at once; return its former text, or None if nothing changed and nothing was written.

    An assignment is `a.b=VALUE`, VALUE in YAML 1.2 (`1e-05` is a number, `[1, 2]` a list, `null` null); missing sections
    are created. `a.b=` removes the key. `check` sees the whole result first; if it raises UserError, `path` stays as it was.
    `by_user`: these are a person's own --set, so one without an effect is refused.
    """
    if not assignments:
        return None
    before = read_text(path)
    after = apply_to_text(before, assignments, check, by_user=by_user)
    if after is None:
        return None
    write_text(path, after)
    return before


def apply_to_text(
    before: str, assignments: Sequence[str], check: Callable[[dict[str, Any]], object], *, by_user: bool = False
) -> str | None:
    """`apply` on the text of a file; return its new text, or None if nothing changes."""
    document = load(before.replace("\r\n", "\n"))
    changes = [_assign(document, assignment) for assignment in assignments]
    if not any(changes):
        return None
    for assignment in compress(assignments, changes) if by_user else ():
        _refuse_ignored_epochs(document, assignment)
    text = dump(document)
    check(parse_yaml(text) or {})
    return text.replace("\n", "\r\n" if "\r\n" in before else "\n")


def read_text(path: Path) -> str:
    """The text of a parameter file with its own newlines. Raises UserError if it cannot be read."""
    read_yaml(path)
    return path.read_bytes().decode("utf-8")


def setting(key: str, value: Any) -> str:
    """The assignment that gives `key` this value."""
    return f"{key}={literal(value)}"


def literal(value: Any) -> str:
    """A value as one line of ASCII that YAML and TOML read: JSON, except that characters beyond U+FFFF are one escape, not two."""
    return PAIR.sub(_joined, json.dumps(value, default=str))


def _joined(pair: re.Match[str]) -> str:
    character = json.loads(f'"{pair[0]}"')
    return f"\\U{ord(character):08X}"


def load(text: str) -> CommentedMap:
    """A YAML mapping with its comments and order."""
    return writer().load(text) or CommentedMap()


def dump(document: CommentedMap) -> str:
    """The text of a document. Within {} and [], words with : or ? are quoted, because DVC's reader needs that."""
    inline = set[int]()  # ids of values within {} or []
    for _, node in _nodes(document):
        if not node:
            node.fa.set_flow_style()  # otherwise a comment would come between its key and its {}
        if node.fa.flow_style() or id(node) in inline:
            for key, value in node.items() if isinstance(node, CommentedMap) else enumerate(node):
                inline.add(id(value))
                if type(value) is str and PLAIN_IN_BLOCKS.search(value):
                    node[key] = DoubleQuotedScalarString(value)
    text = io.StringIO()
    writer().dump(document, text)
    return text.getvalue()


def parse(written: str) -> Any:
    """A value written in YAML 1.2, in the form that a document takes."""
    return writer().load(written)


def assign(document: CommentedMap, key: str, written: str) -> None:
    """Apply `key=written`; missing sections are created, and comments stay where they are."""
    _assign(document, f"{key}={written}")


def move(document: CommentedMap, key: str, to: str) -> None:
    """Rename an entry; both keys are `section.key`, of sections that exist."""
    (section, name), (target, new) = key.split("."), to.split(".")
    value = document[section][name]
    _remove(document[section], name, (document, section))
    _append(document[target], new, value, above=(document, target))


def insert(document: CommentedMap, name: str, value: Any, *, after: str, comment: str) -> None:
    """Add a section after section `after`, or at the end if that is missing, with a comment on its line and a blank line before it."""
    keys = list(document)
    previous = after if after in document else keys[-1] if keys else None
    if previous is None:
        document[name] = value
        return
    trailing = _split_trailing(_leaf(document, previous))
    blank = CommentToken("\n\n", CommentMark(0), None)
    document.insert(keys.index(previous) + 1, name, value)
    _attach_comment(blank, _leaf(document, previous))
    document.yaml_add_eol_comment(comment, name, column=0)
    document.ca.items[name][2].value = f"# {comment}\n"
    _attach_comment(trailing, (document, name))


def _assign(document: CommentedMap, assignment: str) -> bool:
    """Apply one assignment; return False if it changes nothing."""
    key, equals, written = assignment.partition("=")
    names = key.strip().split(".")
    if not equals or not all(names):
        raise UserError(f"--set {assignment}: expected section.key=value, such as rounds.star.lr=1e-5")
    node: Any = document
    above: Place | None = None  # of the node
    for depth, name in enumerate(names[:-1]):
        if not isinstance(node, CommentedMap):
            raise UserError(f"--set {assignment}: {'.'.join(names[:depth])} is not a section: found {node!r}")
        if node.get(name) is None:  # the rest of the path is new
            if not written:
                return False
            _refuse_shared(document, node, assignment)
            value = _parse(written, assignment)
            for below in reversed(names[depth + 1 :]):
                value = CommentedMap({below: value})
            _append(node, name, value, above=above)
            return True
        node, above = node[name], (node, name)
    if not isinstance(node, CommentedMap):
        raise UserError(f"--set {assignment}: {'.'.join(names[:-1])} is not a section: found {node!r}")
    last = names[-1]
    value = _parse(written, assignment) if written else None
    if (last not in node) if not written else last in node and _same(node[last], value):
        return False
    _refuse_shared(document, node, assignment)
    if not written:
        _remove(node, last, above)
    elif last not in node:
        _append(node, last, value, above=above)
    else:
        node[last] = value
    return True


def _refuse_ignored_epochs(document: CommentedMap, assignment: str) -> None:
    """Raise UserError if an assignment sets epochs where steps decide: the training would be repeated, to no effect."""
    key, _, written = assignment.partition("=")
    *above, last = key.strip().split(".")
    if last == "epochs" and written:
        entry: Any = document
        for name in above:
            entry = entry.get(name) if isinstance(entry, Mapping) else None  # a later assignment may have removed it
        if isinstance(entry, Mapping) and (steps := entry.get("steps")) is not None:
            place = ".".join(above)
            raise UserError(f"--set {assignment}: has no effect, because {place}.steps is {steps}; remove that: --set {place}.steps=")


def _refuse_shared(document: CommentedMap, node: CommentedMap, assignment: str) -> None:
    """Raise UserError if an edit of `node` would also change another section, because an alias (`*name`) makes them the same."""
    places = [key for key, value in _nodes(document) if value is node]
    if len(places) > 1:
        raise UserError(
            f"--set {assignment}: {' and '.join(places)} are the same section (anchor & and alias *); write it out in each place first"
        )


def _nodes(node: Any, key: str = "", ancestors: tuple[int, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every mapping and sequence in a document, with its dotted key; one that is in several places comes once for each."""
    entries = node.items() if isinstance(node, CommentedMap) else enumerate(node)
    for name, value in entries:
        if isinstance(value, CommentedMap | CommentedSeq) and id(value) not in ancestors:
            child_key = f"{key}.{name}" if key else str(name)
            yield child_key, value
            yield from _nodes(value, child_key, (*ancestors, id(value)))


def _parse(written: str, assignment: str) -> Any:
    remedy = "quote it, such as --set 'text.separator=\": \"'"
    try:
        parse_yaml(written)  # as readers do; the round-trip loader keeps a tag such as !x
        value = writer().load(written)
    except Refused as error:
        raise UserError(f"--set {assignment}: {error.problem}") from None
    except (YAMLError, ValueError):  # ValueError: 2024-13-45, !!int x
        raise UserError(f"--set {assignment}: the value is not YAML; {remedy}") from None
    trimmed = type(value) is str and value != written and not written.startswith("!")
    if trimmed or (value is None and written.strip().lower() not in ("null", "~")):
        raise UserError(f"--set {assignment}: YAML reads the value as {value!r}; {remedy}")
    if isinstance(value, CommentedMap) and value and not value.fa.flow_style() and "\n" not in written:
        raise UserError(f"--set {assignment}: YAML reads the value as a section, {dict(value)}; {remedy}, or write {{...}}")
    return value


def _same(old: Any, new: Any) -> bool:
    """Whether two values are equal for every reader; True is not 1."""
    return isinstance(old, bool) == isinstance(new, bool) and bool(old == new)


def _append(node: CommentedMap, name: str, value: Any, *, above: Place | None) -> None:
    """Add a last key. Comments after the former last key, up to the next section, move after the new one."""
    trailing = _split_trailing(_last_place(node, above))
    node.pop(name, None)  # if it was null
    node[name] = value
    _attach_comment(trailing, _last_place(node, above))


def _remove(node: CommentedMap, name: str, above: Place | None) -> None:
    """Remove a key. Comments after it, up to the next key, move after the previous key, or else after the section's own line."""
    trailing = _split_trailing(_leaf(node, name))
    keys = list(node)
    previous = keys[keys.index(name) - 1] if name != keys[0] else None
    place = above if previous is None else _leaf(node, previous)
    leading = (node.ca.items.get(name) or [None] * 4)[1] or []  # comments before it, if the previous key is on one line
    if lines := "".join(f"{' ' * token.start_mark.column if token.value.strip() else ''}{token.value}" for token in leading):
        _attach_comment(type(leading[0])(f"\n{lines}", leading[0].start_mark, None), place)
    del node[name]
    node.ca.items.pop(name, None)
    if place is None and trailing is not None and node:  # the document's first key: its comments move before the next key
        trailing.value, trailing.column = trailing.value.removeprefix("\n"), 0
        tokens = node.ca.items.setdefault(keys[1], [None] * 4)
        tokens[1] = [trailing, *(tokens[1] or [])]
    _attach_comment(trailing, place)


def _last_place(node: CommentedMap, above: Place | None) -> Place | None:
    """The place that holds a comment after a block mapping: its last line, or the line of its name if it is empty."""
    last = next(reversed(node), None)
    return _leaf(node, last) if last is not None else None if node.fa.flow_style() else above


def _leaf(holder: Any, key: Any) -> Place:
    """The place that holds a comment after an entry: the entry itself, or the last one within it."""
    value = holder[key]
    if isinstance(value, CommentedMap | CommentedSeq) and value and not value.fa.flow_style():
        return _leaf(value, next(reversed(value)) if isinstance(value, CommentedMap) else len(value) - 1)
    return holder, key


def _attach_comment(trailing: Any, place: Place | None) -> None:
    if trailing is None or place is None:
        return
    holder, key = place
    slot = 0 if isinstance(holder, CommentedSeq) else 2
    tokens = holder.ca.items.setdefault(key, [None] * 4)
    if tokens[slot] is None:
        tokens[slot] = trailing
    else:
        tokens[slot].value = tokens[slot].value.removesuffix("\n") + trailing.value


def _split_trailing(place: Place | None) -> Any:
    """Detach what follows an entry's line (blank lines, comments on the next entry), and return it as a separate comment token."""
    if place is None:
        return None
    holder, key = place
    slot = 0 if isinstance(holder, CommentedSeq) else 2
    token = (holder.ca.items.get(key) or [None] * 4)[slot]
    if token is None or "\n" not in token.value:
        return None
    line_end, _, following = token.value.partition("\n")
    if not following:
        return None
    trailing = type(token)("\n" + following, token.start_mark, None)
    if line_end:
        token.value = line_end + "\n"
    else:
        holder.ca.items[key][slot] = None
    return trailing


def writer() -> YAML:
    """A reader and writer of YAML 1.2 that preserves comments, order, and quotes."""
    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 4096
    return yaml
