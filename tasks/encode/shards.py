"""Cut a corpus into shards, and keep finished ones in a store for the next encode."""

import hashlib
import io
import shutil
import time
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tasks.core.files import new_file
from tasks.core.retrieval.embeddings import Block
from tasks.core.tables.ids import Ints, StoredIds
from tasks.core.tokens.folder import Tokens

MEAN_ROWS = 4096
LISTED = 64  # the store is listed once per this many shards; a corpus has thousands
CHUNK = 65536  # ids held as Python strings at a time
COMPANIONS = (".rows", ".sha256")  # of a shard's .npy
WRITING = 3600  # seconds after which a temporary file is taken for that of a killed encode


def boundaries(ids: pa.Array | StoredIds, owners: npt.NDArray[np.int32], mean_rows: int = MEAN_ROWS) -> Ints:
    """The first row of each shard, then the number of rows, [S + 1]. A shard ends after a document if the CRC-32 of its id says so.

    The cuts are content-defined, so appending, changing, or deleting documents touches only their own shards. A document's
    passages stay together. A shard has at most four times `mean_rows`, unless a single document has more.
    """
    ends = np.empty(len(ids), dtype=bool)
    for start in range(0, len(ids), CHUNK):
        part = ids.slice(start, CHUNK).to_pylist()
        ends[start : start + len(part)] = [zlib.crc32(i.encode()) % mean_rows == 0 for i in part]
    last = np.searchsorted(owners, np.flatnonzero(ends), side="right")
    cuts = [0]
    for cut in [*last.tolist(), len(owners)]:
        while cut - cuts[-1] > 4 * mean_rows:
            document = owners[cuts[-1] + 4 * mean_rows]
            document_start = int(np.searchsorted(owners, document))
            cuts.append(document_start if document_start > cuts[-1] else int(np.searchsorted(owners, document, side="right")))
        if cut > cuts[-1]:
            cuts.append(cut)
    return np.array(cuts, dtype=np.int64)


def shard_digest(tokens: Tokens, first: int, end: int, made_by: str) -> str:
    """Digest of everything that determines the vectors of rows `first` to `end`: `made_by` (weights, settings, arithmetic) and tokens."""
    total = hashlib.sha256(made_by.encode())
    total.update(np.ascontiguousarray(tokens.offsets[first : end + 1] - tokens.offsets[first]).tobytes())
    total.update(np.ascontiguousarray(tokens.flat[tokens.offsets[first] : tokens.offsets[end]]).tobytes())
    return total.hexdigest()


@dataclass
class View:
    """The content of a store: as last listed, and updated since."""

    bytes_held: int = 0
    oldest_last: list[tuple[float, int, Path]] = field(default_factory=list)  # (last use, bytes, file), the oldest at the end
    requests: int = 0


