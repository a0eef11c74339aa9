"""Write the corpus from a source, a batch at a time, with every check that does not depend on the kind of source.

Documents are written first, in source order. The qrels are then checked against them. Next come the queries that still
have judgments, in source order, and last the remaining qrels. Memory holds one batch of texts, 8 bytes per document and
query (tasks.core.tables.id_sets), and the qrels as Arrow columns (about 40 bytes per line).
"""

from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import compress
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tasks.core.errors import UserError
from tasks.core.files import write_json
from tasks.core.machine.processes import cores
from tasks.core.plurals import counted
from tasks.core.sources.datasets import MAKE_QUERIES
from tasks.core.stage.progress import track
from tasks.core.tables.id_sets import Hashes, Ids, hashes
from tasks.core.tables.parquet import BATCH_ROWS, write_table
from tasks.core.tables.schemas import COLUMNS, QRELS, QUERIES, SPLITS
from tasks.core.tables.weights import WEIGHTS
from tasks.core.text.plain import plain
from tasks.prepare.documents import write_documents
from tasks.prepare.params import Prepare
from tasks.prepare.records import Tally, WhiteId, batch_of, chunks, white_space_error, with_text
from tasks.prepare.source import At, Document, Qrel, Queries, Query, Source
from tasks.prepare.stats import Stats, corpus_stats


@dataclass
class Judged:
    """The qrels of a split, and the place of each line."""

    table: pa.Table
    lines: "array[int]"  # quoted: array is generic only from Python 3.12
    files: list[tuple[int, Path | str]]  # (first row, file), ascending
    weights: dict[int, float] = field(default_factory=dict)  # weights other than 1, by row

    def at(self, row: int) -> At:
        return At(next(file for first, file in reversed(self.files) if first <= row), self.lines[row])


@dataclass(frozen=True)
class Corpus:
    """The prepared corpus, as far as negatives are checked against it."""

    documents: Ids
    empty: Collection[str]  # ids of documents that were dropped because they have no text
    train_queries: Ids  # in the order of queries/train.parquet
    train_positives: Ids  # pair(query, doc)
    stats: Stats


def write_corpus(source: Source, settings: Prepare, folder: Path, *, needs_qrels: bool = True, processes: int | None = None) -> Corpus:
    """Write documents.parquet, queries/ and qrels/ of all three splits, and stats.json to `folder`; by default one process per core.

    UserError, with the place, for an id that is empty, duplicated, or (unless prepare.ids=escape) contains white space, an empty
    text, a qrel of an unknown document or query, two grades or weights for one pair, a split without a relevant document, no documents at
    all, and, if `needs_qrels`, no qrels at all.
    """
    tally = Tally(dropped=Counter(source.dropped))
    documents, empty = write_documents(source, settings, folder / "documents.parquet", tally=tally, processes=processes or cores())
    _refuse_repeated(documents, source.documents(), "document")
    judged = {split: _read_qrels(source.qrels[split]() if split in source.qrels else ()) for split in SPLITS}
    masks = {split: _known(judged[split], "doc", documents, empty, settings, tally) for split in SPLITS}
    queries = _write_queries(source, settings, folder / "queries", tally, judged, masks)
    tables = {split: _unique(judged[split], masks[split], tally) for split in SPLITS}
    if needs_qrels and not any(map(len, tables.values())):
        raise UserError(
            f"{source.name} has no qrels, or all were dropped; expected at least one for train, dev, or test; fix the source, "
            f"or {MAKE_QUERIES}"
        )
    for split, table in tables.items():
        if len(judged[split].table) and not pc.any(pc.greater(table["grade"], 0)).as_py():
            reason = "every grade is 0 or less" if len(table) else "all its qrels were dropped"
            raise UserError(
                f"{judged[split].at(0).file}: no relevant document in split {split}, {reason}; expected at least one grade above 0"
            )
        write_table(folder / "qrels" / f"{split}.parquet", QRELS, [table])
    stats = corpus_stats(tally, tables)
    write_json(folder / "stats.json", stats)
    positives = _pairs(tables["train"].filter(pc.greater(tables["train"]["grade"], 0)))
    return Corpus(documents, empty, queries["train"], positives, stats)


