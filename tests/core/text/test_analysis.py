"""Words of any language: whole with their combining marks, the same however they are composed, and otherwise those of bm25s.

Without blanks between words: bigrams, against a loop over characters that goes by their names.
"""

import json
import random
import re
import sys
import unicodedata
from functools import cache
from itertools import pairwise

import pytest
import regex
import Stemmer

from tasks.core.sources.datasets import demo_file
from tasks.core.text.analysis import analyzer, lowered, pieces, stop_list, unspaced, words

BM25S = r"\b\w\w+\b"
MARKLESS = "abzAZ09_ .,-'\"&/\n²³½éÉüßñøŒçİıЖжΩω鱼本ひカ한ابعⅣ४€…\N{NO-BREAK SPACE}"


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("हिन्दी में खोज", ["हिन्दी", "में", "खोज"]),
        ("ভাষা", ["ভাষা"]),
        ("\N{COMBINING ACUTE ACCENT}ab", ["ab"]),
        ("e\N{COMBINING ACUTE ACCENT}", ["e\N{COMBINING ACUTE ACCENT}"]),
        ("m² 25 m", ["m²", "25"]),
        ("a b 1", []),
    ],
)
def test_words_are_whole_with_their_marks(text: str, tokens: list[str]) -> None:
    assert words(text) == tokens


@pytest.mark.parametrize("alphabet", [MARKLESS, "".join(map(chr, range(128)))], ids=["letters without marks", "ASCII"])
def test_words_of_texts_without_marks_are_those_of_bm25s(alphabet: str) -> None:
    rng = random.Random(0)
    for _ in range(2000):
        text = "".join(rng.choices(alphabet, k=rng.randint(0, 30)))
        assert words(text) == re.findall(BM25S, text), text


@pytest.mark.parametrize(
    ("turkish", "text", "tokens"),
    [
        (True, "ISPARTA IRMAĞI, İZMİR", ["ısparta", "ırmağı", "izmir"]),
        (True, "I\N{COMBINING DOT ABOVE}ZMİR", ["izmir"]),
        (False, "ISPARTA, İZMİR", ["isparta", "izmir"]),
        (False, "I\N{COMBINING DOT ABOVE}ZMİR", ["izmir"]),
    ],
)
def test_capital_i_with_and_without_a_dot(turkish: bool, text: str, tokens: list[str]) -> None:
    assert words(lowered(text, turkish)) == tokens
    assert analyzer("none", "turkish" if turkish else "none")(text) == tokens
    stem = analyzer("turkish", "none")
    assert not turkish or stem(text) == stem(" ".join(tokens))


def test_decomposed_french_is_composed_french() -> None:
    text = "L'été dernier, les élèves ont reçu leurs diplômes à Besançon"
    decomposed = unicodedata.normalize("NFD", text)
    assert decomposed != text
    assert analyzer("french", "french")(decomposed) == analyzer("french", "french")(text)
    assert analyzer("none", "none")(decomposed) == ["été", "dernier", "les", "élèves", "ont", "reçu", "leurs", "diplômes", "besançon"]


# Scripts without blanks between words

NAMES = (
    *("CJK UNIFIED IDEOGRAPH", "CJK COMPATIBILITY IDEOGRAPH", "IDEOGRAPHIC", "VERTICAL IDEOGRAPHIC", "HANGZHOU", "OLD CHINESE"),
    *("HIRAGANA", "HENTAIGANA", "KATAKANA", "VERTICAL KANA", "MASU", "HANGUL", "HALFWIDTH HANGUL", "THAI", "LAO", "KHMER", "MYANMAR"),
)
SAMPLES = {  # texts in which nothing changed
    "english": "The Runners' 2nd re-run, naïve café I/O \N{EN DASH} “it’s” £5 🎉 a_b",
    "german": "Größe der Häuser: 3 m² \N{EN DASH} „Straße“, ẞ und Ü\N{COMBINING DIAERESIS}",
    "french": "L’été, à Besançon, les élèves ont reçu leurs diplômes\N{NO-BREAK SPACE}; œuvre n°1",
    "arabic": "اللُّغَةُ العربيّة ٢٠٢٦ هي لغةٌ ساميّة، ﷺ ﻻ",
    "hindi": "हिन्दी में खोज करना, १२३ और क्‍ष",
}


