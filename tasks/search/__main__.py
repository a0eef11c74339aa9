"""Search a corpus from the shell, using the indexes that would be served."""

import json
import shutil
import sys
import textwrap
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tasks.core.errors import UserError, escaped, handle_broken_pipe
from tasks.core.stage.entry import parser, stage
from tasks.core.tables.documents import shortened, texts_of
from tasks.search.lists import DenseSystem, LexicalSystem, Systems, texts_of_tokens

WIDTH = 110  # columns of printed text, at most
INDENT = " " * 5


def headline(rank: int, score: float, doc: str, title: str) -> str:
    """The line above a text. It is a single line, whatever the title contains."""
    return f"{rank:>3}  {score:.4f}  {escaped(doc)}" + (f"  {escaped(' '.join(title.split()))}" if title and title != doc else "")


def paragraph(text: str) -> str:
    """The beginning of a text, to print below its headline, no wider than the terminal if the output goes to one."""
    width = min(WIDTH, max(20, shutil.get_terminal_size().columns - len(INDENT))) if sys.stdout.isatty() else WIDTH
    return textwrap.indent(textwrap.fill(escaped(shortened(text, 3 * WIDTH)), width), INDENT)


def hit_texts(path: Path, documents: Sequence[str]) -> dict[str, tuple[str, str]]:
    """The title and text of the documents that a search found. UserError for a document that the corpus lacks."""
    texts = texts_of(path, documents)
    if missing := [doc for doc in documents if doc not in texts]:
        raise UserError(f"{path}: no document {missing[0]}; the index is from another corpus, run the pipeline")
    return texts


def arguments() -> ArgumentParser:
    """The command line: one --model, or the systems of a fusion and the fusions over them, of which the last is searched."""
    command_line = system_arguments(parser(__doc__ or "", documents="documents.parquet of the corpus", tokens="token folder"))
    command_line.add_argument("--query", required=True, help="what to search for")
    command_line.add_argument("--k", type=int, default=10, help="documents to show")
    command_line.add_argument("--json", action="store_true", help="print JSON, as the search server answers")
    return command_line


def system_arguments(command_line: ArgumentParser) -> ArgumentParser:
    """Add options for the systems that are searched to a command line."""
    command_line.add_argument(
        "--model", nargs=3, action="append", default=[], metavar=("NAME", "ENCODER", "INDEX"), help="a model's folders"
    )
    command_line.add_argument("--lexical", type=Path, metavar="INDEX", help="folder of BM25's index, for the system bm25")
    command_line.add_argument(
        "--fusion", nargs=2, action="append", default=[], metavar=("NAME", "RECORD"), help="fusion.json; list it after its parts"
    )
    command_line.add_argument("--depth", type=int, default=1000, help="ranks of a model's list that are fused")
    command_line.add_argument("--lexical-depth", type=int, default=1000, help="ranks of BM25's list that are fused")
    return command_line


def open_systems(args: Namespace, *, resident: bool = False) -> Systems:
    """Open the systems that the options of `system_arguments` name."""
    texts = texts_of_tokens(args.tokens)
    dense = {name: DenseSystem(texts, encoder=Path(encoder), index=Path(index), resident=resident) for name, encoder, index in args.model}
    lexical = {"bm25": LexicalSystem(args.lexical, resident=resident)} if args.lexical else {}
    fusions = {name: Path(record) for name, record in args.fusion}
    return Systems({**dense, **lexical}, fusions, depth=args.depth, lexical_depth=args.lexical_depth)


def as_json(record: dict[str, Any]) -> str:
    """JSON with all letters as they are, or with escapes if the encoding of standard output lacks one of them."""
    text = json.dumps(record, indent=2, ensure_ascii=False)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return json.dumps(record, indent=2)
    return text


def main() -> None:
    command_line = arguments()
    args = command_line.parse_args()
    if len(args.model) != 1 and not args.fusion:
        command_line.error("expected one --model, or a --fusion")
    query = args.query.encode(errors="surrogateescape").decode(errors="replace")  # a shell may pass bytes that are not UTF-8
    if not query.strip():
        raise UserError("the query is empty; enter some words")
    if args.k < 1:
        raise UserError(f"--k {args.k}: expected at least 1")
    name = args.fusion[-1][0] if args.fusion else args.model[0][0]
    ranked = open_systems(args).search(query, name, args.k)
    texts = hit_texts(args.documents, ranked.documents)
    ranks = enumerate(zip(ranked.documents, ranked.scores, strict=True), 1)
    try:
        if args.json:
            hits = [
                {"rank": rank, "id": doc, "score": float(score), "title": texts[doc][0], "text": texts[doc][1]}
                for rank, (doc, score) in ranks
            ]
            print(as_json({"query": query, "model": name, "hits": hits}), flush=True)
            return
        for rank, (doc, score) in ranks:
            title, text = texts[doc]
            print(headline(rank, score, doc, title))
            print(paragraph(text), flush=True)
    except BrokenPipeError:
        raise SystemExit(handle_broken_pipe()) from None


if __name__ == "__main__":
    with stage():
        main()
