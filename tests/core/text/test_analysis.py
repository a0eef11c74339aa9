"""Words of any language: whole with their combining marks, the same however they are composed, and otherwise those of bm25s."""

import random
import re
import unicodedata

import pytest

from tasks.core.text.analysis import analyzer, lowered, words

BM25S = r"\b\w\w+\b"
MARKLESS = "abzAZ09_ .,-'\"&/\n²³½éÉüßñøŒçİıЖжΩω鱼本ひカ한ابعⅣ४€…\N{NO-BREAK SPACE}"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("हिन्दी में खोज", ["हिन्दी", "में", "खोज"]),
        ("ভাষা", ["ভাষা"]),
        ("\N{COMBINING ACUTE ACCENT}ab", ["ab"]),
        ("e\N{COMBINING ACUTE ACCENT}", ["e\N{COMBINING ACUTE ACCENT}"]),
        ("m² 25 m", ["m²", "25"]),
        ("a b 1", []),
    ],
)
def test_words_are_whole_with_their_marks(text: str, found: list[str]) -> None:
    assert words(text) == found


@pytest.mark.parametrize("alphabet", [MARKLESS, "".join(map(chr, range(128)))], ids=["letters without marks", "ASCII"])
def test_words_of_texts_without_marks_are_those_of_bm25s(alphabet: str) -> None:
    draw = random.Random(0)
    for _ in range(2000):
        text = "".join(draw.choices(alphabet, k=draw.randint(0, 30)))
        assert words(text) == re.findall(BM25S, text), text


@pytest.mark.parametrize(
    ("turkish", "text", "found"),
    [
        (True, "ISPARTA IRMAĞI, İZMİR", ["ısparta", "ırmağı", "izmir"]),
        (True, "I\N{COMBINING DOT ABOVE}ZMİR", ["izmir"]),
        (False, "ISPARTA, İZMİR", ["isparta", "izmir"]),
        (False, "I\N{COMBINING DOT ABOVE}ZMİR", ["izmir"]),
    ],
)
def test_capital_i_with_and_without_a_dot(turkish: bool, text: str, found: list[str]) -> None:
    assert words(lowered(text, turkish)) == found
    assert analyzer("none", "turkish" if turkish else "none")(text) == found
    stem = analyzer("turkish", "none")
    assert not turkish or stem(text) == stem(" ".join(found))


def test_decomposed_french_is_composed_french() -> None:
    text = "L'été dernier, les élèves ont reçu leurs diplômes à Besançon"
    decomposed = unicodedata.normalize("NFD", text)
    assert decomposed != text
    assert analyzer("french", "french")(decomposed) == analyzer("french", "french")(text)
    assert analyzer("none", "none")(decomposed) == ["été", "dernier", "les", "élèves", "ont", "reçu", "leurs", "diplômes", "besançon"]
