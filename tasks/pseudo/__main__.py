"""Documents to training queries, kept where BM25 and the start encoder find their document; with the documents again, a corpus.

Dev queries made here need only one of the two judges: on queries that both found, both would have a perfect score, and nothing
trained could be better than the encoder it started from.
"""

import heapq
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch

from tasks.core.errors import UserError
from tasks.core.files import new_folder, read_json, write_json
from tasks.core.lexical.params import BM25
from tasks.core.machine.devices import choose_device, compute_dtype, hardware
from tasks.core.params.runtime import read_runtime
from tasks.core.params.sections import load
from tasks.core.sources.downloads import recorded_folder
from tasks.core.stage.entry import parser, stage
from tasks.core.stage.progress import Progress
from tasks.core.stage.scratch import code_digest, mark_finished, scratch_folder, work_digest
from tasks.core.tables.lengths import Lengths, split_stats
from tasks.core.tables.parquet import count_rows, read_batches, read_table, write_table
from tasks.core.tables.schemas import DOCUMENTS, QRELS, QUERIES, SPLITS
from tasks.core.text.document import Text, document_text
from tasks.core.text.plain import plain
from tasks.core.tokens.params import Tokenize
from tasks.pseudo.generator import Writer, make_writer
from tasks.pseudo.journal import Journal
from tasks.pseudo.judges import Encoder, consistent_ids, search_bm25, search_dense
from tasks.pseudo.making import CHOICE, Candidate, candidates, id_hash, is_dev
from tasks.pseudo.params import Pseudo
from tasks.pseudo.splits import Split, count_kept, make_split

KINDS = pa.schema([("query", pa.string()), ("kind", pa.string())])


def make_queries(path: Path, params: Pseudo, text: Text, write: Writer | None = None) -> list[Candidate]:
    """Make the queries of the chosen documents, in the order of the file. `write`: the generator, if any. UserError if no query is made."""
    last_hash = _last_chosen(path, params)
    queries: list[Candidate] = []
    for batch in read_batches(path, DOCUMENTS):
        rows = [row for row in batch.to_pylist() if last_hash is None or id_hash(row["id"], params.seed, CHOICE) <= last_hash]
        written = write([document_text(row["title"], row["text"], text) for row in rows]) if write else [[]] * len(rows)
        for row, generated in zip(rows, written, strict=True):
            queries += candidates(row["id"], row["title"], row["text"], params, generated)
    if not queries:
        raise UserError(
            f"{path}: no document gives a query of pseudo.kinds ({', '.join(params.kinds)}), expected titles, or texts of at least "
            f"{params.least_words} words; decrease pseudo.least_words, or add a kind"
        )
    return queries


def _last_chosen(path: Path, params: Pseudo) -> int | None:
    """The largest hash of a chosen document; None if all documents are chosen."""
    if params.documents is None or params.documents >= count_rows(path):
        return None
    ids = (name for batch in read_batches(path, DOCUMENTS, ["id"]) for name in batch["id"].to_pylist())
    return heapq.nsmallest(params.documents, (id_hash(name, params.seed, CHOICE) for name in ids))[-1]


@contextmanager
def open_generator(generator: Path, params: Pseudo, documents: Path, device: torch.device, scratch: Path) -> Iterator[Writer]:
    """Open the generator. It resumes from the batches that an interrupted run left in `scratch`."""
    count = min(count_rows(documents), params.documents or count_rows(documents))
    progress = Progress(f"generate queries ({device.type})", count, "documents")
    dtype = compute_dtype(device, params.precision)
    yield make_writer(generator, params, device, dtype, journal=Journal(scratch / "queries"), progress=progress)
    progress.close()


def read_split(corpus: Path, split: str) -> Split:
    """The source's own queries and qrels."""
    queries = read_table(corpus / "queries" / f"{split}.parquet", QUERIES)
    return Split(queries, read_table(corpus / "qrels" / f"{split}.parquet", QRELS), ["source"] * len(queries))