@cache
def kind_of(char: str) -> str:
    """What a character is: without blanks between words, of another word, a mark, or none of these."""
    kind, name = unicodedata.category(char), unicodedata.name(char, "")
    if (kind[0] == "L" or kind == "Nl") and name.startswith(NAMES):
        return "unspaced"
    return "word" if kind[0] in "LN" or char == "_" else "mark" if kind[0] == "M" else ""


def fold_width(char: str) -> str:
    """A full-width sign of ASCII, or half-width kana, as it usually is (Lucene's CJKWidthFilter)."""
    code = ord(char)
    if 0xFF01 <= code <= 0xFF5E:
        return chr(code - 0xFF01 + ord("!"))
    marks = {0xFF9E: "\N{COMBINING KATAKANA-HIRAGANA VOICED SOUND MARK}", 0xFF9F: "\N{COMBINING KATAKANA-HIRAGANA SEMI-VOICED SOUND MARK}"}
    if 0xFF65 <= code <= 0xFF9F:
        return marks.get(code) or unicodedata.lookup(unicodedata.name(char).removeprefix("HALFWIDTH "))
    return char


def reference_terms(text: str) -> list[str]:
    """The terms of a text, character by character."""
    text = unicodedata.normalize("NFC", "".join(map(fold_width, text))).lower()
    runs: list[tuple[str, list[str]]] = [("", [])]  # the kind of each, and its letters with their marks
    for char in text:
        kind = kind_of(char)
        if kind == "mark":
            if runs[-1][0]:
                runs[-1][1][-1] += char
        elif kind and kind == runs[-1][0]:
            runs[-1][1].append(char)
        else:
            runs.append((kind, [char]))
    runs.append(("", []))
    tokens = []
    for (before, _), (kind, letters), (after, _) in zip(runs, runs[1:], runs[2:], strict=False):
        word = "".join(letters)
        if kind == "unspaced":
            tokens += [first + second for first, second in pairwise(letters)] if len(letters) > 1 else letters
        elif kind == "word" and (len(word) > 1 or ("unspaced" in (before, after) and word != "_")):
            tokens.append(word)
    return tokens


def terms_without_bigrams(text: str, language: str) -> list[str]:
    """The terms of a text before there were bigrams."""
    text = unicodedata.normalize("NFC", text).lower().replace("i\N{COMBINING DOT ABOVE}", "i")
    tokens = regex.findall(r"[\p{L}\p{N}_][\p{L}\p{N}\p{M}_]+", text)
    stop = frozenset[str]() if language in ("arabic", "hindi") else stop_list(language)
    return list(Stemmer.Stemmer(language).stemWords([word for word in tokens if word not in stop]))


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("東京都に行く", "東京 京都 都に に行 行く"),
        ("中 人", "中 人"),  # a query of a character
        ("我在Windows 10系统上安装Python3。", "我在 windows 10 系统 统上 上安 安装 python3"),
        ("A股跌2点", "a 股跌 2 点"),
        ("人々、時々、ラーメン・スーパー", "人々 時々 ラー ーメ メン スー ーパ パー"),
        ("二〇二六年", "二〇 〇二 二六 六年"),
        ("ｶﾞｽﾊﾟｲﾌﾟ ＩＰｈｏｎｅ１５", "ガス スパ パイ イプ iphone15"),
        ("\U00020000\U00020001中", "\U00020000\U00020001 \U00020001中"),
        ("한국어 갤럭시S24", "한국 국어 갤럭 럭시 s24"),
        (unicodedata.normalize("NFD", "한국어 ガス"), "한국 국어 ガス"),
        ("ที่กำ", "ที่ก กำ"),
        ("កម្ពុជា", "កម្ ម្ពុ ពុជា"),
        ("中_文 a 中b", "中 文 中 b"),
        ("", ""),
        ("。、", ""),
    ],
)
def test_bigrams(text: str, tokens: str) -> None:
    assert analyzer("none", "none")(text) == tokens.split() == reference_terms(text)


