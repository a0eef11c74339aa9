"""Corpus to the lexical index, candidates of every query, and training negatives."""

from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from shutil import copytree
from tempfile import TemporaryDirectory

import pyarrow as pa

from tasks.bm25.negatives import ROWS, only_positives, without_positives
from tasks.bm25.params import BM25
from tasks.bm25.pieces import is_complete, open_workers, seal_index, search_all
from tasks.core.files import new_folder
from tasks.core.lexical.build import build, save
from tasks.core.lexical.search import load, term_ids
from tasks.core.machine.processes import cores
from tasks.core.params import sections
from tasks.core.stage.entry import parser, stage
from tasks.core.stage.progress import Progress, track
from tasks.core.stage.scratch import code_digest, mark_finished, scratch_folder, work_digest
from tasks.core.tables.batching import join_batches
from tasks.core.tables.parquet import count_rows, read_batches, read_table, write_table
from tasks.core.tables.schemas import DOCUMENTS, QRELS, QUERIES, RANKED, SPLITS
from tasks.core.text.analysis import analyzer
from tasks.core.text.document import Text
from tasks.core.text.mapped import document_texts


def queries(path: Path) -> Iterator[tuple[str, str]]:
    """Ids and texts of one split's queries."""
    for batch in read_batches(path, QUERIES, ["id", "text"]):
        yield from zip(batch["id"].to_pylist(), batch["text"].to_pylist(), strict=True)


def document_ids(path: Path) -> Iterator[pa.Array]:
    """The ids of all documents, in the order of the file, a part at a time."""
    return (batch["id"] for batch in read_batches(path, DOCUMENTS, ["id"]))


def main() -> None:
    arguments = parser(
        __doc__,
        corpus="corpus folder",
        index="index folder to write",
        candidates="folder to write: ranked documents of every split's queries",
        negatives="folder to write: the training queries' candidates without known positives, and a table of these",
    ).parse_args()
    bm25, text = sections.load(BM25, "bm25"), sections.load(Text, "text")
    terms = analyzer(bm25.stemmer, bm25.stopwords, bm25.cjk)
    path = arguments.corpus / "documents.parquet"
    libraries = [version(name) for name in ("bm25s", "numpy", "PyStemmer")]
    code = code_digest("bm25")
    digest = work_digest(bm25.model_dump(), text.model_dump(), code, libraries, path, arguments.corpus / "queries")
    scratch = scratch_folder("bm25", digest)
    built_index = scratch / "index"
    if not is_complete(built_index):
        with new_folder(built_index) as folder, TemporaryDirectory(dir=folder, prefix=".postings") as postings:
            documents = track(document_texts(path, text), "bm25: documents analyzed", count_rows(path))
            save(folder, build(documents, terms, bm25, Path(postings)), document_ids(path), bm25)
        seal_index(built_index)
    with new_folder(arguments.index) as folder:
        copytree(built_index, folder, dirs_exist_ok=True)
    vocabulary = load(built_index)[0].vocab_dict
    with new_folder(arguments.candidates) as folder, open_workers(cores()) as each:
        for split in SPLITS:
            depth = bm25.depth if split == "train" else bm25.run_depth
            if not depth:
                write_table(folder / f"{split}.parquet", RANKED, [])
                continue
            path = arguments.corpus / "queries" / f"{split}.parquet"
            query_terms = ((name, term_ids(terms(query), vocabulary)) for name, query in queries(path))
            progress = Progress(f"bm25: {split} queries searched", count_rows(path), "queries")
            write_table(folder / f"{split}.parquet", RANKED, search_all(query_terms, built_index, depth, scratch / split, progress, each))
    with new_folder(arguments.negatives) as folder:
        qrels = read_table(arguments.corpus / "qrels" / "train.parquet", QRELS)
        for name, select in (("train", without_positives), ("positives", only_positives)):
            candidates = join_batches(read_batches(arguments.candidates / "train.parquet", RANKED), ROWS)
            write_table(folder / f"{name}.parquet", RANKED, select(candidates, qrels))
    mark_finished(scratch)


if __name__ == "__main__":
    with stage():
        main()
