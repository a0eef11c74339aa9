"""Wiki markup to plain text. mwparserfromhell parses; what is kept of each node is decided here.

Kept: paragraphs and list items, the words of links, the words of a few templates that stand inside sentences. Left out: all
other templates, tables, references, files, categories, links to other languages and projects that have no words of their own,
formulas, code, comments, headings, and whole sections of sources and links ("References", "External links", ...).
"""

import re
from html import unescape
from typing import Any

import mwparserfromhell
from mwparserfromhell import nodes  # none of its types are known to mypy

SECTIONS = frozenset(
    ["references", "external links", "see also", "further reading", "notes", "bibliography", "sources", "footnotes", "citations",
     "notes and references", "references and notes", "works cited", "literature", "gallery", "discography", "filmography"]
)  # fmt: skip
SILENT_TAGS = frozenset(
    ["ref", "references", "table", "gallery", "math", "chem", "code", "syntaxhighlight", "source", "pre", "timeline", "score",
     "imagemap", "hiero", "style", "script", "templatestyles", "section", "mapframe", "maplink", "graph", "inputbox", "ce",
     "tr", "td", "th"]
)  # fmt: skip
BREAKS = frozenset(["br", "hr", "p", "div", "li", "dt", "dd", "ul", "ol", "blockquote"])
# Templates whose words belong to the sentence: which positional parameters to keep, in order.
WORDS_OF = {
    "lang": (2,), "transl": (-1,), "transliteration": (-1,), "nowrap": (1,), "nobr": (1,), "val": (1,), "abbr": (1,), "tooltip": (1,), "small": (1,), "smallcaps": (1,), "sc": (1,), "formatnum": (1,),
    "as of": (1,), "quote": (1,), "blockquote": (1,), "cquote": (1,),
}  # fmt: skip
QUANTITIES = frozenset(["convert", "cvt"])
RANGES = {  # what may stand between two numbers of a quantity, and how it is shown
    "to": " to ", "to(-)": " to ", "and": " and ", "and(-)": " and ", "or": " or ", "by": " by ", "by(x)": " by ", "x": " × ", "×": " × ",
    "-": "–", "–": "–", "+/-": " ± ", "±": " ± ",
}  # fmt: skip
_NUMBER = re.compile(r"[-+−]?\d[\d.,/+⁄]*")
LITERAL = {"snd": " – ", "spaced ndash": " – ", "ndash": "–", "mdash": "—", "'": "'", "!": "|", "=": "=", "nbsp": " "}
_NAMESPACE = re.compile(r"\s*([\w -]{1,30}?)\s*:")
_LANGUAGE = re.compile(r"[a-z]{2,3}(-[a-z]+)*|simple")
SILENT_NAMESPACES = frozenset(["file", "image", "media", "category", "timedtext"])
NAMESPACES = frozenset(  # and other projects: a link there is left out, but [[wikt:brigand|brigand]] is a word of the sentence
    ["template", "wikipedia", "wp", "user", "talk", "help", "portal", "special", "wikt", "wiktionary", "commons", "s", "wikisource",
     "q", "wikiquote", "b", "n", "v", "d", "m", "meta", "mw", "project", "draft", "module", "book"]
)  # fmt: skip
RESIDUE = re.compile(
    r"\{\{|\}\}|\{\||\|\}|\[\[|\]\]|^\s*[|!]|</?(?:ref|table|tr|td|gallery|div|span|sub|sup|nowiki|onlyinclude)\b", re.IGNORECASE
)
SIGNS = [  # in the whole text
    (re.compile(r"-\{([^{}|]*)\}-"), r"\1"),  # a word that other scripts write in another way
    (re.compile(r"__[A-Z]+__"), ""),  # switches
    (re.compile(r"'{2,}"), ""),  # bold, italics
    (re.compile(r"^[*#:;]+\s*", re.MULTILINE), ""),  # marks of lists
]
GAPS = [  # in a line: what a removed template leaves in its sentence
    (re.compile(r"\(\s*(?:[,;:/–—-]\s*)*\)|\[\s*\]"), ""),
    (re.compile(r"\(\s*(?:[,;:]\s*)+"), "("),
    (re.compile(r"(?:\s*[,;:])+\s*\)"), ")"),
    (re.compile(r"[,;]\s*(?=[,;])"), ""),
    (re.compile(r"\s+([,.;:!?)])(?=\s|$)"), r"\1"),
    (re.compile(r" {2,}"), " "),
]