@pytest.mark.parametrize("seed", range(4))
def test_bigrams_equal_a_loop_over_characters(seed: int) -> None:
    rng = random.Random(seed)
    blocks = ["中国人々〇〆", "ひらがなー", "カタカナーヽヴ・", "ｶﾞﾊﾟｱｰ･", "한국어", "ＡｂＺ１９＿！", "abXY_ 12", "éüß हिन्दी"]
    blocks += ["\U00020000\U0002a6df\U0002f800", "\u3099\u0301\ufe00\U000e0100", "가각\u1100\u1161\u11a8", "。、「」 \n-"]
    blocks += ["ภาษาไทยที่ำ", "ພາສາລາວ", "ភាសាខ្មែរ", "မြန်မာ"]
    for _ in range(3000):
        chosen = rng.sample(blocks, rng.randint(1, 4))
        text = "".join(rng.choice(rng.choice(chosen)) for _ in range(rng.randint(0, 25)))
        assert analyzer("none", "none")(text) == reference_terms(text), text


def test_letters_are_cut_by_their_script() -> None:
    """All characters that Python knows, each between two letters of either kind; and none of those that are cut is overlooked."""
    terms = analyzer("none", "none")
    for char in map(chr, range(sys.maxunicode + 1)):
        if unicodedata.category(char) in ("Cn", "Cs", "Co"):
            continue
        if kind_of(fold_width(char)) == "unspaced" or fold_width(char) != char:
            assert unspaced(char)
            assert terms(f"中{char}中 {char}") == reference_terms(f"中{char}中 {char}"), hex(ord(char))
        elif kind_of(char):
            assert pieces(f"ab{char}") == words(f"ab{char}"), hex(ord(char))
            assert len(terms(f"中{char}中")) == (1 if kind_of(char) == "mark" else 2 if char == "_" else 3), hex(ord(char))


@pytest.mark.parametrize("language", SAMPLES)
def test_nothing_else_has_changed(language: str) -> None:
    text, stop = SAMPLES[language], "none" if language in ("arabic", "hindi") else language
    for cjk in ("bigrams", "words"):
        assert analyzer(language, stop, cjk)(text) == terms_without_bigrams(text, language)
    tokens = analyzer(language, stop)(f"中国 {text} 東京")
    assert tokens == ["中国", *terms_without_bigrams(text, language), "東京"], "stemmed and without stopwords beside bigrams, too"


def test_the_demos_words_are_those_of_before() -> None:
    terms, whole_words = (analyzer("english", "english", cjk) for cjk in ("bigrams", "words"))
    leads = [extract["extract"] for extract in json.loads(demo_file().read_text(encoding="utf-8")).values()]
    with_bigrams = [extract for extract in leads if any(kind_of(char) == "unspaced" for char in extract)]
    assert 0 < len(with_bigrams) < 50
    for extract in leads:
        assert whole_words(extract) == terms_without_bigrams(extract, "english")
        assert extract in with_bigrams or terms(extract) == whole_words(extract)
        assert [term for term in terms(extract) if term.isascii()] == [term for term in whole_words(extract) if term.isascii()]


def test_words_leave_text_as_it_is() -> None:
    assert analyzer("none", "none", "words")("東京都に Windows系统 中 ＡＢ") == ["東京都に", "windows系统", "ａｂ"]


@pytest.mark.parametrize("stemmer", Stemmer.algorithms())
def test_stemmers_leave_bigrams_as_they_are(stemmer: str) -> None:
    rng = random.Random(0)
    letters = [char for char in map(chr, range(0x0E00, 0x30000)) if kind_of(char) == "unspaced"]
    run = "".join(rng.choices(letters, k=20_000))
    assert analyzer(stemmer, "none")(run) == reference_terms(run)
