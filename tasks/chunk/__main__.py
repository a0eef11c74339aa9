"""Articles, or the documents of the corpus, in; chunks out."""

import os
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from tasks.chunk.params import Chunk
from tasks.chunk.pieces import ALONE, ARTICLES, Job, chunked
from tasks.chunk.store import write_parts
from tasks.core.errors import UserError
from tasks.core.files import folder_digest, new_folder
from tasks.core.machine.processes import cores
from tasks.core.params.sections import load
from tasks.core.stage.entry import parser, stage
from tasks.core.stage.scratch import code_digest, mark_finished, scratch_folder, work_digest
from tasks.core.tables.parquet import count_rows, read_batches
from tasks.core.tables.schemas import DOCUMENTS
from tasks.core.tokens.bare_tokenizer import known_of
from tasks.core.tokens.tokenizer import cached_tokenizer

NAMES = {"articles": "articles.parquet", "corpus": "documents.parquet"}


def articles(path: Path) -> Iterator[tuple[list[str], list[str]]]:
    """Ids and texts, a batch at a time."""
    for batch in read_batches(path, DOCUMENTS):
        for start in range(0, batch.num_rows, ARTICLES):
            rows = batch.slice(start, ARTICLES)
            yield rows["id"].to_pylist(), rows["text"].to_pylist()


def main() -> None:
    arguments = parser(
        __doc__ or "", texts="folder of articles, or the corpus", tokenizer="tokenizer folder", out="folder to write"
    ).parse_args()
    params, tokenizer = load(Chunk, "chunk"), cached_tokenizer(arguments.tokenizer)
    if params.length > tokenizer.model_max_length:
        raise UserError(
            f"params.yaml: chunk.length: found {params.length}, expected at most {tokenizer.model_max_length}, the "
            "model's limit; decrease it"
        )
    path, digest = arguments.texts / NAMES[params.texts], folder_digest(arguments.tokenizer)
    total, scratch = count_rows(path), None
    if total > ALONE * ARTICLES:
        scratch = scratch_folder("chunk", work_digest(params.model_dump(), code_digest("chunk"), version("tokenizers"), digest, path))
    os.environ.setdefault("RAYON_NUM_THREADS", str(cores()))  # the tokenizer's own threads
    with new_folder(arguments.out) as out:
        job = Job(arguments.tokenizer, params, known_of(tokenizer, arguments.tokenizer))
        parts = chunked(job, articles(path), cores(), scratch)
        stats = write_parts(out, parts, tokenizer, digest=digest, params=params, total=total)
        if not stats["chunks"]:
            raise UserError(
                f"{path}: {stats['articles']} {params.texts if params.texts == 'articles' else 'documents'} yield no chunk of "
                f"{params.least} tokens; decrease chunk.least" + (" or articles.least_words" if params.texts == "articles" else "")
            )
    if scratch:
        mark_finished(scratch)
    print(", ".join(f"{count:,} {name}" for name, count in stats.items()))


if __name__ == "__main__":
    with stage():
        main()
