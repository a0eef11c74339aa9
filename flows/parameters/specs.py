"""The SPEC of a data set that a user names by a folder or file, whose content shows its kind."""

from pathlib import Path

from tasks.core.errors import UserError
from tasks.core.sources.datasets import PATH_KINDS, SPEC_FORMS, local_path
from tasks.core.sources.pairs import file_and_columns

LOOSE = (".md", ".txt")  # texts that people have in folders
MARKS = {  # a file of a folder that says how to read it
    "beir": ("corpus.jsonl", "corpus.jsonl.gz"),
    "csv": ("corpus.csv", "corpus.tsv", "corpus.csv.gz", "corpus.tsv.gz"),
    "msmarco": ("collection.tsv", "msmarco-docs.tsv", "collection.tsv.gz", "msmarco-docs.tsv.gz"),
    "parquet": ("documents.parquet", "corpus.parquet", "documents", "corpus"),
}


def spec_of(place: str) -> str:
    """The SPEC for `place`: a bare folder gets the kind that its content shows, a bare file is `pairs`; a SPEC stays as it is.

    Raises UserError if there is neither folder nor file, or nothing in a folder shows its kind.
    """
    place = place.strip()
    folder = local_path(place)
    if folder.is_dir() and place != "demo":
        kinds = [
            kind for kind, names in MARKS.items() if any((folder / name).exists() or (folder / f"{name}.zst").exists() for name in names)
        ]
        seen = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
        texts = [path.name for path in seen if path.suffix in LOOSE]
        if not kinds and texts and len(texts) == len(seen):
            raise UserError(
                f"{place}: found text files ({texts[0]}), which are not read, expected corpus.jsonl; write one with a line "
                '{"_id": NAME, "text": TEXT} for each; see docs/data.md'
            )
        if not kinds:
            raise UserError(
                f"{place}: found no corpus.jsonl (BEIR), corpus.csv, collection.tsv (MS MARCO), or documents.parquet there, expected one; "
                "or name a single file of questions and answers; see docs/data.md"
                f"{f', also for text files such as {texts[0]}' if texts else ''}"
            )
        return f"{kinds[0]}:{place}"
    if local_path(file_and_columns(place)[0]).is_file():
        return f"pairs:{place}"
    if ":" not in place and place not in ("demo", *PATH_KINDS):  # a path
        raise UserError(f"{place}: no such folder or file, expected one, or {SPEC_FORMS}; relative paths start at {Path.cwd()}")
    return place