def write_weights(source: Source, folder: Path) -> int:
    """Write the training pairs whose weight is not 1 to train.parquet; return how many. Reads the training qrels once more."""
    lines = source.qrels["train"]() if "train" in source.qrels else iter(())
    rows = ((qrel.query, qrel.doc, qrel.weight) for qrel in lines if qrel.weight != 1)
    tables = (pa.table(list(map(list, zip(*chunk, strict=True))), schema=WEIGHTS) for chunk in chunks(rows))
    return write_table(folder / "train.parquet", WEIGHTS, tables)


def pair_ids(queries: Sequence[str], docs: Sequence[str]) -> list[str]:
    """One unique id per (query, document) pair."""
    return [f"{len(query)} {query}{doc}" for query, doc in zip(queries, docs, strict=True)]


def _write_queries(
    source: Source, settings: Prepare, folder: Path, tally: Tally, judged: dict[str, Judged], masks: dict[str, npt.NDArray[np.bool_]]
) -> dict[str, Ids]:
    """Write the judged queries of every split and return their ids. Qrels of unknown queries are cleared from `masks`."""
    folder.mkdir()
    held_out, leaks = _held_out(source, judged, masks), list[Query]()
    with _QueryTables(folder, tally) as tables:
        for key, read in source.queries.items():
            splits = [key] if key else list(SPLITS)
            judged_ids = {split: _query_ids(judged[split], masks[split]) for split in splits}
            empty: set[str] = set()
            seen = Ids()
            for chunk in chunks(_checked(read, f"queries {key}".rstrip(), settings, tally, empty)):
                ids = [query.id for query in chunk]
                seen.add(ids)
                for split in splits:
                    rows = list(compress(chunk, judged_ids[split].contain(ids)))
                    if split == "train" and rows:
                        leaked = _leaked(rows, held_out)
                        leaks += compress(rows, leaked)
                        rows = rows if settings.leaks == "allow" else list(compress(rows, ~leaked))
                    tables.add(split, rows)
            for split in splits:
                tables.flush(split, 1)
                masks[split] &= _known(judged[split], "query", seen, empty, settings, tally, masks[split])
            _refuse_repeated(seen, read(), "query")
    tally.dev_in_test = _in_both(tables.hashes["dev"], tables.hashes["test"])
    if leaks and settings.leaks == "refuse":
        raise UserError(
            f"{leaks[0].at}: training query {leaks[0].id!r} is also in dev or test, by text or id ({_such(len(leaks), 'queries')}), "
            "expected none: a model would be evaluated on what it was trained on; remove them, or set prepare.leaks=drop (or allow)"
        )
    if settings.leaks == "allow":
        tally.leaks = len(leaks)
    elif leaks:
        names = pa.array([query.id for query in leaks])
        masks["train"] &= ~pc.is_in(judged["train"].table["query"], value_set=names).to_numpy()
        tally.dropped["queries of train that are also in dev or test"] += len(leaks)
    return tables.ids


class _QueryTables(ExitStack):
    """The tables of queries by split, and of their own columns; complete when the block ends. `hashes`: [queries, 2], ids and texts."""

    def __init__(self, folder: Path, tally: Tally) -> None:
        super().__init__()
        self.ids = {split: Ids() for split in SPLITS}
        self.hashes: dict[str, list[Hashes]] = {"dev": [], "test": []}
        self._folder, self._tally = folder, tally
        self._pending: dict[str, list[Query]] = {split: [] for split in SPLITS}
        self._writers = {s: self.enter_context(pq.ParquetWriter(folder / f"{s}.parquet", QUERIES, compression="zstd")) for s in SPLITS}
        self._columns: dict[str, pq.ParquetWriter] = {}

    def add(self, split: str, rows: Sequence[Query]) -> None:
        """Write queries, in row groups of BATCH_ROWS, so that equal tables give equal files; the rest waits for a `flush`."""
        self._pending[split] += rows
        self.flush(split, BATCH_ROWS)

    def flush(self, split: str, minimum: int) -> None:
        """Write row groups while at least `minimum` rows are waiting."""
        while len(self._pending[split]) >= minimum:
            rows, self._pending[split] = self._pending[split][:BATCH_ROWS], self._pending[split][BATCH_ROWS:]
            ids = [query.id for query in rows]
            self.ids[split].add(ids)
            if split in self.hashes:
                self.hashes[split].append(np.stack([hashes(ids), hashes([plain(query.text) for query in rows])], axis=1))
            self._tally.queries[split].add(query.text for query in rows)
            self._writers[split].write(batch_of(QUERIES, rows))
            if column_rows := [(query.id, name, value) for query in rows for name, value in query.columns.items()]:
                if split not in self._columns:
                    path = self._folder.parent / "columns" / f"{split}.parquet"
                    self._columns[split] = self.enter_context(_column_writer(path))
                self._columns[split].write_table(pa.table(list(zip(*column_rows, strict=True)), schema=COLUMNS))


