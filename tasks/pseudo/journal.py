"""The generator's queries, batch by batch, in a file that survives a kill or a power failure. Only the batch in progress is lost."""

import json
from pathlib import Path

from tasks.core.files import append_line
from tasks.core.stage.scratch import work_digest

Written = list[list[str]]  # the queries of each document


class Journal:
    """Results of numbered batches, each a line of `path` with its digest. Incomplete or corrupt lines are ignored."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._kept: dict[int, Written] = {}
        for line in path.read_bytes().splitlines() if path.exists() else []:
            try:
                digest, number, written = json.loads(line)
            except ValueError:
                continue
            if digest == work_digest(number, written):
                self._kept[number] = written

    def pop(self, number: int) -> Written | None:
        """Take the queries that an earlier run wrote for a batch, or None. A second call for the same batch returns None."""
        return self._kept.pop(number, None)

    def add(self, number: int, written: Written) -> None:
        """Write a batch. It is on disk when this returns."""
        append_line(self._path, json.dumps([work_digest(number, written), number, written]), lasting=True)
