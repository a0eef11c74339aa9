"""Search a corpus from the shell, through the index that would be served."""

import textwrap
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tasks.core.retrieval.encode import encode_texts
from tasks.core.retrieval.exact import ranked_tables, rows_needed
from tasks.core.retrieval.faiss_search import open_index, search_index
from tasks.core.retrieval.queries import query_tower
from tasks.core.stage.devices import choose_device, read_runtime
from tasks.core.stage.entry import parser, stage
from tasks.core.stage.errors import UserError, escaped
from tasks.core.tables.ids import StoredIds, ordinals
from tasks.core.text.tokenizer import load_tokenizer
from tasks.core.text.tokens import open_tokens

WIDTH = 110  # of a printed text


def shortened(text: str, most: int) -> str:
    """At most `most` characters of `text`, ending at a word where words are that short; not every script has spaces."""
    text = " ".join(text.split())
    if len(text) <= most:
        return text
    head = text[: most - 3]
    end = head.rfind(" ")
    return (head[:end] if end > most // 2 else head).rstrip() + " ..."


def headline(rank: int, score: float, doc: str, title: str) -> str:
    """The line above a text, in one line whatever the title holds."""
    return f"{rank:>3}  {score:.4f}  {escaped(doc)}" + (f"  {escaped(' '.join(title.split()))}" if title and title != doc else "")


def texts_of(path: Path, ids: pa.ChunkedArray) -> dict[str, tuple[str, str]]:
    """Title and text of a few documents; of the corpus no more is read than all ids and the row groups they stand in."""
    rows = ordinals(ids, path)
    if (rows < 0).any():
        raise UserError(f"{path}: no document {ids[int(np.argmin(rows))]}; the index is of another corpus, run the pipeline")
    with pq.ParquetFile(path) as file:
        ends = np.cumsum([file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)])
        groups = np.unique(np.searchsorted(ends, rows, side="right")).tolist()
        table = file.read_row_groups(groups, columns=["id", "title", "text"])
    return {row["id"]: (row["title"], row["text"]) for row in table.filter(pc.is_in(table["id"], ids.combine_chunks())).to_pylist()}


def main() -> None:
    arguments = parser(
        __doc__ or "", encoder="encoder folder", index="index folder", documents="documents.parquet of the corpus", tokens="token folder"
    )
    arguments.add_argument("--query", required=True, help="what to search for")
    arguments.add_argument("--k", type=int, default=10, help="documents to show")
    args = arguments.parse_args()
    query = args.query.encode(errors="surrogateescape").decode(errors="replace")  # a shell may pass bytes that are no UTF-8
    if not query.strip():
        raise UserError("the query is empty; give some words")
    if args.k < 1:
        raise UserError(f"--k {args.k}: expected at least 1")
    device = choose_device(read_runtime())
    documents, queries = open_tokens(args.tokens / "documents"), open_tokens(args.tokens / "queries" / "train")
    tower = query_tower(args.encoder, "fp32", device)
    vector = encode_texts(tower, load_tokenizer(args.encoder), [queries.prefix + query], queries.max_length, device)
    index = open_index(args.index / "index.faiss", len(documents), vector.shape[1])
    scores, rows = search_index(index, vector, rows_needed(args.k, documents.owners))
    found = next(
        ranked_tables(scores, rows, pa.array(["query"]), StoredIds(args.tokens / "documents" / "ids.parquet"), documents.owners, args.k)
    )
    texts = texts_of(args.documents, found["doc"])
    for row in found.to_pylist():
        title, text = texts[row["doc"]]
        print(headline(row["rank"], row["score"], row["doc"], title))
        print(textwrap.indent(textwrap.fill(shortened(escaped(text), 3 * WIDTH), WIDTH), " " * 5))


if __name__ == "__main__":
    with stage():
        main()
