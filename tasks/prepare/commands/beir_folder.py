"""Write any source that this stage reads as a BEIR folder. The process behind `retemper convert --data`.

From the folder, prepare reads the same documents, queries, and qrels as from the source. Memory holds one batch of records at a time, and
16 bytes per query if the source has a file of queries per split.

Reads a JSON object from standard input and prints one:

    {"source": SPEC, "folder": FOLDER}
    {"documents", "titled", "white", "empty", "negatives": numbers; "queries", "judgments": by split; "left_out": by reason}
"""

import csv
import io
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, compress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tasks.core.errors import UserError
from tasks.core.sources.columns import WEIGHT
from tasks.core.sources.datasets import parse_dataset
from tasks.core.sources.forgotten import read_marks
from tasks.core.stage.entry import stage
from tasks.core.stage.progress import track
from tasks.core.tables.id_sets import Ids
from tasks.core.tables.schemas import SPLITS
from tasks.core.trec.ids import WHITE
from tasks.prepare.forgotten import without_forgotten
from tasks.prepare.readers.kinds import read
from tasks.prepare.records import chunks
from tasks.prepare.source import Document, Qrel, Query, Source

ENCODER = json.JSONEncoder(ensure_ascii=False)
CUTS = re.compile(r"[\t\n\r]")  # characters that end a cell of qrels
LINE_END = "\r\n"  # before Python 3.13, only cells with a character of it are quoted for line breaks
HEADER = ("query-id", "corpus-id", "score")


@dataclass
class Written:
    """Counts of written records. `white`: ids with white space; `empty`: documents and queries without text."""

    documents: int = 0
    titled: int = 0
    white: int = 0
    empty: int = 0
    negatives: int = 0
    queries: Counter[str] = field(default_factory=Counter)
    judgments: Counter[str] = field(default_factory=Counter)


def write_beir(source: Source, folder: Path) -> Written:
    """Write the source to an empty folder. UserError, with the place, for a record that BEIR's files cannot hold."""
    written = Written()
    _lines(folder / "corpus.jsonl", (_document(document, written) for document in track(source.documents(), "documents")))
    if not source.qrels:
        return written
    queries: dict[str, Ids] = {}
    _lines(folder / "queries.jsonl", _queries(source, queries, written))
    (folder / "qrels").mkdir()
    for split in (name for name in SPLITS if name in source.qrels):
        weighted = any(qrel.weight != 1 for qrel in source.qrels[split]())
        judged = (_qrel(qrel, weighted) for qrel in _answered(track(source.qrels[split](), f"{split} qrels"), split, queries))
        header = "\t".join((*HEADER, WEIGHT) if weighted else HEADER).encode()
        written.judgments[split] = _lines(folder / "qrels" / f"{split}.tsv", chain([header], judged)) - 1
    negatives = track(source.negatives(), "negatives")
    if (first := next(negatives, None)) is not None:
        rows = (_row((negative.query, negative.doc)) for negative in chain([first], negatives))
        written.negatives = _lines(folder / "negatives.tsv", chain(["\t".join(HEADER[:2]).encode()], rows)) - 1
    return written


def _document(document: Document, written: Written) -> bytes:
    written.documents += 1
    written.titled += bool(document.title.strip())
    written.empty += not f"{document.title}{document.text}".strip()
    return _json(document, {"title": document.title, "text": document.text}, written)


