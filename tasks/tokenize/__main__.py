"""Corpus to tokens: documents and the queries of every split."""

from argparse import BooleanOptionalAction
from collections.abc import Iterator
from pathlib import Path

from tasks.core.stage.entry import parser, stage
from tasks.core.stage.errors import UserError
from tasks.core.stage.files import folder_digest, new_folder, read_json
from tasks.core.stage.params import load
from tasks.core.tables.batching import cut
from tasks.core.tables.parquet import count_rows, read_batches
from tasks.core.tables.schemas import DOCUMENTS, QUERIES, SPLITS
from tasks.core.text.document import Text, document_text
from tasks.core.text.tokenizer import load_tokenizer
from tasks.tokenize.params import Tokenize
from tasks.tokenize.store import write_tokens

PROMPTS = ("query", "document")


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
    given = parser(__doc__ or "", corpus="corpus folder", tokenizer="tokenizer folder", out="token folder to write")
    given.add_argument(
        "--prompts",
        type=Path,
        help="config_sentence_transformers.json of an encoder that is not the project's: its prefixes, and lengths of at most its own",
    )
    for name in PROMPTS:
        given.add_argument(f"--{name}-prefix", help=f"before every {name}, instead of that")
        given.add_argument(f"--{name}-length", type=int, help=f"tokens of a {name} at most, instead of params.yaml's")
    given.add_argument(
        "--titles", action=BooleanOptionalAction, default=None, help="before a document's text or not, instead of params.yaml's"
    )
    arguments = given.parse_args()
    text, params = load(Text, "text"), load(Tokenize, "tokenize")
    if arguments.titles is not None:
        text = text.model_copy(update={"titles": arguments.titles})
    prefixes = {name: getattr(params, f"{name}_prefix") for name in PROMPTS}
    if arguments.prompts:
        prompts = read_json(arguments.prompts).get("prompts") or {}
        prefixes = {name: str(prompts.get(name) or "") for name in PROMPTS}
    prefixes |= {name: value for name in PROMPTS if (value := getattr(arguments, f"{name}_prefix")) is not None}
    tokenizer = load_tokenizer(arguments.tokenizer)
    most = tokenizer.model_max_length
    lengths = {}
    for name in PROMPTS:
        asked, own = getattr(arguments, f"{name}_length"), getattr(params, f"{name}_length")
        lengths[name] = asked or own
        if lengths[name] > most:
            if asked or not arguments.prompts:
                where = f"--{name}-length" if asked else f"params.yaml: tokenize.{name}_length"
                raise UserError(f"{where}: found {lengths[name]}, expected at most {most}, the model's limit; decrease it")
            print(f"params.yaml: tokenize.{name}_length is {own}, above the model's limit; using {most}")
            lengths[name] = most
    digest = folder_digest(arguments.tokenizer)
    with new_folder(arguments.out) as out:
        path = arguments.corpus / "documents.parquet"
        length, prefix = lengths["document"], prefixes["document"]
        total = count_rows(path)
        write_tokens(out / "documents", documents(path, text), tokenizer, digest, length, prefix, total, params.passages)
        for split in SPLITS:
            path = arguments.corpus / "queries" / f"{split}.parquet"
            length, prefix = lengths["query"], prefixes["query"]
            write_tokens(out / "queries" / split, queries(path), tokenizer, digest, length, prefix, count_rows(path))


if __name__ == "__main__":
    with stage():
        main()
