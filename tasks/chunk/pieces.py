"""Cut articles into chunks with one process per core, in order. A kill loses only the pieces in progress."""

from collections.abc import Iterable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tasks.chunk.params import Chunk
from tasks.chunk.store import Chunker, Part
from tasks.core.machine.processes import map_in_order, resumable
from tasks.core.tokens.bare_tokenizer import Known
from tasks.core.tokens.tokenizer import cached_tokenizer

ARTICLES = 512  # in a piece; some may be long
ALONE = 24  # pieces, seconds of work; fewer are not worth another process
ARRAYS = ("tokens", "starts", "lengths", "sentences", "chunks")  # fields of Part
Batch = tuple[list[str], list[str]]  # ids and texts


class Job(NamedTuple):
    """The settings that all pieces share. It has only names and settings, because it is sent to processes."""

    tokenizer: Path
    params: Chunk
    known: Known | None = None  # of the tokenizer


def chunked(job: Job, batches: Iterable[Batch], processes: int, scratch: Path | None) -> Iterator[Part]:
    """The chunks of all articles, in order, whatever the number of processes. Finished pieces are kept in `scratch`, if given."""
    if scratch is None:
        yield from map_in_order(partial(chunk_batch, job), batches, processes, alone=ALONE)
        return
    for path in resumable(partial(keep_batch, job), batches, scratch, processes):
        yield load_part(path)


def chunk_batch(job: Job, batch: Batch) -> Part:
    """The chunks of the articles of one piece."""
    return _chunker(job.tokenizer.resolve(), job.known, job.params.model_dump_json())(*batch)


def keep_batch(job: Job, batch: Batch, path: Path) -> None:
    """Write the chunks of one piece to a file."""
    part = chunk_batch(job, batch)
    _, offsets, text = pa.array(part.ids, pa.large_string()).buffers()
    arrays: dict[str, Any] = {name: getattr(part, name) for name in ARRAYS}
    arrays |= {"id_offsets": np.frombuffer(offsets, np.int64)[: len(part.ids) + 1], "ids": np.frombuffer(text or b"", np.uint8)}
    with path.open("wb") as out:
        np.savez(out, **arrays)


def load_part(path: Path) -> Part:
    """Read the chunks that `keep_batch` wrote."""
    with np.load(path, allow_pickle=False) as arrays:
        offsets = arrays["id_offsets"]
        ids = pa.Array.from_buffers(pa.large_string(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(arrays["ids"])])
        return Part(ids.to_pylist(), *(arrays[name] for name in ARRAYS))


@cache
def _chunker(tokenizer: Path, known: Known | None, params: str) -> Chunker:
    """The chunker; one per process, because it caches words."""
    return Chunker(cached_tokenizer(tokenizer, known), Chunk.model_validate_json(params))
