"""Tokens of many texts at once, where a tokenizer splits texts at white space: each different word is tokenized once, and remembered.

BERT's tokenizers are of this kind (normalizer and pre-tokenizer of BERT, WordPiece): each step sees one character, or one word. The
tokens of a text are then those of its words, in order, so a table of words serves in place of the tokenizer. Byte-level BPE and
SentencePiece look beyond a word; `word_by_word` refuses them.
"""

import json
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tasks.core.tables.ids import Ints, concat_ranges

Ids = npt.NDArray[np.int32]
BLANKS = b" \t\n\r"  # where a text is cut; any other white space stays inside a word, for the tokenizer itself
REMEMBERED = 1 << 17  # words: some 30 MB. Rarer ones are tokenized again
LONGEST = 64  # bytes of a word that is remembered


def word_by_word(tokenizer: Any) -> bool:
    """Whether the tokens of any text are those of its words, one after another."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return False
    parts = json.loads(backend.to_str())
    kinds = [(parts.get(name) or {}).get("type") for name in ("normalizer", "pre_tokenizer", "model")]
    special = [token["content"] for token in parts.get("added_tokens") or []]
    if kinds != ["BertNormalizer", "BertPreTokenizer", "WordPiece"] or tokenizer.truncation_side != "right":
        return False
    return not any(set(text) & set(BLANKS.decode()) for text in special)


class Words:
    """The tokens of texts, without special tokens, by a table of words that grows as texts come."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._places: dict[str, int] = {}
        self._starts, self._lengths = np.zeros(REMEMBERED, np.int64), np.zeros(REMEMBERED, np.int64)
        self._flat, self._used = np.zeros(1 << 16, np.int32), 0
        self._blank = np.isin(np.arange(256), list(BLANKS))

    def __call__(self, texts: list[str], most: int | None = None) -> tuple[Ids, Ints]:
        """All tokens of T texts, flat, and where those of each begin, [T + 1]; of each text, only the first `most`."""
        words, bounds = self._cut(pa.array(texts, pa.large_string()))
        if most is None:
            return self._tokens(words, bounds)
        # A word is a token or more, unless it is blank or has only characters that the normalizer removes: count to be sure.
        sizes = np.diff(bounds)
        counts = np.minimum(sizes, most)
        flat, offsets = self._tokens(*_heads(words, bounds, counts))
        short = np.flatnonzero((counts < sizes) & (np.diff(offsets) < most))
        if len(short):
            counts[short] = sizes[short]
            flat, offsets = self._tokens(*_heads(words, bounds, counts))
        return clipped(flat, offsets, most)

    def _cut(self, texts: pa.Array) -> tuple[pa.Array, Ints]:
        """The words of all texts, each with the blank after it, and where those of each text begin."""
        _, offsets, data = texts.buffers()
        bounds = np.frombuffer(offsets, np.int64)[: len(texts) + 1]
        size = int(bounds[-1])
        starts = np.zeros(size + 1, dtype=bool)
        if size:
            starts[1:] = self._blank[np.frombuffer(data, np.uint8)[:size]]
        starts[bounds] = True
        places = np.flatnonzero(starts)
        words = pa.Array.from_buffers(pa.large_string(), len(places) - 1, [None, pa.py_buffer(places), data])
        return words, np.searchsorted(places, bounds)

    def _tokens(self, words: pa.Array, bounds: Ints) -> tuple[Ids, Ints]:
        coded = words.dictionary_encode()
        starts, lengths, pool = self._known(coded.dictionary.to_pylist())
        codes = coded.indices.to_numpy()
        sizes = lengths[codes]
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
        flat = pool[np.repeat(starts[codes] - ends[:-1], sizes) + np.arange(ends[-1])]
        return flat, ends[bounds]

    def _known(self, words: list[str]) -> tuple[Ints, Ints, Ids]:
        """For distinct words: where the tokens of each begin in a pool, how many there are, and the pool."""
        places = np.array([self._places.get(word, -1) for word in words], dtype=np.int64)
        starts, lengths = self._starts[places], self._lengths[places]
        missing = np.flatnonzero(places < 0)
        if not len(missing):
            return starts, lengths, self._flat
        new = [words[place] for place in missing]
        backend = self._tokenizer.backend_tokenizer
        backend.no_truncation()  # as an earlier call may have left it; transformers sets it at each call
        backend.no_padding()
        token_ids = [encoding.ids for encoding in backend.encode_batch_fast(new, add_special_tokens=False)]
        sizes = np.fromiter(map(len, token_ids), np.int64, len(token_ids))
        flat = np.fromiter((token for ids in token_ids for token in ids), np.int32, int(sizes.sum()))
        begins = np.cumsum(sizes) - sizes
        remembered = [n for n, word in enumerate(new) if len(word) <= LONGEST][: REMEMBERED - len(self._places)]
        pool = np.concatenate([self._flat[: self._used], flat])
        starts[missing], lengths[missing] = begins + self._used, sizes
        for number in remembered:
            self._remember(new[number], flat[begins[number] : begins[number] + sizes[number]])
        return starts, lengths, pool

    def _remember(self, word: str, ids: Ids) -> None:
        place = self._places[word] = len(self._places)
        end = self._used + len(ids)
        if end > len(self._flat):
            self._flat = np.concatenate([self._flat, np.zeros(max(len(self._flat), len(ids)), np.int32)])
        self._flat[self._used : end] = ids
        self._starts[place], self._lengths[place] = self._used, len(ids)
        self._used = end


def clipped(flat: Ids, offsets: Ints, most: int) -> tuple[Ids, Ints]:
    """The first `most` tokens of each text."""
    sizes = np.diff(offsets)
    if not len(sizes) or sizes.max() <= most:
        return flat, offsets
    return flat[concat_ranges(offsets[:-1], np.minimum(sizes, most))], np.concatenate([[0], np.minimum(sizes, most).cumsum()])


def _heads(words: pa.Array, bounds: Ints, counts: Ints) -> tuple[pa.Array, Ints]:
    """The first `counts` words of each text."""
    if (counts == np.diff(bounds)).all():
        return words, bounds
    return words.take(pa.array(concat_ranges(bounds[:-1], counts))), np.concatenate([[0], counts.cumsum()])
