"""Find the objects of a cache and of remotes that hold given records, by lineage from every corpus that has them.

Texts turn into tokens, posting lists, vectors, runs, and pages, so a search for bytes finds few of them. Everything that stages made,
directly or not, from a corpus with a record counts as holding it, except outs that cannot hold any (NONE) and those for the other kind of
record (OF). Weights of models do not count: `retemper exposure` shows what they saw.
"""

import io
import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from flows.forgetting.text_search import as_cells
from flows.storage.cache import intact_path, is_object, listing, parse_listing, part_digest, part_of, remote_id
from tasks.core.files import write_text
from tasks.core.sources.forgotten import Kind, mark, text_of
from tasks.core.tables.parquet import BATCH_ROWS, open_parquet

FOUND = Path(".retemper/forgetting/found.json")  # exists until all of it is removed and the check is done
CORPORA = ("data/corpus", "data/pseudo")
NONE = (
    *("data/encoders/", "data/rerankers/", "data/state/", "data/tokenizer/", "data/curves/", "data/pretrain_curves/"),
    *("data/metrics/", "data/index_metrics/", "data/latency/", "data/studies/"),
)
OF: Mapping[Kind, tuple[str, ...]] = {  # outs that hold only one kind of record
    "document": tuple(
        f"data/{name}"
        for name in ("corpus/documents", "pseudo/documents", "tokens/documents", "bm25/", "embeddings/", "indexes/", "chunks/")
    ),
    "query": tuple(
        f"data/{name}" for name in ("corpus/queries/", "corpus/columns/", "pseudo/queries/", "pseudo/kinds/", "tokens/queries/")
    ),
}
EMBEDDINGS = "data/embeddings/"


@dataclass(frozen=True)
class Remote:
    """A remote's filesystem, the objects there, by digest, and the recorded runs, by path."""

    name: str
    fs: Any
    odb: Any
    root: str  # of the remote
    places: Mapping[str, str]
    runs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def delete(self, oids: Collection[str]) -> list[str]:
        """Remove those of the objects `oids` that are there, listings first; return their paths."""
        places = [self.places[oid] for oid in sorted(oids, key=lambda oid: not oid.endswith(".dir")) if oid in self.places]
        existing = [place for place in places if self.fs.exists(place)]
        if existing:
            from dvc_data.hashfile.db import get_index

            self.fs.remove(existing)
            get_index(self.odb).clear()
        return existing


@dataclass(frozen=True)
class Store:
    """Objects of the local cache, or of a remote if one is missing or corrupt in the cache."""

    objects: Path
    remotes: Sequence[Remote] = ()

    def folder_remotes(self) -> list[Path]:
        return [Path(remote.root) for remote in self.remotes if remote.fs.protocol == "local"]

    def read(self, oid: str) -> bytes | None:
        if local := intact_path(self.objects, oid):
            return local.read_bytes()
        for remote in self.remotes:
            if oid in remote.places and is_object(content := bytes(remote.fs.fs.cat_file(remote.places[oid])), oid):
                return content
        return None

    def listing(self, oid: str) -> dict[str, str]:
        """Digests of a folder's files by name; empty if no copy of its listing is intact."""
        if files := listing(self.objects, oid):
            return files
        text = self.read(oid) if oid.endswith(".dir") else None
        return parse_listing(text, oid) or {} if text else {}

    def opened(self, oid: str) -> pq.ParquetFile | None:
        """A Parquet file, to be read a batch at a time; None if it is lost."""
        if local := intact_path(self.objects, oid):
            return open_parquet(local)
        data = self.read(oid)
        return None if data is None else open_parquet(io.BytesIO(data))


@dataclass(frozen=True)
class Entry:
    """An entry of a dvc.lock or of the run cache; `own` if one of this project's dvc.locks has it, `added` if it is a .dvc file."""

    value: Mapping[str, Any]
    own: bool
    added: bool = False

    def outs(self) -> Iterator[tuple[str, str]]:
        for out in self.value.get("outs") or []:
            if out.get("md5"):
                yield str(out["path"]), str(out["md5"])

    def deps(self) -> Iterator[tuple[str, str]]:
        for dep in self.value.get("deps") or []:
            yield str(dep["path"]), str(dep.get("md5", ""))


