"""Chunks on disk: whole sentences, [CLS] and [SEP], at most `length` tokens, nothing lost."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from tasks.chunk.params import Chunk
from tasks.chunk.sentences import sentences
from tasks.chunk.store import special_tokens, tokenize_sentences
from tasks.core.errors import UserError
from tasks.core.tokens.chunks import OFFSETS, SENTENCES, open_chunks
from tasks.core.tokens.tokenizer import load_tokenizer
from tasks.pretrain.words import read_vocabulary, whole_words
from tests.chunks import write_chunks
from tests.starts import byte_tokenizer


def test_chunks_hold_every_sentence_once_and_whole(tmp_path: Path, tiny_corpus: Any, tiny_encoder: Path) -> None:
    tokenizer = load_tokenizer(tiny_encoder)
    texts = [text for _, text in tiny_corpus.documents.values()]
    ids = list(tiny_corpus.documents)
    batches = [(ids[:25], texts[:25]), (ids[25:], texts[25:])]
    stats = write_chunks(tmp_path, batches, tokenizer, "digest", Chunk(length=48, least=3), len(texts))
    chunks = open_chunks(tmp_path)
    assert stats["chunks"] == len(chunks) > len(texts)
    assert chunks.tokens.lengths.max() <= 48
    assert chunks.tokens.ids().to_pylist() == ids
    joined: list[list[int]] = [[] for _ in texts]
    unsplit = 0
    for row in range(len(chunks)):
        tokens, bounds = chunks.row(row).tolist(), chunks.sentences(row)
        assert (tokens[0], tokens[-1]) == (tokenizer.cls_token_id, tokenizer.sep_token_id)
        assert bounds[0] == 1 and bounds[-1] == len(tokens) - 1 and (np.diff(bounds) > 0).all()
        owner = int(chunks.tokens.owners[row])
        joined[owner] += tokens[1:-1]
        expected = [tokenizer(s, add_special_tokens=False)["input_ids"] for s in sentences(texts[owner])]
        long = [" ".join(map(str, ids)) for ids in expected if len(ids) > 46]
        for start, end in pairwise(bounds):
            part = tokens[start:end]
            assert part in expected or any(" ".join(map(str, part)) in ids for ids in long), "split, though it would have fitted"
            unsplit += part in expected
    assert unsplit > 0.8 * stats["sentences"]
    for text, tokens in zip(texts, joined, strict=True):
        assert tokens == tokenizer(text, add_special_tokens=False)["input_ids"]


def test_chunks_whose_files_disagree_are_refused(tmp_path: Path, tiny_corpus: Any, tiny_encoder: Path) -> None:
    texts = [text for _, text in tiny_corpus.documents.values()]
    write_chunks(tmp_path, [([*tiny_corpus.documents], texts)], load_tokenizer(tiny_encoder), "", Chunk(length=48, least=3), len(texts))
    offsets, places = np.load(tmp_path / OFFSETS), (tmp_path / SENTENCES).read_bytes()
    assert open_chunks(tmp_path).sentence_counts.tolist() == np.diff(offsets).tolist()
    (tmp_path / SENTENCES).write_bytes(places[:-2])
    with pytest.raises(UserError, match=rf"sentences\.bin: {len(places) - 2} bytes, expected {len(places)}; run chunk again"):
        open_chunks(tmp_path)
    (tmp_path / SENTENCES).write_bytes(places)
    for shorter in (offsets[1:], offsets[:0]):
        np.save(tmp_path / OFFSETS, shorter)
        with pytest.raises(UserError, match=rf"offsets\.npy: {len(shorter)} offsets, expected {len(offsets)}; run chunk again"):
            open_chunks(tmp_path)


LINES = ["The bacteria of the lake were found late. They were not known before!", 'He said "They were here." (The lake was cold.)']


@pytest.fixture(scope="module")
def roberta_tokenizer() -> Any:
    """A byte-level BPE with RoBERTa's special tokens and no space before a text, trained on a few lines."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer, bpe.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    bpe.train_from_iterator(LINES * 9, trainers.BpeTrainer(vocab_size=360, special_tokens=special, show_progress=False))
    bpe.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    names = ("bos_token", "pad_token", "eos_token", "unk_token", "mask_token")
    return PreTrainedTokenizerFast(tokenizer_object=bpe, cls_token="<s>", sep_token="</s>", **dict(zip(names, special, strict=True)))


def test_byte_level_sentences_have_the_tokens_of_the_running_text(tmp_path: Path, roberta_tokenizer: Any) -> None:
    """A sentence's first word has its space, so that it is a word of its own and no end of the word before."""
    stats = write_chunks(tmp_path, [(["a"], ["\n".join(LINES)])], roberta_tokenizer, "digest", Chunk(length=512, least=3), 1)
    assert stats["chunks"] == 1 and stats["sentences"] == 4
    chunks = open_chunks(tmp_path)
    row = chunks.row(0)
    assert row.tolist()[1:-1] == roberta_tokenizer(" " + " ".join(LINES), add_special_tokens=False)["input_ids"]
    bounds = chunks.sentences(0)
    assert [roberta_tokenizer.decode(row[start:end]) for start, end in pairwise(bounds)] == [
        f" {s}" for line in LINES for s in sentences(line)
    ]
    words = [
        roberta_tokenizer.decode(row[start:end]).strip() for start, end in whole_words(row, read_vocabulary(roberta_tokenizer, "roberta"))
    ]
    assert [word for word in words if word.isalpha()] == ["bacteria", "lake", "found", "late", "known", "said", "lake", "cold"]


def test_wordpiece_sentences_have_the_tokens_that_they_have_alone(tiny_encoder: Path) -> None:
    tokenizer = load_tokenizer(tiny_encoder)
    for room in (512, 3):  # longer than 3 tokens: the words of the tokens too
        for text, actual in zip(LINES, tokenize_sentences(LINES, tokenizer, room), strict=True):
            expected = [tokenizer(sentence, add_special_tokens=False) for sentence in sentences(text)]
            assert actual == [(encoding["input_ids"], encoding.word_ids() if room == 3 else []) for encoding in expected]


@pytest.mark.parametrize(("ends", "words"), [(False, "0 special tokens"), (True, "1 special token")])
def test_a_tokenizer_without_two_special_tokens_is_refused(ends: bool, words: str) -> None:
    with pytest.raises(UserError, match=f"^data/tokenizer: found {words} around a text; pre-training expects two"):
        special_tokens(byte_tokenizer("right", ends=ends))
