"""Split texts into sentences by a heuristic, without models or language resources."""

import re
from collections.abc import Iterator

# An end mark, closing quotes and brackets, then space before a possible beginning of a sentence; or a Chinese or Japanese end mark.
END = re.compile(r"[.!?…][\"'”’)\]]*\s+(?=[\"'“‘(\[¿¡]*[^\W_a-z])|[。！？][」』”’）]*")
LAST_WORD = re.compile(r"(\S+)$")
ABBREVIATIONS = frozenset(
    ["mr", "mrs", "ms", "dr", "prof", "sr", "jr", "st", "mt", "ft", "gen", "col", "lt", "capt", "sgt", "maj", "rev", "hon", "gov", "sen",
     "rep", "pres", "vs", "etc", "cf", "ca", "c", "fl", "no", "nos", "vol", "pp", "p", "ed", "eds", "trans", "inc", "ltd", "co", "corp",
     "bros", "fig", "figs", "approx", "dept", "est", "al", "ibid", "op", "cit", "e.g", "i.e", "b", "r", "d", "m", "jan", "feb", "mar",
     "apr", "jun", "jul", "aug", "sep", "sept", "oct", "nov", "dec"]
)  # fmt: skip
INITIALS = re.compile(r"(?:[^\W\d_]\.)*[^\W\d_]")  # J, U.S


def sentences(text: str) -> Iterator[str]:
    """The sentences of a text in order, stripped. The end of a line always ends a sentence.

    A period after an abbreviation or an initial (Dr., U.S., J.) does not.
    """
    for line in text.splitlines():
        start = 0
        for end in END.finditer(line):
            if line[end.start()] == "." and ends_in_abbreviation(line[start : end.start()]):
                continue
            if sentence := line[start : end.end()].strip():
                yield sentence
            start = end.end()
        if remainder := line[start:].strip():
            yield remainder


def ends_in_abbreviation(text: str) -> bool:
    """Whether the period after `text` belongs to its last word, an abbreviation or an initial."""
    last_word = LAST_WORD.search(text)
    word = last_word[1].lstrip("\"'“‘([") if last_word else ""
    return word.lower() in ABBREVIATIONS or INITIALS.fullmatch(word) is not None
