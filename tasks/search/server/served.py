"""The model that answers queries: the systems of an export, in memory. It is replaced as a whole, between two batches."""

import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tasks.core.errors import Corrupt, UserError, disk_fault, printable
from tasks.core.models.export import RECORD, Export, read_record, refuse_damaged
from tasks.core.retrieval.fusion import Ranked
from tasks.core.tables.ids import read_ids
from tasks.search.lists import DenseSystem, Each, LexicalSystem, Systems, Texts
from tasks.search.server.documents import Documents

POLL_SECONDS = 0.5
AGAIN_SECONDS = 60.0  # until a model that could not be loaded is tried again, as its files may have been incomplete


@dataclass(frozen=True)
class Served:
    """A loaded model. `place`: its folder; `label`: its name in answers."""

    place: Path
    label: str
    model: str
    systems: Systems
    documents: Documents | None
    count: int  # documents

    def search(self, queries: Sequence[str], k: int) -> list[Ranked]:
        """The `k` best documents of each query, the same as by `retemper search`, to the last bit."""
        return self.systems.search_many(queries, self.model, k)


def load(folder: Path, each: Each = map) -> Served:
    """Check and load an exported folder, and try it with one query. `each` maps over the queries of a batch.

    UserError, one line, for any fault of the folder.
    """
    export = read_record(folder)
    refuse_damaged(folder, export)
    searched: dict[str, DenseSystem | LexicalSystem] = {}
    counts, ids = set[int](), None
    for name, (encoder, index) in export.encoders.items():
        texts = texts_of(folder, export, index)
        searched[name] = DenseSystem(texts, encoder=folder / encoder, index=folder / index, resident=True, each=each)
        counts.add(len(texts.ids))
        ids = texts.ids
    if export.bm25:
        searched["bm25"] = _lexical(folder / export.bm25)
    documents = Documents(folder / export.documents) if export.documents else None
    if len(counts) > 1 or (documents and not documents.ids.equals(ids)):
        raise Corrupt(f"{folder}: its parts belong to different corpora; export again")
    systems = Systems(searched, export.fusions, depth=export.depth, lexical_depth=export.bm25_depth)
    served = Served(folder, export.label or export.model, export.model, systems, documents, counts.pop())
    if export.model not in systems.names:
        raise Corrupt(f"{folder}: has no system {export.model}, expected one of {', '.join(systems.names)}; export again")
    ranked = served.search(["a query"], 1)[0]  # reads the index, so that the first user does not wait for it
    if documents:
        documents.texts(ranked.documents)
    return served


def texts_of(folder: Path, export: Export, index: str) -> Texts:
    """The documents behind an index's rows, all in memory. Raises Corrupt if owners.npy is unreadable or does not fit the ids."""
    path = folder / index / "owners.npy"
    ids = read_ids(folder / index / "ids.parquet")
    try:
        owners: npt.NDArray[np.int32] = np.load(path, allow_pickle=False)
        is_valid = owners.ndim == 1 and (not len(owners) or int(owners.max()) < len(ids))
    except (OSError, ValueError, EOFError) as error:
        raise Corrupt(f"{path}: unreadable ({error}); export again") from None
    if not is_valid:
        raise Corrupt(f"{path}: names a document beyond the {len(ids):,} of ids.parquet; export again")
    return Texts(str(export.query["prefix"]), int(export.query["max_length"]), owners, ids)


def _lexical(folder: Path) -> LexicalSystem:
    try:
        return LexicalSystem(folder, resident=True)
    except (OSError, ValueError, KeyError) as error:
        raise Corrupt(f"{folder}: unreadable BM25 index ({error}); export again") from None


class Current:
    """The model that is served now. A thread watches `place`, a folder or a link to one, and replaces the model when it changes.

    The new model is loaded while the old one answers. If it cannot be loaded, the old one stays.
    """

    def __init__(self, place: Path, swapped: Callable[[str], None], say: Callable[[str], None], *, problem: Path | None = None) -> None:
        """Load the first model. UserError as in `load`. For each later one, `swapped` is called with `done` or `failed`, `say` with a line.

        `problem`: a file that exists while a newer model cannot be put into place, and says why.
        """
        self._place, self._swapped, self._say, self._noted = place, swapped, say, problem
        self._seen = self._stamp()
        self._pool = ThreadPoolExecutor(max(2, os.cpu_count() or 1), thread_name_prefix="query")
        self.served = load(place.resolve(), self._pool.map)
        self.since = time.time()
        self._failed, self._again = "", 0.0  # why the last swap failed, and when to try again
        self._stopping = threading.Event()

    @property
    def problem(self) -> str:
        """Why the current model is not the one that should be served; empty if it is."""
        noted = ""
        if self._noted:
            with suppress(OSError):
                noted = self._noted.read_text(encoding="utf-8")
        return "; ".join(filter(None, (noted, self._failed)))

    def watch(self) -> None:
        """Start to watch `place`, until `stop`."""
        threading.Thread(target=self._watch, daemon=True).start()

    def stop(self) -> None:
        """Stop watching."""
        self._stopping.set()

    def look(self) -> None:
        """Replace the model if `place` has changed, or if a failed replacement is due for another try."""
        stamp = self._stamp()
        is_unchanged = stamp == self._seen
        if stamp is None or (is_unchanged and not (self._failed and time.monotonic() >= self._again)):
            return
        self._seen = stamp
        try:
            self.served, self.since, self._failed = load(self._place.resolve(), self._pool.map), time.time(), ""
            self._swapped("done")
            self._say(f"serving {self.served.label}")
        except Exception as error:
            line = str(error) if isinstance(error, UserError) else disk_fault(error) or f"{type(error).__name__}: {error}"
            previous, self._failed = self._failed, printable(" ".join(line.split()))
            self._again = time.monotonic() + AGAIN_SECONDS
            if is_unchanged and self._failed == previous:  # already reported
                return
            self._swapped("failed")
            self._say(f"warning: still serving {self.served.label}, the next model cannot be loaded: {self._failed}")

    def _watch(self) -> None:
        while not self._stopping.wait(POLL_SECONDS):
            with suppress(Exception):  # such as of a link that leads to itself: a later model is followed all the same
                self.look()

    def _stamp(self) -> tuple[str, int] | None:
        """A stamp that changes with the model: the target of the link, and the time of the record, which is written last. None: missing."""
        try:
            folder = self._place.resolve()
            return str(folder), (folder / RECORD).stat().st_mtime_ns
        except OSError:
            return None
