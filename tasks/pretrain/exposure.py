"""The texts of a pre-training, step by step."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from tasks.core.stage.draws import epoch_order
from tasks.core.tokens.chunks import open_chunks
from tasks.core.training.exposure import TEXT, Replay, Roles
from tasks.pretrain.batches import steps_of, steps_per_epoch, usable_rows
from tasks.pretrain.params import Pretrain


def replay(paths: Mapping[str, Path], params: Pretrain, where: str) -> Replay:
    """Replay a pre-training: the documents (or articles) whose chunks each step reads. The order is that of batches.draw_batch."""
    chunks = open_chunks(paths["chunks"])
    rows = usable_rows(chunks, params, where)
    total, size, owners = steps_of(rows, params), params.batch_texts, chunks.tokens.owners

    def steps() -> Iterator[tuple[int, Roles]]:
        for step in range(total):
            epoch, place = divmod(step, steps_per_epoch(rows, params))
            chosen = rows[epoch_order(len(rows), params.seed, epoch)[place * size : (place + 1) * size]]
            yield step, {TEXT: owners[chosen].astype(np.int64)}

    return Replay(chunks.tokens.folder / "ids.parquet", None, total, steps())
