"""Write folders of chunks (tasks.core.tokens.chunks): articles stream in, flat token ids stream out."""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tasks.chunk.packing import pack
from tasks.chunk.params import Chunk
from tasks.chunk.sentences import sentences
from tasks.core.errors import UserError
from tasks.core.files import write_json
from tasks.core.stage.progress import Progress
from tasks.core.tables.ids import IDS
from tasks.core.tables.parquet import write_table
from tasks.core.tokens.chunks import OFFSETS, PLACE, SENTENCES
from tasks.core.tokens.store import token_type, write_offsets
from tasks.core.tokens.words import Words, word_by_word

Sentence = tuple[list[int], list[int | None]]  # token ids, and for a long sentence the word that each belongs to
SENTENCES_AT_ONCE = 4096


class Part(NamedTuple):
    """The chunks of articles `ids` [A]: flat tokens and sentence starts; the number of both in each chunk [C]; chunks per article [A]."""

    ids: list[str]
    tokens: npt.NDArray[np.generic]
    starts: npt.NDArray[np.uint16]
    lengths: npt.NDArray[np.int32]
    sentences: npt.NDArray[np.int32]
    chunks: npt.NDArray[np.int32]


def special_tokens(tokenizer: Any) -> tuple[int, int]:
    """The special tokens before and after a text. UserError if the tokenizer does not add exactly these two."""
    special = tokenizer("")["input_ids"]
    if len(special) != 2 or special[0] != tokenizer.cls_token_id:
        raise UserError(
            f"data/tokenizer: found {len(special)} special token{'s' * (len(special) != 1)} around a text; "
            "pre-training expects two, like BERT's [CLS] and [SEP]; let rounds start from base, or choose another encoder"
        )
    return special[0], special[1]


def sentence_prefix(tokenizer: Any) -> str:
    """The prefix that gives a sentence tokenized alone the same tokens as within a text.

    It is a space for a byte-level BPE such as RoBERTa's, whose tokens include the space before a word ("Ġthe"), except at the
    start of a text. It is empty for WordPiece and SentencePiece, where every text begins like a word.
    """
    single, double = (tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"] for text in ("a", "a a"))
    return "" if double == single * 2 else " "


def tokenize_sentences(texts: list[str], tokenizer: Any, room: int, table: Words | None = None) -> Iterator[list[Sentence]]:
    """The sentences of each text as tokens. Uses a `table` of words if there is one; else many at once, for the tokenizer's threads."""
    space = sentence_prefix(tokenizer)
    groups = [list(sentences(text)) for text in texts]
    flat = [space + sentence for group in groups for sentence in group]
    tokenized = iter(list(_by_words(flat, tokenizer, room, table) if table else _together(flat, tokenizer, room)))
    for group in groups:
        yield [next(tokenized) for _ in group]


def _together(texts: list[str], tokenizer: Any, room: int) -> Iterator[Sentence]:
    for start in range(0, len(texts), SENTENCES_AT_ONCE):
        batch = texts[start : start + SENTENCES_AT_ONCE]
        encoding = tokenizer(batch, add_special_tokens=False, return_attention_mask=False, return_token_type_ids=False, verbose=False)
        yield from ((ids, encoding.word_ids(number) if len(ids) > room else []) for number, ids in enumerate(encoding["input_ids"]))


def _by_words(texts: list[str], tokenizer: Any, room: int, table: Words) -> Iterator[Sentence]:
    flat, offsets = table(texts)
    for text, (start, end) in zip(texts, pairwise(offsets.tolist()), strict=True):
        words = tokenizer(text, add_special_tokens=False, verbose=False).word_ids() if end - start > room else []
        yield flat[start:end].tolist(), words


class Chunker:
    """Cuts articles into chunks. It caches words, so use one for all articles of a process."""

    def __init__(self, tokenizer: Any, params: Chunk) -> None:
        self.tokenizer, self.params, self.frame, self.dtype = tokenizer, params, special_tokens(tokenizer), token_type(tokenizer)
        self.table = Words(tokenizer) if word_by_word(tokenizer) else None

    def __call__(self, ids: list[str], texts: list[str]) -> Part:
        """Cut articles, given by ids and texts, into chunks."""
        first_token, last_token = self.frame
        room = self.params.length - 2
        article_chunks = [
            [chunk for chunk in pack(tokenized, room) if len(chunk.ids) + 2 >= self.params.least]
            for tokenized in tokenize_sentences(texts, self.tokenizer, room, self.table)
        ]
        chunks = [chunk for group in article_chunks for chunk in group]
        tokens = np.array([token for chunk in chunks for token in (first_token, *chunk.ids, last_token)], dtype=self.dtype)
        starts = np.array([start + 1 for chunk in chunks for start in chunk.starts], dtype=PLACE)
        lengths = np.array([len(chunk.ids) + 2 for chunk in chunks], dtype=np.int32)
        counts = np.array([len(chunk.starts) for chunk in chunks], dtype=np.int32)
        return Part(ids, tokens, starts, lengths, counts, np.array(list(map(len, article_chunks)), dtype=np.int32))


def write_parts(folder: Path, parts: Iterable[Part], tokenizer: Any, *, digest: str, params: Chunk, total: int) -> dict[str, int]:
    """Write parts to the existing `folder` as they come; return the numbers of articles, chunks, tokens, and sentences.

    Memory holds one part, 8 bytes per chunk, and 4 bytes per article.
    """
    lengths, counts, chunks = list[npt.NDArray[np.int32]](), list[npt.NDArray[np.int32]](), [np.zeros(0, np.int32)]
    progress = Progress("chunk", total, "articles")

    def flat() -> Iterator[pa.Table]:
        with (folder / "tokens.bin").open("wb") as tokens, (folder / SENTENCES).open("wb") as starts:
            for part in parts:
                part.tokens.tofile(tokens)
                part.starts.tofile(starts)
                lengths.append(part.lengths)
                counts.append(part.sentences)
                chunks.append(part.chunks)
                progress.advance(len(part.ids))
                yield pa.table([part.ids], schema=IDS)

    articles = write_table(folder / "ids.parquet", IDS, flat())
    tokens, places = write_offsets(folder / "offsets.npy", lengths), write_offsets(folder / OFFSETS, counts)
    np.save(folder / "owners.npy", np.repeat(np.arange(articles, dtype=np.int32), np.concatenate(chunks)))
    dtype = token_type(tokenizer)
    meta = {"dtype": dtype.name, "pad": tokenizer.pad_token_id, "max_length": params.length, "prefix": "", "tokenizer": digest}
    write_json(folder / "meta.json", meta)
    stats = {"articles": articles, "chunks": sum(map(len, lengths)), "tokens": tokens, "sentences": places}
    write_json(folder / "stats.json", stats)
    progress.close()
    return stats