def _checked(read: Queries, label: str, settings: Prepare, tally: Tally, empty: set[str]) -> Iterator[Query]:
    try:
        yield from with_text(track(read(), label), "query", settings, tally, empty)
    except WhiteId as error:
        raise white_space_error(error, read) from None


def _column_writer(path: Path) -> pq.ParquetWriter:
    path.parent.mkdir(exist_ok=True)
    return pq.ParquetWriter(path, COLUMNS, compression="zstd")


def _query_ids(judged: Judged, mask: npt.NDArray[np.bool_]) -> Ids:
    return _ids(judged.table["query"].filter(pa.array(mask)))


def _held_out(source: Source, judged: dict[str, Judged], masks: dict[str, npt.NDArray[np.bool_]]) -> tuple[Ids, Ids]:
    """The ids and the texts of the judged queries of dev and test. Both are empty if there are no training qrels."""
    ids, texts = Ids(), Ids()
    for key, read in source.queries.items() if len(judged["train"].table) else ():
        for split in [key] if key else ["dev", "test"]:
            if split == "train" or not len(judged[split].table):
                continue
            judged_ids = _query_ids(judged[split], masks[split])
            for chunk in chunks(read()):
                rows = list(compress(chunk, judged_ids.contain([query.id for query in chunk])))
                ids.add([query.id for query in rows])
                texts.add([plain(query.text) for query in rows])
    return ids, texts


def _leaked(rows: Sequence[Query], held_out: tuple[Ids, Ids]) -> npt.NDArray[np.bool_]:
    ids, texts = held_out
    return ids.contain([query.id for query in rows]) | texts.contain([plain(query.text) for query in rows])


def _in_both(first: Sequence[Hashes], second: Sequence[Hashes]) -> int:
    """The number of queries of `first` that are in `second`, by id or text."""
    if not first or not second:
        return 0
    (ids, texts), (second_ids, second_texts) = np.concatenate(first).T, np.concatenate(second).T
    return int((np.isin(ids, second_ids) | np.isin(texts, second_texts)).sum())


def _read_qrels(lines: Iterable[Qrel]) -> Judged:
    numbers, files, batches = array("q"), list[tuple[int, Path | str]](), []
    weights: dict[int, float] = {}
    for chunk in chunks(lines):
        for qrel in chunk:
            if not files or files[-1][1] != qrel.at.file:
                files.append((len(numbers), qrel.at.file))
            if qrel.weight != 1:
                weights[len(numbers)] = qrel.weight
            numbers.append(qrel.at.line)
        columns = [[q.query for q in chunk], [q.doc for q in chunk], [q.grade for q in chunk]]
        batches.append(pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, QRELS, strict=True)], schema=QRELS))
    return Judged(pa.Table.from_batches(batches, QRELS), numbers, files, weights)