def plain_text(markup: str) -> tuple[str, int]:
    """The text of a page's markup, and how many lines still showed markup (an unbalanced template, say): these are left out whole."""
    code = mwparserfromhell.parse(markup, skip_style_tags=True)
    lines = [line for line in _tidy(_body(code)).split("\n") if line]
    kept = [line for line in lines if not RESIDUE.search(line)]
    return "\n".join(kept), len(lines) - len(kept)


def _body(code: Any) -> str:
    """The words of a page, sections of sources left out."""
    kept: list[str] = []
    silent = 0  # level of the heading whose section is left out
    for node in code.nodes:
        if isinstance(node, nodes.Heading):
            if silent and node.level > silent:
                continue
            silent = node.level if _words(node.title).strip().casefold() in SECTIONS else 0
            kept.append("\n")
        elif not silent:
            kept.append(_node(node))
    return "".join(kept)


def _words(code: Any) -> str:
    return "".join(_node(node) for node in code.nodes) if code is not None else ""


def _node(node: Any) -> str:
    """What is kept of one node."""
    match node:
        case nodes.Text():
            return str(node.value)
        case nodes.Wikilink():
            return _link(node)
        case nodes.Template():
            return _template(node)
        case nodes.Tag():
            return _tag(node)
        case nodes.ExternalLink():
            return _words(node.title) if node.brackets else ""
        case nodes.HTMLEntity():
            return unescape(str(node))
        case nodes.Heading():
            return "\n"
    return ""  # comments, template arguments


def _link(node: Any) -> str:
    if found := _NAMESPACE.match(str(node.title)):  # not where a colon stands first: [[:Category:X]] is a link to be read
        space = found[1].casefold()
        if space in SILENT_NAMESPACES:
            return ""
        if node.text is None and (space in NAMESPACES or _LANGUAGE.fullmatch(found[1])):
            return ""
    return _words(node.text) if node.text is not None else _words(node.title).lstrip(":")


def _template(node: Any) -> str:
    name = str(node.name).strip().casefold()
    if name in LITERAL:
        return LITERAL[name]
    places = WORDS_OF.get(name)
    if places is None and name not in QUANTITIES:
        return ""
    values = [_words(p.value).strip() for p in node.params if not p.showkey]
    if places is None:
        return _quantity(values)
    return " ".join(values[place - 1 if place > 0 else place] for place in places if abs(place) <= len(values))


def _quantity(values: list[str]) -> str:
    """The first of the quantities that {{convert}} shows, without its conversion.

    400|to|670|mm: 400 to 670 mm. 5|ft|10|in: 5 ft 10 in. 5|km|mi|1, where a unit and digits follow: 5 km.
    """
    found, rest = "", values
    while len(rest) > 2 and rest[1] in RANGES:
        found, rest = f"{found}{rest[0]}{RANGES[rest[1]]}", rest[2:]
    parts = rest[:2]
    rest = rest[2:]
    while len(rest) > 1 and _NUMBER.fullmatch(rest[0]) and rest[1] and not _NUMBER.fullmatch(rest[1]):
        parts, rest = [*parts, *rest[:2]], rest[2:]
    return found + " ".join(parts)


def _tag(node: Any) -> str:
    name = str(node.tag).strip().casefold()
    if name in SILENT_TAGS:
        return ""
    if node.wiki_markup and node.contents is None:
        return str(node.wiki_markup) if name not in BREAKS else ""
    inside = _words(node.contents)
    return f"\n{inside}\n" if name in BREAKS else inside


def _tidy(text: str) -> str:
    """Spaces folded, lines kept; signs of the markup and the gaps that removed templates leave taken out."""
    for pattern, kept in SIGNS:
        text = pattern.sub(kept, text)
    lines = [" ".join(line.split()) for line in text.split("\n")]
    for pattern, kept in GAPS:
        lines = [pattern.sub(kept, line) for line in lines]
    return "\n".join(line.strip() for line in lines)
