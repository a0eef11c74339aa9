"""Wiki markup to plain text. mwparserfromhell parses; this module decides what to keep of each node.

Kept: paragraphs and list items, the words of links, the words of a few templates inside sentences. Removed: all
other templates, tables, references, files, categories, links to other languages and projects without words of their own,
formulas, blocks of code, comments, headings, and whole sections of sources and links ("References", "External links", ...).
"""

import re
from collections.abc import Iterator
from html import unescape
from typing import Any

import mwparserfromhell
from mwparserfromhell import nodes  # none of its types are known to mypy

SECTIONS = frozenset(
    ["references", "external links", "see also", "further reading", "notes", "bibliography", "sources", "footnotes", "citations",
     "notes and references", "references and notes", "works cited", "literature", "gallery", "discography", "filmography"]
)  # fmt: skip
SILENT_TAGS = frozenset(
    ["ref", "references", "table", "gallery", "chem", "syntaxhighlight", "source", "pre", "timeline", "score",
     "imagemap", "hiero", "style", "script", "templatestyles", "section", "mapframe", "maplink", "graph", "inputbox", "ce",
     "tr", "td", "th"]
)  # fmt: skip
BREAKS = frozenset(["br", "hr", "p", "div", "li", "dt", "dd", "ul", "ol", "blockquote", "poem"])
BREAK = "\n\n"  # a paragraph's end; a single line break inside one is a space
# Templates whose words are part of the sentence: the positional parameters to keep, in order; {{lang-XX}} is among them.
FIRST = [
    "nowrap", "nobr", "val", "abbr", "tooltip", "small", "smaller", "big", "large", "larger", "smallcaps", "sc", "em", "strong",
    "formatnum", "quote", "blockquote", "bquote", "cquote", "nihongo", "vanchor", "visible anchor", "linktext", "ipa", "chem2",
    "flag", "railgauge", "track gauge", "rail gauge", "interlanguage link", "ill", "math", "mvar", "not a typo", "nq",
]  # fmt: skip
WORDS_OF = {
    **dict.fromkeys(FIRST, (1,)), "lang": (2,), "script": (2,), "rtl-lang": (2,), "langx": (2,), "wikt-lang": (2,), "color": (2,),
    "transl": (-1,), "transliteration": (-1,),
}  # fmt: skip
_WORDS_NAMED = {"text": "1", "quote": "1"}  # {{quote|text=...}}
# Templates that prepend something to their first parameter.
PREFIXES = {
    "circa": "c. ", "c.": "c. ", "ca.": "c. ", "floruit": "fl. ", "fl.": "fl. ", "us$": "US$", "usd": "US$", "a$": "A$", "aud": "A$",
    "£": "£", "gbp": "£", "€": "€", "euro": "€", "eur": "€", "¥": "¥", "inr": "₹", "hms": "HMS ", "uss": "USS ", "ss": "SS ", "rms": "RMS ",
    "e": "×10^",
}  # fmt: skip
JOINED = frozenset(["chem", "sic"])  # C|2|H|6
FRACTIONS = frozenset(["frac", "sfrac"])
MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December"]
QUANTITIES = frozenset(["convert", "cvt"])
KEPT = frozenset([*WORDS_OF, *PREFIXES, *JOINED, *FRACTIONS, *QUANTITIES, "as of", "angbr", "ipa", "ordered list"])
RANGES = {  # words and signs between two numbers of a quantity, and how they are shown
    "to": " to ", "to(-)": " to ", "and": " and ", "and(-)": " and ", "or": " or ", "by": " by ", "by(x)": " by ", "x": " × ", "×": " × ",
    "-": "–", "–": "–", "+/-": " ± ", "±": " ± ",
}  # fmt: skip
_NUMBER = re.compile(r"[-+−]?\d[\d.,/+⁄]*")
LITERAL = {
    "snd": " – ", "spaced ndash": " – ", "spaced en dash": " – ", "ndash": "–", "en dash": "–", "mdash": "—", "em dash": "—", "mdashb": "—",
    "'": "'", "'s": "'s", "' \"": "'\"", "\" '": "\"'", "!": "|", "=": "=", "nbsp": " ", "thinsp": " ", "spaces": " ",
}  # fmt: skip
_NAMESPACE = re.compile(r"\s*([\w -]{1,30}?)\s*:")
_LANGUAGE = re.compile(r"[a-z]{2,3}(-[a-z]+)*|simple")
SILENT_NAMESPACES = frozenset(["file", "image", "media", "category", "timedtext"])
NAMESPACES = frozenset(  # and other projects: such links are removed, but [[wikt:brigand|brigand]] is a word of the sentence
    ["template", "wikipedia", "wp", "user", "talk", "help", "portal", "special", "wikt", "wiktionary", "commons", "s", "wikisource",
     "q", "wikiquote", "b", "n", "v", "d", "m", "meta", "mw", "project", "draft", "module", "book"]
)  # fmt: skip
RESIDUE = re.compile(
    r"\{\{|\}\}|\{\||\|\}|\[\[|\]\]|^\s*[|!]|</?(?:ref|table|tr|td|gallery|div|span|sub|sup|nowiki|onlyinclude)\b", re.IGNORECASE
)
_QUOTES = re.compile(r"'{2,}")  # bold, italics
_MARKS = re.compile(r"^[*#:;]+\s*")  # list markers
_STANDS_ALONE = re.compile(r"[*#:; ]")  # a line that begins so is not part of a paragraph
_PLAIN_FORMULA = re.compile(r"[A-Za-z0-9 .,=+*/()<>−-]{1,20}")
SIGNS = [  # replaced in the whole text
    (re.compile(r"-\{([^{}|]*)\}-"), r"\1"),  # a word with variants in other scripts
    (re.compile(r"__[A-Z]+__"), ""),  # behavior switches, such as __NOTOC__
]
GAPS = [  # replaced in each line: punctuation that is left of a sentence around a removed template
    (re.compile(r"\(\s*(?:[,;:/–—-]\s*)*\)|\[\s*\]"), ""),
    (re.compile(r"\((?:\s*[,;:])*\s+|\((?:\s*[,;:])+"), "("),
    (re.compile(r"^[,;:]\s+"), ""),
    (re.compile(r"(?:\s*[,;:])+\s*\)"), ")"),
    (re.compile(r"[,;]\s*(?=[,;])"), ""),
    (re.compile(r"\s+([,.;:!?)\]])(?=[\s)\]]|$)"), r"\1"),
    (re.compile(r" {2,}"), " "),
]


