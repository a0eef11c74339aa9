"""Convert training data of other tools to a BEIR folder: corpus.jsonl, queries.jsonl, qrels/SPLIT.tsv, and negatives.tsv if there are any.

Files are read in this order: corpora, queries, training files by split, qrels. Every passage of a training file becomes a document, in
order of appearance. Without files of dev or test, a share of the training queries becomes that split, by a hash of a query's text: the same
text is in the same split in every run, whatever else is in the files.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from flows.batches.pairs_files import ROOT
from flows.batches.places import new_place
from flows.batches.records import quote_id
from flows.converting import tables
from flows.converting.forms import EXPECTED, form_of
from flows.converting.rows import keys, rows
from flows.converting.store import ENCODER, Store, new_store
from flows.process.processes import ask
from tasks.core.errors import UserError
from tasks.core.sources.datasets import SPLIT_NAMES, SPLITS, parse_dataset
from tasks.core.stage.progress import track
from tasks.core.text.plain import SHARE, Shares


@dataclass(frozen=True)
class Inputs:
    """The files to read; `examples` are training files, and `qrels` TREC's, each with its split."""

    examples: Sequence[tuple[str, Path]]
    corpora: Sequence[Path] = ()
    queries: Sequence[Path] = ()
    qrels: Sequence[tuple[str, Path]] = ()

    def splits(self) -> set[str]:
        return {split for split, _ in (*self.examples, *self.qrels)}


@dataclass(frozen=True)
class Converted:
    """Counts of what was written. `titled`: documents with a title; `queries` and `judgments`: by split; `white`: ids with white space;
    `leaks`: training queries that are also in dev or test.
    """

    forms: dict[Path, str]
    documents: int
    titled: int
    queries: dict[str, int]
    judgments: dict[str, int]
    negatives: int
    left_out: dict[str, int]
    white: int
    leaks: int


def parse_qrels(option: str) -> tuple[str, Path]:
    """Parse SPLIT=FILE; validation means dev."""
    name, _, place = option.partition("=")
    if name not in SPLIT_NAMES or not place:
        raise UserError(f"--qrels {option}: expected SPLIT=FILE with split train, dev, or test")
    return SPLIT_NAMES[name], Path(place)


def shares_of(inputs: Inputs, dev: float | None, test: float | None) -> Shares:
    """The shares of queries for dev and test: by default SHARE for each split without a file. Raises UserError for invalid ones."""
    splits_with_files = inputs.splits()
    shares = {}
    for split, share in (("dev", dev), ("test", test)):
        if share is not None and not 0 <= share < 1:
            raise UserError(f"--{split}-share: found {share:g}, expected a number from 0 to below 1")
        if share and (split in splits_with_files or "train" not in splits_with_files):
            cause = f"files of {split} too" if split in splits_with_files else "no training file"
            raise UserError(f"--{split}-share: found {cause}, expected a share only if training queries become {split}; drop it")
        shares[split] = (SHARE if share is None else share) if "train" in splits_with_files and split not in splits_with_files else 0.0
    if sum(shares.values()) >= 1:
        values = " and ".join(f"{share:g}" for share in shares.values())
        raise UserError(f"--dev-share and --test-share: found {values}, expected a sum below 1: the rest is for training")
    return Shares(**shares)


