"""Corpus to tokens: documents and the queries of every split."""

import os
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from tasks.core.errors import UserError
from tasks.core.files import folder_digest, new_folder
from tasks.core.machine.processes import cores
from tasks.core.params.sections import load
from tasks.core.plurals import counted
from tasks.core.stage.entry import parser, stage
from tasks.core.stage.scratch import code_digest, mark_finished, scratch_folder, work_digest
from tasks.core.tables import batching
from tasks.core.tables.parquet import count_rows, read_batches
from tasks.core.tables.schemas import QUERIES, SPLITS
from tasks.core.text.document import Text
from tasks.core.tokens.bare_tokenizer import known_of
from tasks.core.tokens.folder import open_tokens
from tasks.core.tokens.same_texts import SAME
from tasks.core.tokens.store import write_rows, write_tokens
from tasks.core.tokens.tokenizer import cached_tokenizer
from tasks.tokenize.near_duplicates import first_of_near
from tasks.tokenize.params import Tokenize
from tasks.tokenize.pieces import Job, is_large, tokenize_documents


def queries(path: Path) -> Iterator[tuple[list[str], list[str]]]:
    """Ids and texts of one split's queries, a batch at a time."""
    for batch in read_batches(path, QUERIES):
        for rows in batching.split_batch(batch, ["text"]):
            yield rows["id"].to_pylist(), rows["text"].to_pylist()


def refuse_no_room(tokenizer: Any, text: Text, params: Tokenize) -> None:
    """UserError if special tokens, prefix, and separator leave no room for a text: all texts would get the same tokens."""
    document = params.document_prefix + (text.separator if text.titles else "")
    for name, prefix, length in (("query", params.query_prefix, params.query_length), ("document", document, params.document_length)):
        used = len(tokenizer(prefix, verbose=False)["input_ids"])
        if used >= length:
            separator = ", text.separator," if document != params.document_prefix and name == "document" else ""
            raise UserError(
                f"params.yaml: tokenize.{name}_length: found {length}, expected more than {used}, the tokens of {name}_prefix{separator} "
                "and the special ones, so that there is room for a text; raise it, or shorten them"
            )


def main() -> None:
    arguments = parser(__doc__ or "", corpus="corpus folder", tokenizer="tokenizer folder", out="token folder to write").parse_args()
    text, params = load(Text, "text"), load(Tokenize, "tokenize")
    tokenizer = cached_tokenizer(arguments.tokenizer)
    limit = tokenizer.model_max_length
    for name, length in (("query", params.query_length), ("document", params.document_length)):
        if length > limit:
            raise UserError(
                f"params.yaml: tokenize.{name}_length: found {length}, expected at most {limit}, the model's limit; decrease it"
            )
    refuse_no_room(tokenizer, text, params)
    digest = folder_digest(arguments.tokenizer)
    with new_folder(arguments.out) as out:
        path = arguments.corpus / "documents.parquet"
        scratch = None
        if is_large(path):
            settings = [params.model_dump(), text.model_dump(), code_digest("tokenize"), version("tokenizers"), digest, path]
            scratch = scratch_folder("tokenize", work_digest(*settings))
        os.environ.setdefault("RAYON_NUM_THREADS", str(cores()))  # the tokenizer's own threads
        job = Job(path, arguments.tokenizer, text, params.document, known_of(tokenizer, arguments.tokenizer))
        rows = tokenize_documents(job, cores(), scratch)
        write_rows(out / "documents", rows, tokenizer, digest=digest, cut=params.document, total=count_rows(path))
        first = np.empty(0, np.int64)
        if params.near_duplicates is not None:
            documents = open_tokens(out / "documents")
            prompt = tokenizer(params.document_prefix, verbose=False)["input_ids"][: documents.prompt]
            first = first_of_near(documents, params.near_duplicates, prompt)
            duplicates = int((first != np.arange(len(first))).sum())
            verb = "is a near-duplicate" if duplicates == 1 else "are near-duplicates"
            print(f"{duplicates:,} of {counted(len(first), 'documents')} {verb} of an earlier one")
        np.save(out / "documents" / SAME, first)
        for split in SPLITS:
            path = arguments.corpus / "queries" / f"{split}.parquet"
            write_tokens(out / "queries" / split, queries(path), tokenizer, params.query, digest=digest, total=count_rows(path))
    if scratch:
        mark_finished(scratch)


if __name__ == "__main__":
    with stage():
        main()