@dataclass
class Holdings:
    """What holds the records: objects by digest, and the outs (path, digest) that they are part of.

    `ids` and `texts`: those of the records; `titles`: the texts that are titles, of records without another; `clean`: SHA-256 of vectors
    that are known to be of other documents.
    """

    outs: set[tuple[str, str]] = field(default_factory=set)
    oids: dict[str, str] = field(default_factory=dict)  # digest to path
    ids: set[str] = field(default_factory=set)
    texts: set[str] = field(default_factory=set)
    titles: set[str] = field(default_factory=set)
    clean: set[str] = field(default_factory=set)
    clean_corpora: set[tuple[str, str]] = field(default_factory=set)  # that were read in full and have none of the records
    unread: list[str] = field(default_factory=list)  # corpora that are neither in the cache nor on a remote
    removed: set[str] = field(default_factory=set)  # corpora and their files that an earlier `forget` of these records has removed

    def after_removal(self) -> "Holdings":
        """What to keep once all of it is removed: an object that is made again with the digest of a removed one is not of the record."""
        outs = (*self.outs, *((path, oid) for oid, path in self.oids.items()))
        corpora = {f"{path} {oid}" for path, oid in outs if path.startswith(CORPORA)}
        return Holdings(ids=self.ids, texts=self.texts, removed=self.removed | corpora)

    def save(self, place: Path) -> None:
        """Write down what was found, before any of it is removed. The file has texts, so only its owner may read it."""
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fields = {"outs": sorted(self.outs), "oids": self.oids, "ids": sorted(self.ids), "texts": sorted(self.texts)}
        write_text(place, json.dumps({**fields, "removed": sorted(self.removed)}))

    @classmethod
    def load(cls, place: Path) -> "Holdings":
        """What an unfinished `forget` had found; nothing if there was none."""
        if not place.exists():
            return cls()
        fields = json.loads(place.read_text(encoding="utf-8"))
        outs, removed = {(path, oid) for path, oid in fields["outs"]}, set(fields.get("removed", ()))
        return cls(outs, fields["oids"], set(fields["ids"]), set(fields["texts"]), removed=removed)


def find(
    entries: Sequence[Entry], store: Store, marks: Collection[str], *, kinds: Collection[Kind], earlier: Holdings | None = None
) -> Holdings:
    """Find what holds the records of `marks`, which are of `kinds`. `earlier`: what an unfinished `forget` had found.

    Other projects may share the cache and use the same ids, so an entry that is not `own` counts only if a record's text is the same.
    """
    earlier = earlier or Holdings()
    holdings = holders(entries, store, marks, texts=earlier.texts)
    holdings.ids |= earlier.ids
    holdings.outs |= earlier.outs
    holdings.removed = earlier.removed
    may_be_removed = earlier.after_removal().removed
    holdings.unread = [corpus for corpus in holdings.unread if corpus not in may_be_removed]
    _add_dependents(entries, store, holdings, kinds=kinds)
    shared_oids = _kept_elsewhere(entries, store, holdings)
    holdings.oids |= earlier.oids
    for path, oid in sorted(holdings.outs):
        _add_files(path, oid, store, marks=marks, kinds=kinds, holdings=holdings)
    for oid in shared_oids & holdings.oids.keys():
        del holdings.oids[oid]
    return holdings


def holders(entries: Sequence[Entry], store: Store, marks: Collection[str], *, texts: Collection[str] = ()) -> Holdings:
    """The corpora that have records of `marks`, with these records' ids and texts, in addition to the `texts` already known."""
    holdings = Holdings(texts=set(texts))
    corpora: dict[tuple[str, str], bool] = {}
    for entry in entries:
        for path, oid in entry.outs():
            if path in CORPORA:
                corpora[path, oid] = corpora.get((path, oid), False) or entry.own
    for own in (True, False):  # own ones first: their texts decide about the others
        for path, oid in (corpus for corpus, is_own in corpora.items() if is_own is own):
            unread_before = len(holdings.unread)
            corpus_texts = _texts(path, oid, store, marks=marks, holdings=holdings)
            if not corpus_texts and len(holdings.unread) == unread_before:
                holdings.clean_corpora.add((path, oid))
            searched = set(filter(str.strip, corpus_texts))  # a blank text is that of many records
            if corpus_texts and (own or searched & holdings.texts):
                holdings.texts |= searched
                holdings.outs.add((path, oid))
        holdings.texts -= _shared_titles(entries, store, marks, holdings=holdings)
    return holdings


