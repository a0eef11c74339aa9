"""Lists that the current tower retrieves again every few steps: ANCE's negatives over fixed documents.

Lists are kept on disk as long as a resumed training may need them, because the tower that retrieved them no longer exists.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tasks.core.files import new_file
from tasks.core.stage.scratch import is_sealed, seal
from tasks.core.tables.ids import Ints
from tasks.core.training.checkpoints import CHECKPOINT, checkpoint_step, written_step
from tasks.core.training.ranks import first_rank_first

if TYPE_CHECKING:
    from tasks.core.workers.gang import Gang

Ordinals = npt.NDArray[np.int32]


class Refreshed:
    """The documents of every step's queries, retrieved for `steps` steps at a time (ordinals, -1 where fewer were found)."""

    def __init__(self, folder: Path, steps: int, retrieve: Callable[[int, int], Ordinals], gang: "Gang | None" = None) -> None:
        """`retrieve(first, end)` returns the documents [queries, depth] of the batches of steps first..end-1, in order.

        In a `gang` every rank retrieves the same lists. The first rank alone decides whether those on disk are intact, and writes them.
        """
        self.folder, self.steps, self.retrieve, self.gang = folder, steps, retrieve, gang
        self._first, self._documents = -1, np.empty((0, 0), dtype=np.int32)
        if gang is not None and not gang.is_first:
            return
        resumed_step = checkpoint_step(folder / CHECKPOINT)
        if resumed_step % steps and not is_sealed(self._path(resumed_step - resumed_step % steps)):
            print(f"{folder}: the lists for step {resumed_step} are corrupt and their tower is gone; starting again from the first step")
            (folder / CHECKPOINT).unlink()

    def of(self, step: int, size: int) -> Ints:
        """The documents of step `step`, [size, depth]. Call it with increasing steps."""
        first = step - step % self.steps
        if first != self._first:
            self._first, self._documents = first, self._load(first)
        start = (step - first) * size
        documents: Ints = self._documents[start : start + size].astype(np.int64)
        return documents

    def _path(self, first: int) -> Path:
        return self.folder / f"lists-{first}.npy"

    def _load(self, first: int) -> Ordinals:
        path = self._path(first)
        writes = self.gang is None or self.gang.is_first
        intact = writes and is_sealed(path)
        if not (intact if self.gang is None else self.gang.broadcast(intact)):
            documents = self.retrieve(first, first + self.steps)
            with first_rank_first(self.gang):
                if writes:
                    self._keep(path, documents)
        loaded: Ordinals = np.load(path, mmap_mode="r", allow_pickle=False)
        return loaded

    def _keep(self, path: Path, documents: Ordinals) -> None:
        with new_file(path) as temporary, temporary.open("wb") as handle:
            np.save(handle, documents)
        seal(path)
        resumed_step = written_step(self.folder / CHECKPOINT)
        for stale in self.folder.glob("lists-*"):  # and their seals
            if int(stale.name.removeprefix("lists-").split(".")[0]) < resumed_step - resumed_step % self.steps:
                stale.unlink()
