"""Search a corpus from the shell, using the indexes that would be served."""

import textwrap
from argparse import ArgumentParser, Namespace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.core.stage.entry import parser, stage
from tasks.core.stage.errors import UserError, escaped, reader_left
from tasks.core.tables.ids import ordinals
from tasks.core.tables.parquet import open_parquet, readable
from tasks.search.lists import DenseSystem, LexicalSystem, Systems, texts_of_tokens

WIDTH = 110  # columns of printed text


def shortened(text: str, most: int) -> str:
    """At most `most` characters of `text`, cut at a word boundary if one is near; not every script has spaces."""
    text = " ".join(text.split())
    if len(text) <= most:
        return text
    head = text[: most - 3]
    end = head.rfind(" ")
    return (head[:end] if end > most // 2 else head).rstrip() + " ..."


def headline(rank: int, score: float, doc: str, title: str) -> str:
    """The line above a text; always one line, whatever the title contains."""
    return f"{rank:>3}  {score:.4f}  {escaped(doc)}" + (f"  {escaped(' '.join(title.split()))}" if title and title != doc else "")


def texts_of(path: Path, ids: pa.ChunkedArray) -> dict[str, tuple[str, str]]:
    """Title and text of a few documents; reads all ids of the corpus, but only the row groups with these documents."""
    rows = ordinals(ids, path)
    if (rows < 0).any():
        raise UserError(f"{path}: no document {ids[int(np.argmin(rows))]}; the index is from another corpus, run the pipeline")
    with readable(path), open_parquet(path) as file:
        ends = np.cumsum([file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)])
        groups = np.unique(np.searchsorted(ends, rows, side="right")).tolist()
        table = file.read_row_groups(groups, columns=["id", "title", "text"])
    return {row["id"]: (row["title"], row["text"]) for row in table.filter(pc.is_in(table["id"], ids.combine_chunks())).to_pylist()}


def arguments() -> ArgumentParser:
    """The command line: one --model, or the systems of a fusion and the fusions over them; the last one is searched with."""
    known = system_arguments(parser(__doc__ or "", documents="documents.parquet of the corpus", tokens="token folder"))
    known.add_argument("--query", required=True, help="what to search for")
    known.add_argument("--k", type=int, default=10, help="documents to show")
    return known


def system_arguments(known: ArgumentParser) -> ArgumentParser:
    """Adds the systems that are searched to a command line."""
    known.add_argument("--model", nargs=3, action="append", default=[], metavar=("NAME", "ENCODER", "INDEX"), help="a model's folders")
    known.add_argument("--lexical", type=Path, metavar="INDEX", help="folder of BM25's index, for the system bm25")
    known.add_argument("--fusion", nargs=2, action="append", default=[], metavar=("NAME", "RECORD"), help="fusion.json; after its parts")
    known.add_argument("--depth", type=int, default=1000, help="ranks of a model's list that are fused")
    known.add_argument("--lexical-depth", type=int, default=1000, help="ranks of BM25's list that are fused")
    return known


def open_systems(given: Namespace, *, resident: bool = False) -> Systems:
    """The systems of `system_arguments`."""
    texts = texts_of_tokens(given.tokens)
    dense = {name: DenseSystem(texts, encoder=Path(encoder), index=Path(index), resident=resident) for name, encoder, index in given.model}
    lexical = {"bm25": LexicalSystem(given.lexical, resident=resident)} if given.lexical else {}
    fusions = {name: Path(record) for name, record in given.fusion}
    return Systems({**dense, **lexical}, fusions, depth=given.depth, lexical_depth=given.lexical_depth)


def main() -> None:
    known = arguments()
    args = known.parse_args()
    if len(args.model) != 1 and not args.fusion:
        known.error("expected one --model, or a --fusion")
    query = args.query.encode(errors="surrogateescape").decode(errors="replace")  # a shell may pass bytes that are not UTF-8
    if not query.strip():
        raise UserError("the query is empty; enter some words")
    if args.k < 1:
        raise UserError(f"--k {args.k}: expected at least 1")
    name = args.fusion[-1][0] if args.fusion else args.model[0][0]
    found = open_systems(args).search(query, name, args.k)
    texts = texts_of(args.documents, pa.chunked_array([pa.array(found.documents, pa.string())]))
    try:
        for rank, (doc, score) in enumerate(zip(found.documents, found.scores, strict=True), 1):
            title, text = texts[doc]
            print(headline(rank, score, doc, title))
            print(textwrap.indent(textwrap.fill(shortened(escaped(text), 3 * WIDTH), WIDTH), " " * 5), flush=True)
    except BrokenPipeError:
        raise SystemExit(reader_left()) from None


if __name__ == "__main__":
    with stage():
        main()
