"""Tokens by a table of words equal the tokenizer's own, whatever the texts; tokenizers that look beyond a word are refused."""

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tasks.core.tokens import words
from tasks.core.tokens.tokenizer import load_tokenizer
from tasks.core.tokens.words import Words, word_by_word

ODD = "abcdefghij    éüñßøłżЖдщ東京한글🙂👩‍👧\u200b\u0301\t\n\r-.,'[]\x00\x01\x0b\x0c\x1c\x1f\x85\xa0\u2028\u3000\ufeffΣςİ\ufffd\u00ad"
ENDS = ["", " ", "  ", "[CLS]", " [SEP] [PAD]", "[MASK]x", " x " * 9]


def texts(seed: int, count: int) -> list[str]:
    rng = random.Random(seed)
    every = [chr(code) for code in range(0x20000) if not 0xD800 <= code <= 0xDFFF]
    return [
        "".join(rng.choices(ODD if number % 2 else every, k=rng.choice([0, 1, 3, 20, 90]))) + rng.choice(ENDS) for number in range(count)
    ]


@pytest.mark.parametrize("most", [None, 1, 7, 62])
@pytest.mark.parametrize("remembered", [1 << 17, 5])
def test_tokens_equal_the_tokenizers(most: int | None, remembered: int, tiny_encoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "REMEMBERED", remembered)
    tokenizer, other = load_tokenizer(tiny_encoder), load_tokenizer(tiny_encoder)
    tokenizer("a b c d", truncation=True, max_length=3)  # leaves its truncation behind
    assert word_by_word(tokenizer)
    table = Words(tokenizer)
    for seed in range(4):  # later texts meet words that are known
        samples = texts(seed, 150)
        flat, offsets = table(samples, most)
        expected = other(samples, add_special_tokens=False, verbose=False)["input_ids"]
        assert [flat[start:end].tolist() for start, end in pairwise(offsets)] == [ids[:most] for ids in expected]


def test_no_texts_and_empty_ones(tiny_encoder: Path) -> None:
    table = Words(load_tokenizer(tiny_encoder))
    for samples in ([], [""], ["", " ", "\x00"]):
        flat, offsets = table(samples, 5)
        assert len(flat) == 0 and offsets.tolist() == [0] * (len(samples) + 1)


def fast_tokenizer(pre_tokenizer: Any, normalizer: Any, *tokens: AddedToken, **settings: Any) -> Any:
    backend = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1, "##b": 2}, unk_token="[UNK]"))
    backend.pre_tokenizer, backend.normalizer = pre_tokenizer, normalizer
    backend.add_tokens(list(tokens))
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[UNK]", **settings)


def test_tokenizers_that_look_beyond_a_word_are_refused() -> None:
    bert = pre_tokenizers.BertPreTokenizer(), normalizers.BertNormalizer()
    assert word_by_word(fast_tokenizer(*bert))
    assert not word_by_word(fast_tokenizer(*bert, AddedToken("new york")))
    assert not word_by_word(fast_tokenizer(*bert, truncation_side="left"))
    assert not word_by_word(fast_tokenizer(pre_tokenizers.Metaspace(), normalizers.BertNormalizer()))
    assert not word_by_word(fast_tokenizer(pre_tokenizers.BertPreTokenizer(), normalizers.NFKC()))
    assert not word_by_word(fast_tokenizer(pre_tokenizers.BertPreTokenizer(), None))
    assert not word_by_word(object())