def copy_columns(corpus: Path, split: str, out: Path) -> None:
    """Copy the source's own columns of a split's queries, if it has any: failures, report, and promotion look at groups of them."""
    name = Path("columns") / f"{split}.parquet"
    if (corpus / name).exists():
        (out / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(corpus / name, out / name)


def texts(split: Split) -> set[str]:
    """The texts of a split's queries, in the form of `plain`, by which equal ones are found."""
    return {plain(text) for text in split.queries["text"].to_pylist()}


def dev_from(params: Pseudo, corpus: Path) -> str:
    """The origin of dev, `corpus` or `pseudo`. UserError if pseudo.dev asks for the source's dev and it has none."""
    has_dev = bool(count_rows(corpus / "qrels" / "dev.parquet"))
    if params.dev == "corpus" and not has_dev:
        raise UserError("params.yaml: pseudo.dev: found corpus, but the source has no dev qrels; add them, or set pseudo.dev=pseudo")
    return params.dev or ("corpus" if has_dev else "pseudo")


def divide_queries(
    queries: list[Candidate], lexical: set[str], dense: set[str], params: Pseudo, *, corpus: Path
) -> tuple[dict[str, Split], dict[str, Any]]:
    """Divide the queries that BM25 (`lexical`) and the encoder (`dense`) kept into splits, and count each kind.

    UserError if no query was kept by both, or if train or dev is empty.
    """
    source = dev_from(params, corpus)
    kinds, agreed = count_kept(queries, lexical, dense), lexical & dense
    consistent = [query for query in queries if query.id in agreed]
    if not consistent:
        raise UserError(
            f"pseudo: both judges kept none of {len(queries):,} queries ({len(lexical):,} by BM25, {len(dense):,} by encoders/base), "
            f"expected some with their document in the top {params.agree_depth}; raise pseudo.agree_depth, or pseudo.most_words"
        )
    splits = {"test": read_split(corpus, "test")}
    merged = 0
    if source == "corpus":
        splits["dev"] = read_split(corpus, "dev")
    else:
        splits["dev"], merged, _ = make_split(
            (query for query in queries if query.id in lexical | dense and is_dev(query.doc, params)), texts(splits["test"])
        )
        consistent = [query for query in consistent if not is_dev(query.doc, params)]
    splits["train"], merged_in_train, excluded = make_split(consistent, texts(splits["dev"]) | texts(splits["test"]))
    for name in ("train", "dev"):
        if not len(splits[name].queries):
            raise UserError(
                f"pseudo: {len(agreed):,} queries were kept, none for {name}; raise pseudo.documents, or change pseudo.dev_share "
                f"({params.dev_share:g})"
            )
    splits = {name: splits[name] for name in SPLITS}
    for kind, row in kinds.items():
        row |= {name: splits[name].kinds.count(kind) for name in ("train", "dev")}
    return splits, {"kinds": kinds, "merged": merged + merged_in_train, "in_dev_or_test": excluded, "dev": source}


def statistics(corpus: Path, splits: dict[str, Split], counts: dict[str, Any]) -> dict[str, Any]:
    """The content of stats.json: as prepare writes it, for these splits, with `pseudo`, the counts of how they were made."""
    rows = {}
    for name, split in splits.items():
        lengths = Lengths()
        lengths.add(split.queries["text"].to_pylist())
        rows[name] = split_stats(lengths, split.qrels)
    of_corpus = read_json(corpus / "stats.json")
    shared = {"dev_in_test": of_corpus.get("dev_in_test", 0)} if counts["dev"] == "corpus" else {}
    return {"documents": of_corpus["documents"], "splits": rows, "dropped": {}, "pseudo": counts, **shared}


def summary_lines(counts: dict[str, Any], splits: dict[str, Split]) -> Iterator[str]:
    """The numbers of queries made and kept, as lines for the terminal."""
    names = ("made", "bm25", "encoder", "both", "train", "dev")
    yield f"{'kind':<9} " + " ".join(f"{'BM25' if name == 'bm25' else name:>10}" for name in names)
    for kind, row in counts["kinds"].items():
        yield f"{kind:<9} " + " ".join(f"{row[name]:>10,}" for name in names)
    yield f"equal texts merged: {counts['merged']:,}; excluded from train because dev or test has them: {counts['in_dev_or_test']:,}"
    sizes = ", ".join(f"{name} {len(split.queries):,}" for name, split in splits.items())
    yield f"queries: {sizes}; dev is {'held-out documents, without human judgments' if counts['dev'] == 'pseudo' else 'from the source'}"


def main() -> None:
    arguments = parser(
        __doc__ or "",
        corpus="corpus folder",
        encoder="encoder folder: a judge",
        tokenizer="tokenizer folder",
        out="corpus folder to write: the same documents, with new queries and qrels",
    ).parse_args()
    params, bm25, text, tokenize = load(Pseudo, "pseudo"), load(BM25, "bm25"), load(Text, "text"), load(Tokenize, "tokenize")
    corpus, documents = arguments.corpus, arguments.corpus / "documents.parquet"
    dev_from(params, corpus)  # a UserError before hours of work
    device = choose_device(read_runtime())
    arithmetic = str(compute_dtype(device, params.precision)), hardware(device), code_digest("pseudo")
    generator = recorded_folder(params.generator, "generator") if params.generator else None
    generated_scratch = scratch_folder(
        "pseudo-generated", work_digest(params.model_dump(), text.model_dump(), *arithmetic, documents, generator)
    )
    settings = tokenize.model_dump(), text.model_dump(), *arithmetic
    scratch = scratch_folder("pseudo", work_digest(*settings, documents, arguments.encoder, arguments.tokenizer))
    with open_generator(generator, params, documents, device, generated_scratch) if generator else nullcontext() as write:
        queries = make_queries(documents, params, text, write)
    depth = params.agree_depth
    lexical = consistent_ids(queries, search_bm25(queries, documents, bm25, text, depth=depth, scratch=scratch))
    encoder = Encoder(arguments.encoder, arguments.tokenizer, tokenize, params.precision, device)
    dense = consistent_ids(queries, search_dense(queries, documents, encoder, text, depth=depth, scratch=scratch))
    splits, counts = divide_queries(queries, lexical, dense, params, corpus=corpus)
    with new_folder(arguments.out) as out:
        shutil.copyfile(documents, out / "documents.parquet")
        for name, split in splits.items():
            write_table(out / "queries" / f"{name}.parquet", QUERIES, [split.queries])
            write_table(out / "qrels" / f"{name}.parquet", QRELS, [split.qrels])
            write_table(out / "kinds" / f"{name}.parquet", KINDS, [pa.table([split.queries["id"], split.kinds], schema=KINDS)])
        for name in ("dev", "test") if counts["dev"] == "corpus" else ("test",):
            copy_columns(corpus, name, out)
        write_json(out / "stats.json", statistics(corpus, splits, counts))
    print("\n".join(summary_lines(counts, splits)))
    mark_finished(generated_scratch)
    mark_finished(scratch)


if __name__ == "__main__":
    with stage():
        main()
