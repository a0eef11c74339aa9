"""Spans: the distribution that the docstrings state, inside the text, whole words and no stopwords."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tasks.core.tokens.tokenizer import load_tokenizer
from tasks.pretrain.params import GRANULARITIES, Pretrain
from tasks.pretrain.spans import draw_lengths, draw_spans, draw_starts
from tasks.pretrain.words import STOPWORDS, Vocabulary, read_vocabulary, whole_words

TEXT = (
    "The unbelievably photosynthetic bacteria of the Antarctic were discovered in 1977, and they weren't known before! "
    "Antidisestablishmentarianism is a political position that developed in nineteenth-century Britain in opposition to it."
)


@pytest.fixture(scope="module")
def tokenizer(tiny_encoder: Path) -> Any:
    return load_tokenizer(tiny_encoder)


@pytest.fixture(scope="module")
def vocabulary(tokenizer: Any) -> Vocabulary:
    return read_vocabulary(tokenizer, "tiny")


def pretrain_params(**values: Any) -> Pretrain:
    return Pretrain.model_validate({"init": "base"} | values)


def test_lengths_follow_the_floored_beta_distribution() -> None:
    """P(length = k) is the Beta(4, 2) mass of [(k - least) / (most - least), (k + 1 - least) / (most - least))."""
    least, most, count = 4, 16, 40_000
    drawn = draw_lengths(least, most, 500, (4.0, 2.0), count, np.random.default_rng(7))
    assert (drawn.min(), drawn.max()) >= (least, least) and drawn.max() == most - 1
    edges = (np.arange(least, most + 1) - least) / (most - least)
    expected = np.diff(stats.beta(4, 2).cdf(edges)) * count
    observed = np.bincount(drawn, minlength=most)[least:most].astype(float)
    few = expected < 5
    observed, expected = np.append(observed[~few], observed[few].sum()), np.append(expected[~few], expected[few].sum())
    assert stats.chisquare(observed[expected > 0], expected[expected > 0]).pvalue > 0.001


def test_starts_are_uniform_over_all_positions_that_fit_including_the_last() -> None:
    n, length, count = 20, 14, 35_000
    starts = draw_starts(np.full(count, length), n, np.random.default_rng(8))
    observed = Counter(starts.tolist())
    assert set(observed) == set(range(1, n - length + 2))  # 1 ... 7: Eq. 2 would end at 6
    assert stats.chisquare([observed[s] for s in range(1, 8)]).pvalue > 0.001


@pytest.mark.parametrize("n", [1, 2, 5, 30, 90, 126])
def test_spans_stay_inside_the_text(n: int, vocabulary: Vocabulary, tokenizer: Any) -> None:
    word = tokenizer.convert_tokens_to_ids("bacteria")
    ids = np.array([tokenizer.cls_token_id, *[word] * n, tokenizer.sep_token_id])
    rng = np.random.default_rng(n)
    least = {"word": 1, "phrase": 4, "sentence": 16, "paragraph": 64}
    most = {"word": 1, "phrase": 16, "sentence": 64, "paragraph": 128}
    for _ in range(200):
        spans = draw_spans(ids, vocabulary, pretrain_params(), rng)
        assert spans.shape == (20, 2)
        assert (spans[:, 0] >= 1).all() and (spans[:, 1] <= n + 1).all()
        lengths = np.diff(spans).ravel().reshape(4, 5)
        for granularity, row in zip(GRANULARITIES, lengths, strict=True):
            assert (row >= min(least[granularity], n)).all(), "shorter than lmin, though the text is not"
            assert (row <= most[granularity]).all(), "longer than lmax"
    assert n > 64 or (lengths[3] == n).all(), "a text of at most lmin tokens is taken whole"


def test_words_are_whole_and_not_stopwords(vocabulary: Vocabulary, tokenizer: Any) -> None:
    ids = np.array(tokenizer(TEXT)["input_ids"])
    tokens = tokenizer.convert_ids_to_tokens(ids.tolist())
    expected, start = [], None  # oracle: the tokenizer's own words, by its word numbers
    words = tokenizer(TEXT).word_ids()
    for place in range(1, len(words)):
        if words[place] != words[place - 1]:
            if start is not None and words[start] is not None:
                text = "".join(t.removeprefix("##") for t in tokens[start:place])
                if text.isalnum() and text not in STOPWORDS:
                    expected.append((start, place))
            start = place
    actual = [tuple(pair) for pair in whole_words(ids, vocabulary).tolist()]
    assert actual == expected
    assert any(end - begin > 3 for begin, end in actual), "a word of many pieces is among them"
    for begin, end in actual:  # also where a row ends with a word
        assert whole_words(ids[:end], vocabulary).tolist()[-1] == [begin, end]
    spans = draw_spans(ids, vocabulary, pretrain_params(granularities=["word"], spans=50), np.random.default_rng(0))
    assert {tuple(pair) for pair in spans.tolist()} <= set(expected)
    drawn = draw_spans(ids, vocabulary, pretrain_params(granularities=["word"], spans=8000), np.random.default_rng(1))
    counts = Counter(tuple(pair) for pair in drawn.tolist())
    assert stats.chisquare([counts[pair] for pair in expected]).pvalue > 0.001, "words are uniform"


def test_a_text_of_stopwords_gives_single_tokens(vocabulary: Vocabulary, tokenizer: Any) -> None:
    ids = np.array(tokenizer("it is of the and")["input_ids"])
    assert len(whole_words(ids, vocabulary)) == 0
    spans = draw_spans(ids, vocabulary, pretrain_params(granularities=["word"]), np.random.default_rng(0))
    assert (np.diff(spans) == 1).all() and spans.min() >= 1 and spans.max() <= 6


def test_excluded_granularity_has_no_spans(vocabulary: Vocabulary, tokenizer: Any) -> None:
    ids = np.array(tokenizer(TEXT)["input_ids"])
    params = pretrain_params(granularities=["word", "phrase", "sentence"], spans=4)
    assert draw_spans(ids, vocabulary, params, np.random.default_rng(0)).shape == (12, 2)


class Pieces:
    """A tokenizer of whose pieces nothing is known but their text."""

    mask_token_id, all_special_ids = 1, (0, 1)

    def __init__(self, pieces: list[str]) -> None:
        self.pieces = pieces

    def get_vocab(self) -> dict[str, int]:
        return {piece: number for number, piece in enumerate(self.pieces)}


@pytest.mark.parametrize("space", ["Ġ", "▁"])
def test_vocabularies_whose_pieces_start_with_a_space(space: str) -> None:
    pieces = ["<s>", "<mask>", f"{space}bact", "eria", f"{space}the", ",", f"{space}(", "Ant", f"{space}ice"]
    ids = np.array([0, 2, 3, 5, 4, 8, 6, 7, 0])  # bact|eria , the ice ( Ant: only a piece behind a space begins a word
    assert whole_words(ids, read_vocabulary(Pieces(pieces), "x")).tolist() == [[1, 3], [5, 6]]


def test_text_without_blanks_has_words_in_sentencepiece_too() -> None:
    """Each piece of it is a word; before, a clause behind a blank was one, and what comes after a comma none. Korean has blanks."""
    pieces = ["<s>", "<mask>", "▁", "东京", "是", "日本", "，", "も", "한국", "어", "▁한국", "▁bact", "eria", "ทย"]
    vocabulary = read_vocabulary(Pieces(pieces), "x")
    rows = {
        "▁东京 是 日本 ， 东京 も": [0, 2, 3, 4, 5, 6, 3, 7, 0],
        "▁한국 어": [0, 10, 9, 8, 0],
        "▁bact eria 东京 ทย": [0, 11, 12, 3, 13, 0],
    }
    spans = [whole_words(np.array(ids), vocabulary).tolist() for ids in rows.values()]
    assert spans == [[[2, 3], [3, 4], [4, 5], [6, 7], [7, 8]], [[1, 4]], [[1, 3], [3, 4], [4, 5]]]
