"""Tables of negatives that no model makes: an empty one, and the negatives of a source (MS MARCO's triples, a folder's negatives.tsv).

A query's negatives may be anywhere in a file of hundreds of millions of lines. They are spread over BUCKETS files on disk
by the ordinal of their query, then grouped by query, one bucket at a time. Memory holds one bucket's kept documents, at most
queries / BUCKETS x depth ids. The disk holds about 20 bytes per line of the source, until the end.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.core.errors import UserError
from tasks.core.stage.progress import track
from tasks.core.tables.parquet import read_batches, write_table
from tasks.core.tables.schemas import QUERIES, RANKED
from tasks.core.trec.ids import escape, unescape
from tasks.prepare.corpus import Corpus, pair_ids
from tasks.prepare.params import Prepare
from tasks.prepare.records import chunks
from tasks.prepare.source import Negative, Source

BUCKETS = 64


def write_empty(folder: Path) -> None:
    """Write an empty train.parquet, for rounds that train on in-batch negatives only, or do not train at all."""
    write_table(folder / "train.parquet", RANKED, [])


def write_official(source: Source, corpus: Corpus, queries: Path, settings: Prepare, folder: Path) -> Counter[str]:
    """Write the source's own negatives to train.parquet, with queries in the order of the file `queries`.

    Each query gets its first `official_depth` different documents in source order, without known positives. Rank is that
    order, score is 0. Negatives of queries outside the training split, and dropped documents, are excluded. An unknown document is
    refused or excluded, as prepare.unknown_documents says. Return counts: kept, and excluded by reason.
    """
    counts: Counter[str] = Counter()
    if not settings.official_depth or next(source.negatives(), None) is None:  # as in most sources; nothing is printed then
        write_empty(folder)
        return counts
    with TemporaryDirectory(dir=folder, prefix=".buckets") as scratch:
        width = -(-len(corpus.train_queries) // BUCKETS) or 1
        _spread(source.negatives(), corpus, settings, Path(scratch), width, counts)
        names = (name for batch in read_batches(queries, QUERIES, ["id"]) for name in batch["id"].to_pylist())
        with pq.ParquetWriter(folder / "train.parquet", RANKED, compression="zstd") as writer:
            for bucket, ids in enumerate(track(chunks(names, width), "official negatives by query", None, "parts")):
                table = _gather(Path(scratch) / str(bucket), ids, bucket * width, settings.official_depth, counts)
                if len(table):
                    writer.write_table(table)
    return counts


def _spread(negatives: Iterator[Negative], corpus: Corpus, settings: Prepare, scratch: Path, width: int, counts: Counter[str]) -> None:
    with ExitStack() as stack:
        files = [stack.enter_context((scratch / str(b)).open("w", encoding="utf-8", newline="\n")) for b in range(BUCKETS)]
        for chunk in chunks(track(negatives, "official negatives")):
            ordinals = corpus.train_queries.ordinals([n.query for n in chunk])
            positive = corpus.train_positives.contain(pair_ids([n.query for n in chunk], [n.doc for n in chunk]))
            known = corpus.documents.contain([n.doc for n in chunk])
            for negative, ordinal, is_positive, is_known in zip(chunk, ordinals.tolist(), positive.tolist(), known.tolist(), strict=True):
                if ordinal < 0:
                    counts["of a query outside the training split"] += 1
                elif is_positive:
                    counts["that are known positives"] += 1
                elif is_known:
                    files[ordinal // width].write(f"{ordinal}\t{escape(negative.doc)}\n")
                elif negative.doc in corpus.empty:
                    counts["of a document without text"] += 1
                elif settings.unknown_documents == "refuse":
                    raise UserError(
                        f"{negative.at}: document {negative.doc!r} is not in the dataset; add it, or set prepare.unknown_documents=drop"
                    )
                else:
                    counts["of an unknown document"] += 1


def _gather(bucket: Path, ids: list[str], first_ordinal: int, depth: int, counts: Counter[str]) -> pa.Table:
    kept_documents: list[dict[str, None]] = [{} for _ in ids]
    with bucket.open(encoding="utf-8", newline="\n") as handle:
        for line in handle:
            ordinal, _, doc = line.rstrip("\n").partition("\t")
            documents, doc = kept_documents[int(ordinal) - first_ordinal], unescape(doc)
            if len(documents) < depth:
                documents[doc] = None
            elif doc not in documents:
                counts["beyond prepare.official_depth"] += 1
    rows = [(query, doc, rank) for query, documents in zip(ids, kept_documents, strict=True) for rank, doc in enumerate(documents, 1)]
    counts["kept"] += len(rows)
    columns = [[r[0] for r in rows], [r[1] for r in rows], [r[2] for r in rows], [0.0] * len(rows)]
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, RANKED, strict=True)], schema=RANKED)