def _known(
    judged: Judged,
    column: str,
    ids: Ids,
    empty: set[str],
    settings: Prepare,
    tally: Tally,
    among: npt.NDArray[np.bool_] | None = None,
) -> npt.NDArray[np.bool_]:
    """For each qrel, whether the id in `column` is among `ids`.

    Unknown ones in `among` (None: all rows) are refused, with the first one's place, or counted, as `settings` says.
    """
    kind = "document" if column == "doc" else "query"
    mask = np.zeros(len(judged.table), dtype=np.bool_)
    start = 0
    for batch in judged.table.select([column]).to_batches(BATCH_ROWS):
        mask[start : start + len(batch)] = ids.contain(batch[0].to_pylist())
        start += len(batch)
    missing = np.flatnonzero(~mask if among is None else ~mask & among)
    dropped = missing[[judged.table[column][int(row)].as_py() in empty for row in missing]] if empty else missing[:0]
    unknown = np.setdiff1d(missing, dropped, assume_unique=True)
    if len(unknown) and settings.unknown_documents == "refuse":
        first_row = int(unknown[0])
        raise UserError(
            f"{judged.at(first_row)}: {kind} {judged.table[column][first_row].as_py()!r} is not in the dataset "
            f"({_such(len(unknown), 'lines')}); add it, or set prepare.unknown_documents=drop"
        )
    for count, reason in ((len(unknown), f"qrels of an unknown {kind}"), (len(dropped), f"qrels of a {kind} without text")):
        if count:
            tally.dropped[reason] += count
    return mask


def _unique(judged: Judged, mask: npt.NDArray[np.bool_], tally: Tally) -> pa.Table:
    """The qrels in `mask`, each pair once. UserError if a pair has two grades or weights."""
    rows = np.flatnonzero(mask)
    table = judged.table.take(pa.array(rows)).combine_chunks()
    repeated = _pairs(table).repeated()
    if not repeated:
        return table
    keep = np.ones(len(table), dtype=np.bool_)
    first_seen: dict[str, tuple[int, int, float]] = {}
    start = 0
    for batch in table.to_batches(BATCH_ROWS):
        names = pair_ids(batch["query"].to_pylist(), batch["doc"].to_pylist())
        for row in (place for place, value in enumerate(hashes(names).tolist()) if value in repeated):
            position, grade = start + row, batch["grade"][row].as_py()
            weight = judged.weights.get(int(rows[position]), 1.0)
            earlier, *earlier_values = first_seen.setdefault(names[row], (position, grade, weight))
            for name, value, earlier_value in zip(("grade", "weight"), (grade, weight), earlier_values, strict=True):
                if value != earlier_value:
                    raise UserError(
                        f"{judged.at(int(rows[position]))}: query {batch['query'][row].as_py()!r} and document "
                        f"{batch['doc'][row].as_py()!r} have {name} {value} here and {earlier_value} at "
                        f"{judged.at(int(rows[earlier]))}; keep one"
                    )
            keep[position] = earlier == position
        start += len(batch)
    tally.dropped["qrels given twice"] += int((~keep).sum())
    return table.filter(pa.array(keep)).combine_chunks()


def _pairs(qrels: pa.Table) -> Ids:
    """The pairs of a table of qrels."""
    ids = Ids()
    for batch in qrels.to_batches(BATCH_ROWS):
        ids.add(pair_ids(batch["query"].to_pylist(), batch["doc"].to_pylist()))
    return ids


def _refuse_repeated(ids: Ids, records: Iterable[Document | Query], kind: str) -> None:
    """UserError with both places of the first duplicate id. The source is read again only if two hashes are equal."""
    repeated = ids.repeated()
    first_places: dict[str, At] = {}
    for chunk in chunks(records) if repeated else ():
        for record, value in zip(chunk, hashes([record.id for record in chunk]).tolist(), strict=True):
            if value in repeated and first_places.setdefault(record.id, record.at) != record.at:
                raise UserError(
                    f"{record.at}: {kind} id {record.id!r} is already used at {first_places[record.id]}; "
                    "ids must be unique, drop or rename one"
                )


def _such(count: int, noun: str) -> str:
    """`2 such lines`, but `1 such line`."""
    return counted(count, noun).replace(" ", " such ", 1)


def _ids(column: pa.ChunkedArray) -> Ids:
    ids = Ids()
    for chunk in column.chunks:
        ids.add(chunk.to_pylist())
    return ids