@dataclass(frozen=True)
class ShardStore:
    """Finished shards by digest, outside DVC: for encodes that resume after a kill, or whose corpus has grown."""

    folder: Path
    limit_bytes: int
    used: set[Path] = field(default_factory=set)  # kept or fetched by this encode
    view: View = field(default_factory=View)

    def fetch(self, digest: str, to: Path) -> bool:
        """Copy a kept shard to `to`. Return False if it is not kept or is corrupt."""
        shard = self.folder / f"{digest}.npy"
        try:
            if hashlib.sha256(shard.read_bytes()).hexdigest() != shard.with_suffix(".sha256").read_text(errors="replace"):
                return False
            shutil.copyfile(shard, to)
            shard.touch()
        except FileNotFoundError:
            return False
        self.used.add(shard)
        return True

    def read(self, digest: str) -> Block | None:
        """The vectors of a kept shard; None if it is not kept or is corrupt."""
        shard = self.folder / f"{digest}.npy"
        try:
            content = shard.read_bytes()
            if hashlib.sha256(content).hexdigest() != shard.with_suffix(".sha256").read_text(errors="replace"):
                return None
        except FileNotFoundError:
            return None
        vectors: Block = np.load(io.BytesIO(content), allow_pickle=False)
        return vectors

    def row_digests(self, family: str) -> Iterator[tuple[str, bytes]]:
        """For every kept shard of `family` (the prefix of its digest): its digest, and the digests of its rows."""
        for file in sorted(self.folder.glob(f"{family}*.rows")):
            with suppress(FileNotFoundError):
                yield file.stem, file.read_bytes()

    def forget(self, family: str, seconds: float) -> None:
        """Remove the shards of `family` that this encode did not use, and all shards unused for `seconds`.

        The former contain changed or deleted texts. Shards of other families (other weights) do not say which texts they hold, so those
        with deleted ones stay until they are old; `retemper forget` removes them.
        """
        oldest = time.time() - seconds
        for file in self.folder.glob("*.npy"):
            with suppress(FileNotFoundError):  # another encode may remove it first
                if file not in self.used and (file.name.startswith(family) or file.stat().st_mtime < oldest):
                    _remove(file)
        self._remove_leftovers(family)

    def keep(self, digest: str, vectors: Block, rows: bytes = b"") -> None:
        """Keep a shard, and the digests of its `rows`, if there is room.

        To make room, the least recently used shards of other encodes are removed, but never those of this encode. The next encode asks
        for these in the same order; with a corpus larger than the store, it would find none if the first were removed first.
        """
        shard = self.folder / f"{digest}.npy"
        if not self._make_room(vectors.nbytes):
            return
        with suppress(FileNotFoundError):  # another encode is keeping the same shard
            with new_file(shard) as temporary, temporary.open("wb") as handle:
                np.save(handle, vectors)
            with new_file(shard.with_suffix(".sha256")) as temporary:
                temporary.write_text(hashlib.sha256(shard.read_bytes()).hexdigest())
            if rows:
                with new_file(shard.with_suffix(".rows")) as temporary:
                    temporary.write_bytes(rows)
        self.used.add(shard)

    def _make_room(self, size: int) -> bool:
        """Remove shards that this encode has not used until `size` more bytes fit. Return whether they do.

        The store is listed once every LISTED shards. In between, shards that other encodes keep may exceed the limit.
        """
        view = self.view
        if view.requests % LISTED == 0:
            self._list()
        view.requests += 1
        while view.bytes_held + size > self.limit_bytes >= size and view.oldest_last:
            last_use, bytes_held, file = view.oldest_last.pop()
            with suppress(FileNotFoundError):  # another encode may remove it first
                if file in self.used or file.stat().st_mtime != last_use:  # used since
                    continue
                _remove(file)
            view.bytes_held -= bytes_held
        fits = view.bytes_held + size <= self.limit_bytes
        view.bytes_held += size if fits else 0
        return fits

    def _list(self) -> None:
        self._remove_leftovers()
        shards: list[tuple[float, int, Path]] = []
        for file in self.folder.glob("*.npy"):
            with suppress(FileNotFoundError):
                shards.append((file.stat().st_mtime, file.stat().st_size, file))
        self.view.bytes_held = sum(bytes_held for _, bytes_held, _ in shards)
        self.view.oldest_last = sorted(shards, reverse=True)

    def _remove_leftovers(self, family: str | None = None) -> None:
        """Remove what killed encodes left: temporary files, those of `family` at any age, and companions of a shard that is gone."""
        files = list(self.folder.iterdir()) if self.folder.is_dir() else []
        shards = {file.stem for file in files if file.suffix == ".npy"}
        for file in files:
            with suppress(FileNotFoundError):  # another encode may remove it first
                if file.suffix == ".partial":
                    of_family = family is not None and file.name.startswith(f".{family}")
                    is_left = of_family or file.stat().st_mtime < time.time() - WRITING
                else:
                    is_left = file.suffix in COMPANIONS and file.stem not in shards and not file.with_suffix(".npy").exists()
                if is_left:
                    file.unlink()


def _remove(shard: Path) -> None:
    """Remove a shard, last of all its vectors: a store is searched by them, also for what a kill has left of this."""
    for suffix in (*COMPANIONS, ".npy"):
        shard.with_suffix(suffix).unlink(missing_ok=True)
