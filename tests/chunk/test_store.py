"""Chunks on disk: whole sentences, [CLS] and [SEP], at most `length` tokens, nothing lost."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from tasks.chunk.params import Chunk
from tasks.chunk.sentences import sentences
from tasks.chunk.store import write_chunks
from tasks.core.chunks import open_chunks
from tasks.core.tokenizers import load_tokenizer


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
    found: list[list[int]] = [[] for _ in texts]
    whole = 0
    for row in range(len(chunks)):
        tokens, bounds = chunks.row(row).tolist(), chunks.sentences(row)
        assert (tokens[0], tokens[-1]) == (tokenizer.cls_token_id, tokenizer.sep_token_id)
        assert bounds[0] == 1 and bounds[-1] == len(tokens) - 1 and (np.diff(bounds) > 0).all()
        owner = int(chunks.tokens.owners[row])
        found[owner] += tokens[1:-1]
        wanted = [tokenizer(s, add_special_tokens=False)["input_ids"] for s in sentences(texts[owner])]
        long = [" ".join(map(str, ids)) for ids in wanted if len(ids) > 46]
        for start, end in pairwise(bounds):
            part = tokens[start:end]
            assert part in wanted or any(" ".join(map(str, part)) in ids for ids in long), "split, though it would have fitted"
            whole += part in wanted
    assert whole > 0.8 * stats["sentences"]
    for text, tokens in zip(texts, found, strict=True):
        assert tokens == tokenizer(text, add_special_tokens=False)["input_ids"]
