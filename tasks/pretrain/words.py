"""Which tokens of a vocabulary begin a word, continue one, or are a stopword: tables over token ids, [V]."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import regex

from tasks.core.errors import UserError
from tasks.core.tables.ids import Ints
from tasks.core.text.analysis import UNSPACED
from tasks.core.text.without_jax import stopwords
from tasks.core.tokens.tokenizer import largest_id

Bools = npt.NDArray[np.bool_]
STOPWORDS = frozenset(stopwords.STOPWORDS_EN_PLUS)  # NLTK's English list, 179 words
BARE = regex.compile(rf"(?V1)[{UNSPACED}--\p{{Hangul}}]")  # letters of scripts written without blanks
SPACES = ("Ġ", "▁")  # the first piece of a word begins with one of these: byte-level BPE, SentencePiece


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer as tables. A word is an initial piece with a letter or digit, and the pieces that continue it. In byte-level BPE and
    SentencePiece only a blank makes a piece initial, so a word after an opening quote or bracket is not found. Stopwords are English.

    In scripts written without blanks (Hangul is not one): with SentencePiece, every piece that begins with such a letter is initial. It is
    a frequent run of letters, so it is close to a word; if blanks decided, a whole clause would be one word. WordPiece, as BERT's, makes
    each Han character a word, and each run of other letters. Byte-level BPE has no words there, so single tokens are drawn."""

    begins: Bools
    continues: Bools
    stops: Bools
    special: Bools
    mask: int
    ids: Ints  # the token ids, sorted: 0 ... V - 1, unless the tokenizer's ids have gaps

    def __len__(self) -> int:
        return len(self.ids)


def read_vocabulary(tokenizer: Any, where: str) -> Vocabulary:
    """The tables of a WordPiece, byte-level BPE or SentencePiece tokenizer. UserError if it has no mask token."""
    if tokenizer.mask_token_id is None:
        raise UserError(f"{where}: the tokenizer has no mask token, which pre-training requires; choose another encoder")
    ids: dict[str, int] = tokenizer.get_vocab()
    pieces = [""] * (largest_id(tokenizer) + 1)  # gaps in the ids stay empty, and are in no word
    for piece, number in ids.items():
        pieces[number] = piece
    special = np.isin(np.arange(len(pieces)), tokenizer.all_special_ids)
    space = next((sign for sign in SPACES if sum(piece.startswith(sign) for piece in pieces) > len(ids) / 10), None)
    first = [piece.startswith(space) or BARE.match(piece) is not None if space else not piece.startswith("##") for piece in pieces]
    text = [piece.removeprefix(space or "##") for piece in pieces]
    alphanumeric = np.array([any(map(str.isalnum, piece)) for piece in text]) & ~special
    begins = np.array(first) & alphanumeric
    stops = begins & np.array([piece.lower() in STOPWORDS for piece in text])
    return Vocabulary(begins, alphanumeric & ~begins, stops, special, int(tokenizer.mask_token_id), np.unique(list(ids.values())))


def whole_words(ids: Ints, vocabulary: Vocabulary) -> Ints:
    """[start, end) of every word in a row of tokens, without stopwords, [W, 2]."""
    starts = np.flatnonzero(vocabulary.begins[ids])
    bounds = np.flatnonzero(np.append(~vocabulary.continues[ids], True))
    ends = bounds[np.searchsorted(bounds, starts + 1)]
    words = np.stack([starts, ends], axis=1)
    content_words: Ints = words[~(vocabulary.stops[ids[starts]] & (ends == starts + 1))]
    return content_words