def _queries(source: Source, seen: dict[str, Ids], written: Written) -> Iterator[bytes]:
    """The lines of queries.jsonl. A query that is in several splits is written once, because one file serves all splits.

    UserError if its words differ between splits. If the source has a file per split, `seen` is filled with the ids of each.
    """
    lines: list[Ids] = []
    for key, read_queries in source.queries.items():
        split_ids, split_lines = Ids(), Ids()
        for chunk in chunks(track(read_queries(), f"queries {key}".rstrip())):
            raw = [_json(query, _fields(query), written) for query in chunk]
            written.queries[key] += len(chunk)
            written.empty += sum(not query.text.strip() for query in chunk)
            if len(source.queries) == 1:
                yield from raw
                continue
            ids = [query.id for query in chunk]
            words = [line.decode() for line in raw]
            is_known, is_same = _any(seen.values(), ids), _any(lines, words)
            if len(conflicts := np.flatnonzero(is_known & ~is_same)):
                query = chunk[int(conflicts[0])]
                raise UserError(
                    f"{query.at}: query {query.id!r} has a different text in another split, expected the same: a BEIR folder has one file "
                    "of queries; rename it in one of the splits"
                )
            split_ids.add(ids)
            split_lines.add(words)
            yield from compress(raw, ~is_known)
        seen[key] = split_ids
        lines.append(split_lines)


def _any(sets: Iterable[Ids], ids: Sequence[str]) -> npt.NDArray[np.bool_]:
    """For each of `ids`, whether any of the `sets` has it."""
    mask = np.zeros(len(ids), dtype=np.bool_)
    for members in sets:
        mask |= members.contain(ids)
    return mask


def _fields(query: Query) -> dict[str, Any]:
    answers = {"answers": query.answers} if query.answers else {}
    return {"text": query.text, **answers, **({"metadata": dict(query.columns)} if query.columns else {})}


def _answered(qrels: Iterable[Qrel], split: str, queries: dict[str, Ids]) -> Iterator[Qrel]:
    """Pass the qrels on. UserError for a query that only another split has: it is unknown to prepare, but would be known in one file."""
    if split not in queries or len(queries) == 1:
        yield from qrels
        return
    for chunk in chunks(qrels):
        ids = [qrel.query for qrel in chunk]
        elsewhere = _any((ids_of_split for name, ids_of_split in queries.items() if name != split), ids)
        if len(misplaced := np.flatnonzero(elsewhere & ~queries[split].contain(ids))):
            qrel = chunk[int(misplaced[0])]
            raise UserError(f"{qrel.at}: query {qrel.query!r} belongs to another split, expected a query of {split}; remove that line")
        yield from chunk


def _qrel(qrel: Qrel, weighted: bool) -> bytes:
    for name in (qrel.query, qrel.doc):
        if CUTS.search(name):
            raise UserError(
                f"{qrel.at}: found id {name!r}, expected no tab or line break, because a BEIR folder's qrels are tab-separated; rename it"
            )
    return "\t".join([qrel.query, qrel.doc, str(qrel.grade), *([repr(qrel.weight)] if weighted else [])]).encode()


def _row(cells: Sequence[str]) -> bytes:
    """A tab-separated row, with cells quoted where the CSV reader needs it."""
    line = io.StringIO()
    csv.writer(line, delimiter="\t", lineterminator=LINE_END).writerow(cells)
    return line.getvalue().removesuffix(LINE_END).encode()


def _json(record: Document | Query, fields: dict[str, Any], written: Written) -> bytes:
    written.white += bool(WHITE.search(record.id))
    try:
        return ENCODER.encode({"_id": record.id, **fields}).encode()
    except UnicodeEncodeError:
        raise UserError(
            f"{record.at}: the text contains an unpaired surrogate (\\ud800 to \\udfff), expected valid Unicode text; fix that line"
        ) from None


def _lines(path: Path, lines: Iterable[bytes]) -> int:
    """Write the lines to a file; return how many."""
    count = 0
    with path.open("wb") as handle:
        for line in lines:
            handle.write(line + b"\n")
            count += 1
    return count


def main() -> None:
    request = json.load(sys.stdin)
    source = without_forgotten(read(parse_dataset(request["source"]), needs_qrels=False), read_marks())
    written = write_beir(source, Path(request["folder"]))
    print(json.dumps({**vars(written), "left_out": {reason: count for reason, count in source.dropped.items() if count}}))


if __name__ == "__main__":
    with stage():
        main()
