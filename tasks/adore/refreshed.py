"""Lists that are retrieved again every so many steps, with the current tower: ANCE's negatives over fixed documents.

Results are kept on disk as long as a resumed training may need them, because the tower that retrieved them is gone.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tasks.core.stage.files import new_file
from tasks.core.stage.scratch import seal, sealed
from tasks.core.tables.ids import Ints
from tasks.core.training.loop import CHECKPOINT, checkpoint_step

Ordinals = npt.NDArray[np.int32]


class Refreshed:
    """Documents (ordinals, -1 where fewer were found) of the queries of every step; retrieved every `steps` steps for those that follow."""

    def __init__(self, folder: Path, steps: int, retrieve: Callable[[int, int], Ordinals]) -> None:
        """`retrieve(first, end)` gives the documents [queries, depth] of the batches of steps first..end-1, in order."""
        self.folder, self.steps, self.retrieve = folder, steps, retrieve
        self._first, self._documents = -1, np.empty((0, 0), dtype=np.int32)
        resumed = checkpoint_step(folder / CHECKPOINT)
        if resumed % steps and not sealed(self._path(resumed - resumed % steps)):
            print(f"{folder}: the lists for step {resumed} are corrupt and their tower is gone; starting again from the first step")
            (folder / CHECKPOINT).unlink()

    def of(self, step: int, size: int) -> Ints:
        """The documents of step `step`, [size, depth]; call in increasing order of steps."""
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
        if not sealed(path):
            documents = self.retrieve(first, first + self.steps)
            with new_file(path) as temporary, temporary.open("wb") as handle:
                np.save(handle, documents)
            seal(path)
            resumed = checkpoint_step(self.folder / CHECKPOINT)
            for old in self.folder.glob("lists-*"):  # with their seals
                if int(old.name.removeprefix("lists-").split(".")[0]) < resumed - resumed % self.steps:
                    old.unlink()
        loaded: Ordinals = np.load(path, mmap_mode="r", allow_pickle=False)
        return loaded
