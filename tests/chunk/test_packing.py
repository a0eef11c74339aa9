"""Sentences and chunks: nothing lost, nothing split that need not be."""

from itertools import chain

import pytest

from tasks.chunk.packing import pack
from tasks.chunk.sentences import sentences


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One is here. Two is there! Three?", ["One is here.", "Two is there!", "Three?"]),
        ("Dr. Smith met J. R. R. Tolkien in the U.S. Army. He left.", ["Dr. Smith met J. R. R. Tolkien in the U.S. Army.", "He left."]),
        ('He said "Stop." Then he left.', ['He said "Stop."', "Then he left."]),
        ("It fell by 3.5 percent. 1990 was bad.", ["It fell by 3.5 percent.", "1990 was bad."]),
        ("a line without a mark\nanother line", ["a line without a mark", "another line"]),
        ("これは文です。これも文です。", ["これは文です。", "これも文です。"]),
        ("see e.g. Rome for this", ["see e.g. Rome for this"]),
        ("  \n\n", []),
    ],
)
def test_sentences(text: str, expected: list[str]) -> None:
    assert list(sentences(text)) == expected


def test_sentences_stay_whole_if_they_fit() -> None:
    parts = [list(range(start, start + size)) for start, size in [(0, 4), (4, 3), (7, 5), (12, 10), (22, 1)]]
    chunks = list(pack([(ids, []) for ids in parts], 10))
    assert [chunk.ids for chunk in chunks] == [parts[0] + parts[1], parts[2], parts[3], parts[4]]
    assert [chunk.starts for chunk in chunks] == [[0, 4], [0], [0], [0]]


def test_a_long_sentence_is_split_between_words() -> None:
    ids = list(range(23))
    words = [0, 1, 1, 2, 3, 3, 3, 4, 5, 5, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 7, 8, 9]
    chunks = list(pack([([100], []), (ids, words), ([200], [])], 9))
    assert [chunk.ids for chunk in chunks] == [[100], ids[:8], ids[8:10], ids[10:19], [*ids[19:], 200]]  # word 6 has ten tokens
    assert list(chain(*(chunk.ids for chunk in chunks))) == [100, *ids, 200]
    assert [chunk.starts for chunk in chunks][-1] == [0, 4]
