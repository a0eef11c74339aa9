"""Refuse malicious YAML 1.2 before memory grows: aliases within aliases, and excessive nesting. Also refuse half characters.

A few hundred bytes of aliases (`b: &b [*a, *a]; c: &c [*b, *b] ...`) expand to billions of values for any code that walks them, and merge
keys (`<<`) expand even while they are read. Each level of nesting takes stack, and libyaml (ruamel.yaml's and DVC's fast reader) ends in a
segmentation fault.
"""

import re
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer
from ruamel.yaml.error import FileMark, MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

MOST_LEVELS = 100  # a parameter file has four
MOST_VALUES = 100_000  # that aliases may add; a parameter file has a few hundred in all
INDENT = re.compile(r"^[ \t]*", re.MULTILINE)
OPENERS = re.compile(rf"(?:[\[{{]\s*){{{MOST_LEVELS + 1},}}")  # in a row: ruamel.yaml needs 5 s to scan 1,000 of them
HALVES = re.compile("[\ud800-\udfff]")  # JSON escapes a character beyond U+FFFF as two of these: YAML does not join them, no file holds one
INDICATORS = re.compile(r"[-?:][ \t]")


class Refused(MarkedYAMLError):
    """Nested too deeply, aliases that expand to too much, or half a character. `problem` says which, in one line."""


class LimitedComposer(Composer):
    """ruamel.yaml's composer, with a limit on levels while nodes are made, and on alias expansion before values are built."""

    level = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        self.level += 1
        if self.level > MOST_LEVELS:
            mark = self.parser.peek_event().start_mark
            raise Refused(problem=f"nested deeper than {MOST_LEVELS} levels", problem_mark=mark)
        try:
            node = super().compose_node(parent, index)
        finally:
            self.level -= 1
        if isinstance(node, ScalarNode) and (half := HALVES.search(node.value)):
            problem = f"found \\u{ord(half[0]):04x}, half of a character as JSON escapes it; write the character itself"
            raise Refused(problem=problem, problem_mark=node.start_mark)
        return node

    def compose_document(self) -> Any:
        root = super().compose_document()
        refuse_expansion(root)
        return root


def refuse_expansion(root: Node) -> None:
    """Raise Refused if the aliases of a node graph add more than MOST_VALUES values, or if one is inside its own anchor."""
    sizes: dict[int, int | None] = {}  # None: an ancestor of the current node

    def size(node: Node) -> int:
        count = sizes.get(id(node), 0)
        if count is None:
            raise Refused(problem="an alias (*name) is within its own anchor (&name)", problem_mark=node.start_mark)
        if count:
            return count
        sizes[id(node)] = None
        children = node.value if isinstance(node, SequenceNode) else sum(node.value, ()) if isinstance(node, MappingNode) else ()
        total = 1 + sum(map(size, children))
        sizes[id(node)] = total
        return total

    total = size(root)
    if total - len(sizes) > MOST_VALUES:
        raise Refused(problem=f"its aliases (*name) expand to {total:,} values; write them out", problem_mark=root.start_mark)


def parse_yaml(text: str) -> Any:
    """The value of a YAML 1.2 document; ruamel.yaml's YAMLError (Refused is one) or ValueError if it is invalid."""
    if match := OPENERS.search(text):
        line = text.count("\n", 0, match.start())
        raise Refused(problem=f"nested deeper than {MOST_LEVELS} levels", problem_mark=FileMark("", match.start(), line, 0))
    reader = YAML(typ="safe", pure=True)
    reader.Composer = LimitedComposer
    return reader.load(text)


def refuse_bomb(text: str) -> None:
    """Raise Refused if `text` would crash another reader (DVC, libyaml); that reader reports any other error.

    Nearly every file passes by its counts alone, which are an upper bound on its depth (those readers fail at 250 and more); pure
    Python reads only 1,000 lines a second.
    """
    openers = text.count("[") + text.count("{") - text.count("${")  # in valid YAML, "${" opens nothing
    indent = max(map(len, INDENT.findall(text)), default=0)
    inline = max((len(INDICATORS.findall(line)) for line in text.splitlines()), default=0)
    if openers + 2 * indent + inline > 2 * MOST_LEVELS or ("&" in text and "*" in text):
        try:
            parse_yaml(text)
        except Refused:
            raise
        except (YAMLError, ValueError):
            return
