"""Corpus to tokens: documents and the queries of every split."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tasks.core.stage.entry import parser, stage
from tasks.core.stage.errors import UserError
from tasks.core.stage.files import folder_digest, new_folder
from tasks.core.stage.params import load
from tasks.core.tables.batching import cut
from tasks.core.tables.parquet import count_rows, read_batches
from tasks.core.tables.schemas import DOCUMENTS, QUERIES, SPLITS
from tasks.core.text.document import Text, document_text
from tasks.core.text.token_store import write_tokens
from tasks.core.text.tokenizer import load_tokenizer
from tasks.core.text.tokens import SAME, open_tokens
from tasks.tokenize.near_duplicates import first_of_near
from tasks.tokenize.params import Tokenize


def documents(path: Path, text: Text) -> Iterator[tuple[list[str], list[str]]]:
    """Ids and texts of the corpus, a batch at a time."""
    for batch in read_batches(path, DOCUMENTS):
        for part in cut(batch, ["title", "text"]):
            rows = zip(part["title"].to_pylist(), part["text"].to_pylist(), strict=True)
            yield part["id"].to_pylist(), [document_text(title, body, text) for title, body in rows]


def queries(path: Path) -> Iterator[tuple[list[str], list[str]]]:
    """Ids and texts of one split's queries, a batch at a time."""
    for batch in read_batches(path, QUERIES):
        for part in cut(batch, ["text"]):
            yield part["id"].to_pylist(), part["text"].to_pylist()


def main() -> None:
    arguments = parser(__doc__ or "", corpus="corpus folder", tokenizer="tokenizer folder", out="token folder to write").parse_args()
    text, params = load(Text, "text"), load(Tokenize, "tokenize")
    tokenizer = load_tokenizer(arguments.tokenizer)
    most = tokenizer.model_max_length
    for name, length in (("query", params.query_length), ("document", params.document_length)):
        if length > most:
            raise UserError(f"params.yaml: tokenize.{name}_length: found {length}, expected at most {most}, the model's limit; decrease it")
    digest = folder_digest(arguments.tokenizer)
    with new_folder(arguments.out) as out:
        path = arguments.corpus / "documents.parquet"
        length, prefix = params.document_length, params.document_prefix
        passages, overlap = params.passages, params.passage_overlap
        total = count_rows(path)
        write_tokens(out / "documents", documents(path, text), tokenizer, digest, length, prefix, total, passages, overlap)
        if params.near_duplicates is not None:
            first = first_of_near(open_tokens(out / "documents"), params.near_duplicates)
            np.save(out / "documents" / SAME, first)
            print(f"{(first != np.arange(len(first))).sum():,} of {len(first):,} documents are near-duplicates of an earlier one")
        for split in SPLITS:
            path = arguments.corpus / "queries" / f"{split}.parquet"
            length, prefix = params.query_length, params.query_prefix
            write_tokens(out / "queries" / split, queries(path), tokenizer, digest, length, prefix, count_rows(path))


if __name__ == "__main__":
    with stage():
        main()
