"""Writing folders of chunks (tasks.core.text.chunks): articles stream in, flat token ids stream out."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tasks.chunk.packing import pack
from tasks.chunk.params import Chunk
from tasks.chunk.sentences import sentences
from tasks.core.stage.errors import UserError
from tasks.core.stage.files import write_json
from tasks.core.stage.progress import Progress
from tasks.core.tables.ids import IDS
from tasks.core.tables.parquet import write_table
from tasks.core.text.chunks import OFFSETS, PLACE, SENTENCES

Sentence = tuple[list[int], list[int | None]]  # token ids, and of a long one the word that each token belongs to
SENTENCES_AT_ONCE = 4096


def frame(tokenizer: Any) -> tuple[int, int]:
    """The special tokens before and after a text; UserError if the tokenizer has others."""
    special = tokenizer("")["input_ids"]
    if len(special) != 2 or special[0] != tokenizer.cls_token_id:
        raise UserError(
            f"data/tokenizer: adds {len(special)} special tokens to a text, expected two, as BERT's [CLS] and [SEP]; choose another encoder"
        )
    return special[0], special[1]


def lead(tokenizer: Any) -> str:
    """What to prepend to a sentence that is tokenized alone, so that its tokens are the same as within a text.

    A space for a byte-level BPE as RoBERTa's, whose tokens include the space before a word ("Ġthe"), except at the start of a
    text; nothing for WordPiece and SentencePiece, for which every text begins with a word.
    """
    alone, twice = (tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"] for text in ("a", "a a"))
    return "" if twice == alone * 2 else " "


def tokenised(texts: list[str], tokenizer: Any, room: int) -> Iterator[list[Sentence]]:
    """The sentences of each text as tokens; many sentences at once, for the tokenizer's threads."""
    space = lead(tokenizer)
    split = [list(sentences(text)) for text in texts]
    flat = [space + sentence for found in split for sentence in found]
    tokens: list[Sentence] = []
    for start in range(0, len(flat), SENTENCES_AT_ONCE):
        part = flat[start : start + SENTENCES_AT_ONCE]
        found = tokenizer(part, add_special_tokens=False, return_attention_mask=False, return_token_type_ids=False, verbose=False)
        tokens += [(ids, found.word_ids(number) if len(ids) > room else []) for number, ids in enumerate(found["input_ids"])]
    place = iter(tokens)
    for found in split:
        yield [next(place) for _ in found]


def write_chunks(
    folder: Path, batches: Iterable[tuple[list[str], list[str]]], tokenizer: Any, digest: str, params: Chunk, total: int
) -> dict[str, int]:
    """Cut (id, text) batches into chunks in `folder` (existing); returns the numbers of articles, chunks, tokens, and sentences.

    In memory: a batch of articles, and three numbers per chunk.
    """
    before, behind = frame(tokenizer)
    room = params.length - 2
    dtype = np.dtype(np.uint16 if len(tokenizer) <= 2**16 else np.int32)
    lengths, counts, owners = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0, np.int32)]
    progress = Progress("chunk", total, "articles")

    def flat() -> Iterator[pa.Table]:
        number = 0
        with (folder / "tokens.bin").open("wb") as tokens, (folder / SENTENCES).open("wb") as starts:
            for ids, texts in batches:
                rows, owned = [], []
                for owner, found in enumerate(tokenised(texts, tokenizer, room), number):
                    kept = [chunk for chunk in pack(found, room) if len(chunk.ids) + 2 >= params.least]
                    rows += kept
                    owned += [owner] * len(kept)
                for chunk in rows:
                    np.asarray([before, *chunk.ids, behind], dtype=dtype).tofile(tokens)
                    (np.asarray(chunk.starts, dtype=PLACE) + PLACE.type(1)).tofile(starts)
                lengths.append(np.array([len(chunk.ids) + 2 for chunk in rows], dtype=np.int64))
                counts.append(np.array([len(chunk.starts) for chunk in rows], dtype=np.int64))
                owners.append(np.array(owned, dtype=np.int32))
                number += len(ids)
                progress.advance(len(ids))
                yield pa.table([ids], schema=IDS)

    articles = write_table(folder / "ids.parquet", IDS, flat())
    offsets, places = (np.concatenate([[0], *parts]).cumsum().astype(np.int64) for parts in (lengths, counts))
    np.save(folder / "offsets.npy", offsets)
    np.save(folder / OFFSETS, places)
    np.save(folder / "owners.npy", np.concatenate(owners))
    meta = {"dtype": dtype.name, "pad": tokenizer.pad_token_id, "max_length": params.length, "prefix": "", "tokenizer": digest}
    write_json(folder / "meta.json", meta)
    stats = {"articles": articles, "chunks": len(offsets) - 1, "tokens": int(offsets[-1]), "sentences": int(places[-1])}
    write_json(folder / "stats.json", stats)
    progress.close()
    return stats