def refuse_place(folder: Path) -> None:
    """Raise UserError if `folder` cannot be written: something is there, or the folder above it is missing."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise UserError(f"{folder}: found a file, expected a new folder as the first argument; name another")
    if folder.is_dir() and (any(folder.iterdir()) or folder.samefile(Path.cwd())):
        raise UserError(f"{folder}: already exists, expected a new folder as the first argument; name another")
    if not folder.parent.is_dir():
        raise UserError(f"{folder.parent}: no such folder, expected one to write {folder.name} in; make it first")


def convert(folder: Path, inputs: Inputs, shares: Shares) -> Converted:
    """Write `folder`, which appears only when it is complete. Raises UserError, with file and line, for malformed input."""
    if not inputs.splits():
        raise UserError("convert: found no training file, no --qrels, and no --data, expected one; see retemper convert --help")
    if bool(inputs.queries) > bool(inputs.qrels):
        raise UserError("convert: found --queries without --qrels, expected both; queries are useless without judgments")
    refuse_place(folder)
    for path in (*inputs.corpora, *inputs.queries, *(path for _, path in (*inputs.examples, *inputs.qrels))):
        if not path.is_file():
            raise UserError(f"{path}: {'found no regular file' if path.exists() else 'not found'}, expected a file; fix the path")
    forms: dict[Path, str] = {}
    with new_place(folder) as new_folder, new_store(new_folder) as store:
        for path in inputs.corpora:
            forms[path] = _read_corpus(path, store)
        for path in inputs.queries:
            forms[path] = _read_queries(path, store)
        for split, path in inputs.examples:
            forms[path] = _read_examples(path, store, split=split, shares=shares)
        for split, path in inputs.qrels:
            forms[path] = "TREC qrels"
            _read_qrels(path, store, split=split, shares=shares)
        return _write(new_folder, store, forms)


def convert_source(folder: Path, source: str) -> Mapping[str, Any]:
    """Write a data set that stage prepare can read to `folder`; return the answer of tasks.prepare.commands.beir_folder."""
    refuse_place(folder)
    question = {"source": str(parse_dataset(source))}
    with new_place(folder) as new_folder:  # any folder may be the current one, and have a tasks.py of the user
        answer: Mapping[str, Any] = ask("tasks.prepare.commands.beir_folder", {**question, "folder": str(new_folder)}, code=ROOT)
    return answer


def _read_corpus(path: Path, store: Store) -> str:
    form, documents = tables.documents(path)
    if form == tables.TEXTS:
        store.index_texts()
    for at, passage in track(documents, str(path), None, "documents"):
        store.document(at, passage)
    return form


def _read_queries(path: Path, store: Store) -> str:
    form, queries = tables.queries(path)
    for query in track(queries, str(path), None, "queries"):
        store.query(query.at, query.id, query.text, more=query.more)
    return form


def _read_examples(path: Path, store: Store, *, split: str, shares: Shares) -> str:
    form = form_of(*keys(path, EXPECTED))
    if form.by_text:
        store.index_texts()
    for place, row in track(rows(path, "the keys of its first line", form.columns), str(path), None, "rows"):
        at, name, text, positives, negatives, more = form.read(place, row)
        query, own_split = store.query(at, name, text, more=more), shares.split(split, text)
        for passage in positives:
            doc = store.document(at, passage)
            if query is not None:
                store.judge(at, query, split=own_split, doc=doc, grade=1)
        for passage in negatives:
            doc = store.document(at, passage)
            if query is not None and own_split == "train":
                store.reject(query, doc)
    return form.name


def _read_qrels(path: Path, store: Store, *, split: str, shares: Shares) -> None:
    for judgment in track(tables.judgments(path), str(path), None, "judgments"):
        query, text = store.query_of(judgment.at, judgment.query)
        doc = store.document(judgment.at, tables.passage_in_corpus(judgment.doc))
        if query is not None:
            store.judge(judgment.at, query, split=shares.split(split, text), doc=doc, grade=judgment.grade)


def _write(folder: Path, store: Store, forms: dict[Path, str]) -> Converted:
    queries = {split: store.count(split) for split in SPLITS}
    if not any(queries.values()):
        raise UserError(f"{next(iter(forms))}: no query has a relevant document, expected at least one in the files given")
    (folder / "qrels").mkdir()
    _lines(
        folder / "queries.jsonl", (ENCODER.encode({"_id": name, "text": text, **json.loads(more)}) for name, text, more in store.queries())
    )
    judgments = dict.fromkeys(SPLITS, 0)
    for split in filter(queries.get, SPLITS):
        judged = (f"{query}\t{doc}\t{grade}" for query, doc, grade in store.judged(split))
        judgments[split] = _lines(folder / f"qrels/{split}.tsv", judged, header="query-id\tcorpus-id\tscore")
    rejected = (f"{quote_id(query)}\t{quote_id(doc)}" for query, doc in store.negatives())
    first = next(rejected, None)
    negatives = _lines(folder / "negatives.tsv", chain([first], rejected), header="query-id\tcorpus-id") if first else 0
    return Converted(
        forms, store.documents, store.titled, queries, judgments, negatives, store.count_left_out(), store.white, store.leaks()
    )


def _lines(path: Path, lines: Iterable[str], *, header: str = "") -> int:
    """Write lines to a file; return how many, without the header."""
    count = 0
    with path.open("w", encoding="utf-8", newline="\n") as handle:
        if header:
            handle.write(f"{header}\n")
        for line in track(lines, path.name):
            handle.write(f"{line}\n")
            count += 1
    return count