def plain_text(markup: str) -> tuple[str, int]:
    """The text of a page's markup, and the number of lines removed for leftover markup (such as an unbalanced template)."""
    text = _body(mwparserfromhell.parse(_without_quotes(markup), skip_style_tags=True))
    for pattern, replacement in SIGNS:
        text = pattern.sub(replacement, text)
    lines = text.split("\n")
    clean_lines = ["" if RESIDUE.search(line) else line for line in lines]
    tidy = (_tidy(line) for line in _paragraphs(clean_lines))
    return "\n".join(line for line in tidy if line), sum(map(bool, map(RESIDUE.search, lines)))


def _without_quotes(markup: str) -> str:
    """The markup without bold and italics. Two quotes are italics, three bold, five both; further ones are apostrophes.

    If a line has an odd number of each, MediaWiki reads one bold as an apostrophe and italics: ''Iliad'''s.
    """
    return "\n".join(_line_without_quotes(line) if "''" in line else line for line in markup.split("\n"))


def _line_without_quotes(line: str) -> str:
    runs = [(quotes.start(), len(quotes[0])) for quotes in _QUOTES.finditer(line)]
    apostrophe = -1
    if sum(n == 2 or n >= 5 for _, n in runs) % 2 and sum(n >= 3 for _, n in runs) % 2:  # the first after a letter, a word, a space
        places = [start for start, n in runs if n == 3]
        preceding = {place: (line[max(place - 1, 0) : place], line[max(place - 2, 0) : max(place - 1, 0)]) for place in places}
        apostrophe = min(places, key=lambda p: (preceding[p][0] in ("", " "), preceding[p][1] not in ("", " ")), default=-1)
    return _QUOTES.sub(lambda quotes: "'" * (quotes.start() == apostrophe or (n := len(quotes[0])) == 4 or max(n - 5, 0)), line)


def _paragraphs(lines: list[str]) -> Iterator[str]:
    """Join the source's lines to paragraphs. A paragraph ends at a blank line, or at a line that stands alone (such as a list item)."""
    waiting: list[str] = []
    for line in lines:
        stands_alone = _STANDS_ALONE.match(line)
        if waiting and (stands_alone or not line.strip()):
            yield " ".join(waiting)
            waiting = []
        if stands_alone:
            yield _MARKS.sub("", line)
        elif line.strip():
            waiting.append(line)
    if waiting:
        yield " ".join(waiting)


