"""Chunks of a few texts on disk, by one process."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tasks.chunk.params import Chunk
from tasks.chunk.store import Chunker, write_parts


def write_chunks(
    folder: Path, batches: Iterable[tuple[list[str], list[str]]], tokenizer: Any, digest: str, params: Chunk, total: int
) -> dict[str, int]:
    """Cut batches of (ids, texts) into chunks in the existing `folder`; return the numbers of articles, chunks, tokens, and sentences."""
    chunker = Chunker(tokenizer, params)
    return write_parts(folder, (chunker(ids, texts) for ids, texts in batches), tokenizer, digest=digest, params=params, total=total)