def known_marks(entries: Iterable[Entry], store: Store, marks: Collection[str]) -> set[str]:
    """Those of `marks` that a corpus has, each read once."""
    found = set[str]()
    for path, oid in {out for entry in entries for out in entry.outs() if out[0] in CORPORA}:
        for kind, batch in _records(path, oid, store, unread=[]):
            found |= {name for record_id in batch["id"].to_pylist() if (name := mark(kind, record_id)) in marks}
    return found


def same_texts(
    entries: Iterable[Entry], store: Store, marks: Collection[str], *, texts: Collection[str], outs: Collection[tuple[str, str]]
) -> list[str]:
    """Records with one of the `texts` of marked ones under another id, in this project's corpora among `outs`: document:ID, query:ID."""
    corpora = {out for entry in entries if entry.own for out in entry.outs() if out[0] in CORPORA and out in outs}
    others = set[str]()
    wanted = as_cells(texts)
    for path, oid in corpora:
        for kind, batch in _records(path, oid, store, unread=[]):
            matches = [pc.is_in(batch[name].cast(pa.binary()), wanted) for name in batch.schema.names if name != "id"]
            same = [row["id"] for row in batch.filter(reduce(pc.or_, matches)).to_pylist() if _text(row) in texts]
            others |= {f"{kind}:{record_id}" for record_id in same if mark(kind, record_id) not in marks}
    return sorted(others)


def may_hold(path: str, kinds: Collection[Kind]) -> bool:
    """Whether a file or folder, by its path below the project, may hold a record of one of `kinds`."""
    if f"{path}/".startswith(NONE):
        return False
    only = [kind for kind, places in OF.items() if path.startswith(places) or f"{path}/".startswith(places)]
    return not only or bool(set(only) & set(kinds))


def _texts(path: str, oid: str, store: Store, *, marks: Collection[str], holdings: Holdings) -> set[str]:
    """The texts of marked records in a corpus."""
    texts: set[str] = set()
    for kind, batch in _records(path, oid, store, unread=holdings.unread):
        places = [row for row, record_id in enumerate(batch["id"].to_pylist()) if mark(kind, record_id) in marks]
        for row in batch.take(pa.array(places, pa.int64())).to_pylist() if places else ():
            holdings.ids.add(row["id"])
            texts.add(_text(row))
            if not row["text"].strip():
                holdings.titles.add(_text(row))
    return texts


def _shared_titles(entries: Iterable[Entry], store: Store, marks: Collection[str], *, holdings: Holdings) -> set[str]:
    """The titles that other records of this project have, too, like those of a manual's pages: to look for one would find these."""
    corpora = {out for entry in entries if entry.own for out in entry.outs() if out[0] in CORPORA and out in holdings.outs}
    shared, titles = set[str](), as_cells(holdings.titles)
    for path, oid in corpora if holdings.titles else ():
        for kind, batch in _records(path, oid, store, unread=[]):
            rows = batch.filter(pc.is_in(batch["title"].cast(pa.binary()), titles)).to_pylist() if kind == "document" else []
            shared |= {row["title"] for row in rows if mark(kind, row["id"]) not in marks}
    return shared


def _records(path: str, oid: str, store: Store, *, unread: list[str]) -> Iterator[tuple[Kind, pa.RecordBatch]]:
    """Ids and texts of a corpus in batches, with their kind. Lost files are added to `unread`."""
    files = store.listing(oid)
    if not files:
        unread.append(f"{path} {oid}")
    for name, inner in files.items():
        kind: Kind | None = "document" if name == "documents.parquet" else "query" if name.startswith("queries/") else None
        if kind:
            file = store.opened(inner)
            if file is None:
                unread.append(f"{path}/{name} {inner}")
                continue
            with file:
                for batch in file.iter_batches(BATCH_ROWS, columns=["id", "text", *(["title"] if kind == "document" else [])]):
                    yield kind, batch


def _text(row: Mapping[str, str]) -> str:
    return text_of(row["text"], row.get("title", ""))


def _add_dependents(entries: Sequence[Entry], store: Store, holdings: Holdings, *, kinds: Collection[Kind]) -> None:
    """Add to `holdings.outs` the outs of every entry that read one of them, directly or through others, except what is `_clean`."""
    readers: dict[tuple[str, str], list[Entry]] = defaultdict(list)
    for entry in entries:
        for dep in entry.deps():
            readers[dep].append(entry)
    read = {path for path, _ in readers if may_hold(path, kinds)}
    clean = _clean(entries, store, holdings.clean_corpora, read=read)
    waiting = list(holdings.outs)
    while waiting:
        path, oid = waiting.pop()
        for dep in _as_read(path, oid, store, read=read):
            for entry in readers.get(dep, ()):
                for out in {*entry.outs()} - holdings.outs - clean:
                    if may_hold(out[0], kinds):
                        holdings.outs.add(out)
                        waiting.append(out)


