"""Words: lowercased runs of two or more letters or digits with their combining marks, without stopwords, stemmed.

Scripts that are written without blanks between words are cut into overlapping bigrams, unless `cjk` is words: runs of Han, Hiragana,
Katakana, and Hangul as Lucene's CJKAnalyzer cuts them, and Thai, Lao, Khmer, and Myanmar likewise, where a letter with its marks is one
character. A run may mix these scripts; a single character is a word. Full-width letters and half-width katakana are read in their usual
width.

Lucene: analysis/cjk/CJKBigramFilter.java and CJKWidthFilter.java. Differences: Hangul next to a Latin letter or a digit is separated from
it and cut into bigrams too (Lucene's tokenizer leaves these a word); marks stay with their letter (Lucene: characters of their own); and a
single character of another script counts only where it touches such a run (the A of a Chinese A-share).
"""

import re
import unicodedata
from collections.abc import Callable
from itertools import pairwise

import regex
import Stemmer

from tasks.core.text.without_jax import stopwords as lists

ASCII_WORD = re.compile(r"\b\w\w+\b")  # bm25s' own; single characters say little
WORD = regex.compile(r"[\p{L}\p{N}_][\p{L}\p{N}\p{M}_]+")  # the same, but Python's \w matches no marks, which most words of Hindi have
LETTERS = regex.compile(r"[\p{L}\p{N}_][\p{L}\p{N}\p{M}_]*")  # the same, and single ones

# Letters without blanks between words. The escapes are of no script; kana and Han share them: \u30fc makes a vowel long, \u3031 repeats.
SCRIPTS = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\u3006\u3031-\u3035\u303c\u30fc\uff70\uff9e\uff9f"
UNSPACED = rf"[[{SCRIPTS}]&&[\p{{L}}\p{{Nl}}]]"
SPACED = rf"[[\p{{L}}\p{{N}}_]--{UNSPACED}]"
RUN = rf"(?:{UNSPACED}\p{{M}}*)+"
ALONE = rf"(?!_)(?:(?<={UNSPACED}\p{{M}}*){SPACED}|{SPACED}(?={UNSPACED}))"
PIECE = regex.compile(rf"(?V1)({RUN})|{SPACED}[{SPACED}\p{{M}}]+|{ALONE}")
CHARACTER = regex.compile(r"(?s).\p{M}*")
# BLOCKS has the letters that are cut or folded. EASY has none of them and lacks others, too, but matches four times as fast.
BLOCKS = re.compile("[\u0e00-\u17ff\u2e80-\ud7ff\uf900-\ufaff\uff01-\uffdf\U00016fe0-\U0001b2ff\U00020000-\U0003ffff]")
EASY = re.compile("[\0-\u0dff\u1800-\u2e7f]*+")
USUAL = {code: unicodedata.normalize("NFKC", chr(code)) for code in (*range(0xFF01, 0xFF5F), *range(0xFF65, 0xFFA0))}


def words(text: str) -> list[str]:
    """The words of a text, unchanged."""
    matches: list[str] = (ASCII_WORD if text.isascii() else WORD).findall(text)
    return matches


def unspaced(text: str) -> bool:
    """Whether a text may have letters of scripts without blanks between words, or of other widths; False is certain."""
    return not (text.isascii() or EASY.fullmatch(text)) and BLOCKS.search(text) is not None


def pieces(text: str) -> list[str]:
    """The words of a text, unchanged; bigrams where there are no blanks between words."""
    if not unspaced(text):
        return words(text)
    parts = list[str]()
    for word in LETTERS.findall(text):
        if unspaced(word):
            for match in PIECE.finditer(word):
                parts += [match[0]] if match[1] is None else bigrams(match[1])
        elif len(word) > 1:
            parts.append(word)
    return parts


def bigrams(run: str) -> list[str]:
    """All pairs of neighboring characters of a run, where a letter with its marks is one character; a single character as it is."""
    characters = run if run.isalpha() else CHARACTER.findall(run)  # without marks, it is its characters
    return [first + second for first, second in pairwise(characters)] or [run]


def lowered(text: str, turkish: bool) -> str:
    """A text in lower case, composed (NFC), without the combining dot that Python leaves of a capital dotted I (as in Istanbul)."""
    if not text.isascii():
        text = unicodedata.normalize("NFC", text)
    if turkish:
        text = text.replace("I", "\N{LATIN SMALL LETTER DOTLESS I}")
    return text.lower() if text.isascii() else text.lower().replace("i\N{COMBINING DOT ABOVE}", "i")


def stop_list(name: str) -> frozenset[str]:
    """bm25s' stopwords under a name that params.yaml may have (tasks.core.lexical.params.Stopwords)."""
    suffix = {"english": "EN", "english_plus": "EN_PLUS"}.get(name, name.upper())
    return frozenset(() if name == "none" else getattr(lists, f"STOPWORDS_{suffix}"))


def analyzer(stemmer: str, stopwords: str, cjk: str = "bigrams") -> Callable[[str], list[str]]:
    """The function from a text to its terms, in order; `stemmer` is a Snowball language or none, `stopwords` names a `stop_list`.

    `cjk`: bigrams, or words, which leaves runs without blanks whole, and widths as they are.
    """
    stop = stop_list(stopwords)
    stem = (lambda words: words) if stemmer == "none" else Stemmer.Stemmer(stemmer).stemWords

    turkish = "turkish" in (stemmer, stopwords)
    keeps_runs = {"bigrams": False, "words": True}[cjk]

    def terms(text: str) -> list[str]:
        if text.isascii() and not turkish:  # the same, in fewer steps
            tokens: list[str] = ASCII_WORD.findall(text.lower())
        elif keeps_runs or not unspaced(text):
            tokens = words(lowered(text, turkish))
        else:
            tokens = pieces(lowered(text.translate(USUAL), turkish))
        stems: list[str] = stem([word for word in tokens if word not in stop])
        return stems

    return terms
