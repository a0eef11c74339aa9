"""Articles, or the documents of the corpus, in; chunks out."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq

from tasks.chunk.params import Chunk
from tasks.chunk.store import write_chunks
from tasks.core.stage.entry import parser, stage
from tasks.core.stage.errors import UserError
from tasks.core.stage.files import folder_digest, new_folder
from tasks.core.stage.params import load
from tasks.core.tables.parquet import read_batches
from tasks.core.tables.schemas import DOCUMENTS
from tasks.core.text.tokenizer import load_tokenizer

NAMES = {"articles": "articles.parquet", "corpus": "documents.parquet"}


def articles(path: Path) -> Iterator[tuple[list[str], list[str]]]:
    """Ids and texts, a batch at a time."""
    for batch in read_batches(path, DOCUMENTS):
        for start in range(0, batch.num_rows, 512):  # an article may be long
            part = batch.slice(start, 512)
            yield part["id"].to_pylist(), part["text"].to_pylist()


def main() -> None:
    arguments = parser(
        __doc__ or "", texts="folder of articles, or the corpus", tokenizer="tokenizer folder", out="folder to write"
    ).parse_args()
    params, tokenizer = load(Chunk, "chunk"), load_tokenizer(arguments.tokenizer)
    if params.length > tokenizer.model_max_length:
        raise UserError(
            f"params.yaml: chunk.length: found {params.length}, expected at most {tokenizer.model_max_length}, the "
            "model's limit; decrease it"
        )
    path, digest = arguments.texts / NAMES[params.texts], folder_digest(arguments.tokenizer)
    with new_folder(arguments.out) as out:
        stats = write_chunks(out, articles(path), tokenizer, digest, params, pq.read_metadata(path).num_rows)
        if not stats["chunks"]:
            raise UserError(
                f"{path}: {stats['articles']} {params.texts if params.texts == 'articles' else 'documents'} yield no chunk of "
                f"{params.least} tokens; decrease chunk.least" + (" or articles.least_words" if params.texts == "articles" else "")
            )
    print(", ".join(f"{count:,} {name}" for name, count in stats.items()))


if __name__ == "__main__":
    with stage():
        main()