def _body(code: Any) -> str:
    """The text of a page without its sections of sources and links."""
    texts: list[str] = []
    silent = 0  # level of the heading whose section is removed
    for node in code.nodes:
        if isinstance(node, nodes.Heading):
            if silent and node.level > silent:
                continue
            silent = node.level if _words(node.title).strip().casefold() in SECTIONS else 0
            texts.append(BREAK)
        elif not silent:
            texts.append(_node(node))
    return "".join(texts)


def _words(code: Any) -> str:
    return "".join(_node(node) for node in code.nodes) if code is not None else ""


def _node(node: Any) -> str:
    """The text that is kept of one node."""
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
            return BREAK
    return ""  # comments, template arguments


def _link(node: Any) -> str:
    if prefix := _NAMESPACE.match(str(node.title)):  # not with a leading colon: [[:Category:X]] is a visible link
        space = prefix[1].casefold()
        if space in SILENT_NAMESPACES:
            return ""
        if node.text is None and (space in NAMESPACES or _LANGUAGE.fullmatch(prefix[1])):
            return ""
    return _words(node.text) if node.text is not None else _words(node.title).lstrip(":")


def _template(node: Any) -> str:
    name = str(node.name).strip().casefold()
    if name in LITERAL:
        return LITERAL[name]
    if name.startswith("formatnum:"):
        return _words(node.name).partition(":")[2].strip()
    if name not in KEPT and not name.startswith("lang-"):
        return ""
    parameters = {_WORDS_NAMED.get(key := str(p.name).strip(), key): _words(p.value).strip() for p in node.params}
    values = [parameters.get(str(place), "") for place in range(1, len(parameters) + 1)]
    while values and not values[-1]:
        values.pop()
    first = values[0] if values else ""
    if name in PREFIXES:
        return PREFIXES[name] + first
    if name in QUANTITIES:
        return _quantity(values)
    if name in JOINED:
        return "".join(values)
    if name in FRACTIONS:  # 3: 1/3, 1|3: 1/3, 2|1|3: 2 1/3
        return " ".join([*values[:-2], "/".join(values[-2:] if len(values) > 1 else ["1", first])])
    if name == "as of":
        return _as_of(values, "lc" in parameters)
    if name == "angbr":
        return f"⟨{first}⟩"
    if name == "ipa":
        return first if len(values) == 1 else ""  # fr|mɔ̃ is the pronunciation of a title
    if name == "ordered list":
        return "".join(f"{BREAK}{value}{BREAK}" for value in values)
    places = WORDS_OF.get(name, (1,))
    return " ".join(values[place - 1 if place > 0 else place] for place in places if abs(place) <= len(values))


def _as_of(values: list[str], lowercase: bool) -> str:
    """`As of 30 June 2015`, from year, month, and day."""
    date = [MONTHS[int(v) - 1] if place == 1 and v.isdecimal() and 0 < int(v) < 13 else v for place, v in enumerate(values[:3])]
    return " ".join(["as of" if lowercase else "As of", *reversed(date)])


def _quantity(values: list[str]) -> str:
    """The quantity of a {{convert}} as it was given, without its conversion.

    400|to|670|mm: 400 to 670 mm. 5|ft|10|in: 5 ft 10 in. 5|km|mi|1, which ends with the unit to convert to and digits: 5 km.
    """
    prefix, remaining = "", values
    while len(remaining) > 2 and remaining[1] in RANGES:
        prefix, remaining = f"{prefix}{remaining[0]}{RANGES[remaining[1]]}", remaining[2:]
    parts = remaining[:2]
    remaining = remaining[2:]
    while len(remaining) > 1 and _NUMBER.fullmatch(remaining[0]) and remaining[1] and not _NUMBER.fullmatch(remaining[1]):
        parts, remaining = [*parts, *remaining[:2]], remaining[2:]
    return prefix + " ".join(parts)


def _tag(node: Any) -> str:
    name = str(node.tag).strip().casefold()
    if name in SILENT_TAGS:
        return ""
    if node.wiki_markup:  # * # : ; and ----
        return BREAK if name == "hr" else str(node.wiki_markup)
    content = _words(node.contents)
    if name == "code" and "\n" in content:
        return ""
    if name == "math" and not _PLAIN_FORMULA.fullmatch(content):
        return ""
    if name == "poem":
        content = content.replace("\n", BREAK)
    return f"{BREAK}{content}{BREAK}" if name in BREAKS else content


def _tidy(line: str) -> str:
    """Fold the spaces of a line, and close the gaps that removed templates left."""
    line = " ".join(line.split())
    for pattern, replacement in GAPS:
        line = pattern.sub(replacement, line)
    return line.strip()
