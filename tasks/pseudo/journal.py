"""What the generator wrote, batch by batch, in a file that a kill or a power failure cannot spoil: it loses the batch in progress."""

import json
from pathlib import Path

from tasks.core.stage.files import append_line
from tasks.core.stage.scratch import work_digest

Written = list[list[str]]  # queries of each document


class Journal:
    """Results of numbered batches, each a line of `path` with its digest. Lines that are not whole do not count."""

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
        """What an earlier run wrote for a batch, if anything; asked for once."""
        return self._kept.pop(number, None)

    def add(self, number: int, written: Written) -> None:
        """Keep a batch, on disk when this returns."""
        append_line(self._path, json.dumps([work_digest(number, written), number, written]), lasting=True)