def _clean(entries: Sequence[Entry], store: Store, corpora: Collection[tuple[str, str]], *, read: Collection[str]) -> set[tuple[str, str]]:
    """What was made from the clean `corpora`, and from nothing else in `read`, as dependencies may name it. It holds no record, even if an
    equal file, such as the judgments of dev, is part of a corpus that has one.
    """
    clean = {part for path, oid in corpora for part in _as_read(path, oid, store, read=read)}
    waiting = [entry for entry in entries if any(entry.deps()) and not any(path in CORPORA for path, _ in entry.outs())]
    while True:
        ready = [all(dep in clean or dep[0] not in read for dep in entry.deps()) for entry in waiting]
        if not any(ready):
            return clean
        outs = {out for entry, is_ready in zip(waiting, ready, strict=True) if is_ready for out in entry.outs()}
        clean |= {part for path, oid in outs for part in _as_read(path, oid, store, read=read)}
        waiting = [entry for entry, is_ready in zip(waiting, ready, strict=True) if not is_ready]


def _as_read(path: str, oid: str, store: Store, *, read: Iterable[str]) -> Iterator[tuple[str, str]]:
    """An out as dependencies may name it: itself, and the files and folders in it that some stage reads."""
    yield path, oid
    parts = [part for part in read if part.startswith(f"{path}/")]
    files = store.listing(oid) if parts else {}
    for part in parts:
        if digest := part_digest(part_of(files, part.removeprefix(f"{path}/"))):
            yield part, digest


def _kept_elsewhere(entries: Sequence[Entry], store: Store, holdings: Holdings) -> set[str]:
    """Objects of outs that hold no record. They are kept even if an out with a record has an equal file."""
    others = {out for entry in entries for out in entry.outs()} - holdings.outs
    oids = {oid for _, oid in others}
    for _, oid in others:
        oids |= set(store.listing(oid).values()) if oid.endswith(".dir") else set()
    return oids


def _add_files(path: str, oid: str, store: Store, *, marks: Collection[str], kinds: Collection[Kind], holdings: Holdings) -> None:
    holdings.oids[oid] = path
    files = store.listing(oid)
    spared = _other_shards(files, store, marks, holdings=holdings) if path.startswith(EMBEDDINGS) else set()
    for name, inner in files.items():
        if name not in spared and may_hold(f"{path}/{name}", kinds):
            holdings.oids[inner] = f"{path}/{name}"


def _other_shards(files: Mapping[str, str], store: Store, marks: Collection[str], *, holdings: Holdings) -> set[str]:
    """Names of the shards of an embedding folder without a marked document; their SHA-256 go to `found.clean`."""
    ids, owners, manifest = (store.read(files.get(name, "")) for name in ("ids.parquet", "owners.npy", "manifest.json"))
    if ids is None or owners is None or manifest is None:
        return set()
    record = json.loads(manifest)
    names = pq.read_table(io.BytesIO(ids), columns=["id"])["id"].to_pylist()
    marked = np.array([mark("document", name) in marks for name in names], dtype=bool)
    rows = np.flatnonzero(marked[np.load(io.BytesIO(owners), allow_pickle=False)])
    affected = set(np.searchsorted(np.cumsum(record["shards"]), rows, side="right").tolist())
    spared = {number for number in range(len(record["shards"])) if number not in affected}
    holdings.clean |= {digest for number, digest in enumerate(record.get("digests") or []) if number in spared}
    return {f"{number:05d}.npy" for number in spared}


def other_shards(folder: Path, clean: Collection[str]) -> Iterator[Path]:
    """Files of stored shards that are not known to be of other documents (`clean`), and what killed encodes left: no run is in progress."""
    for path in sorted(folder.glob("*")):
        shard, digest = path.with_suffix(".npy"), path.with_suffix(".sha256")
        is_clean = shard.exists() and digest.exists() and digest.read_text(errors="replace") in clean
        if path.suffix in (".npy", ".sha256", ".rows", ".partial") and not is_clean:
            yield path


def remote_places(fs: Any, base: str) -> dict[str, str]:
    """Path of every object below a remote's folder, by digest."""
    return {oid: path for path in (fs.find(base) if fs.exists(base) else []) if (oid := remote_id(path))}
