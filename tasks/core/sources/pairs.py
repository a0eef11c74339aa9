"""One file of queries, each with a passage that answers it: its name, and its columns.

    .csv .tsv .jsonl .ndjson, each plain or .gz; .parquet

Columns are known by their names in any case; other columns are ignored. They include the ones of sentence-transformers' training data.

    query          anchor | query | question | sentence1
    passage        positive | answer | passage | text | sentence2
    title          title: of the passage (optional)
    document id    id | _id | doc_id | docid | pid | corpus_id | corpus-id (optional)
    query id       query_id | query-id | qid (optional)
    split          split: train, dev (or validation, valid, val), or test (optional)
    negatives      negative | negative_1 ... (optional)
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tasks.core.stage.errors import Invalid, Unavailable, UserError

ENDINGS = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")
EXPECTED = "a file of queries and answers: .csv, .tsv, .jsonl, each plain or .gz, or .parquet"
OTHERS = {  # of files that may well hold pairs
    ".json": "write one object a line, as .jsonl",
    ".txt": "save it as .csv or .tsv",
    **dict.fromkeys((".xlsx", ".xls", ".xlsm", ".ods", ".numbers"), "save it as CSV in UTF-8"),
    **dict.fromkeys((".zip", ".zst", ".bz2", ".xz"), "unpack it"),
}
ANCHORS = ("anchor", "query", "question", "sentence1")
PASSAGES = ("positive", "answer", "passage", "text", "sentence2")
LABELS = ("label", "labels", "score", "scores")
NEGATIVE = re.compile(r"negative(?:_([0-9]{1,9}))?")
ROLES = {
    "query": ANCHORS,
    "passage": PASSAGES,
    "title": ("title",),
    "document": ("id", "_id", "doc_id", "docid", "pid", "corpus_id", "corpus-id"),
    "query_id": ("query_id", "query-id", "qid"),
    "split": ("split",),
}
SHOWN, MOST = 40, 20  # characters of a column's name and names that a message quotes


@dataclass(frozen=True)
class Columns:
    """The places of the columns that are read, by what they hold."""

    query: int
    passage: int
    title: int | None = None
    document: int | None = None
    query_id: int | None = None
    split: int | None = None
    negatives: tuple[int, ...] = ()


def ending(path: Path) -> str:
    """What a file's name says of its form, in lower case; without .gz."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def pairs_file(path: Path) -> Path:
    """`path`. UserError if it is no file, or of a form that is not read."""
    if not path.exists():
        raise Unavailable(f"{path}: not found, expected {EXPECTED}; fix the path (relative ones start at {Path.cwd()})")
    if not path.is_file():
        raise UserError(f"{path}: found a folder, expected {EXPECTED}; name one file in it")
    if ending(path) not in ENDINGS or path.name.lower().endswith(".parquet.gz"):
        raise UserError(f"{path}: found a file of another form, expected {EXPECTED}; {OTHERS.get(ending(path), 'convert or rename it')}")
    return path


def columns_of(where: str, names: Sequence[str]) -> Columns:
    """The columns of a file whose header has `names`. UserError, which lists them, where a query or a passage has none, or several."""
    lowered = [name.strip().lower() for name in names]
    shown = ", ".join(name.strip()[:SHOWN] for name in names[:MOST]) + (" ..." if len(names) > MOST else "")
    places = {role: [place for place, name in enumerate(lowered) if name in known] for role, known in ROLES.items()}
    if not places["query"] or not places["passage"]:
        raise Invalid(
            where=where,
            found=f"columns {shown}",
            expected=f"a query ({' | '.join(ANCHORS)}) and the passage that answers it ({' | '.join(PASSAGES)}), optionally title, id, "
            "query_id, split, negative",
            remedy="rename them in the file" + ("; documents alone are corpus.csv in a folder" if places["passage"] else ""),
        )
    if several := next((found for found in places.values() if len(found) > 1), None):
        raise Invalid(
            where=where,
            found=f"columns {' and '.join(names[place].strip() for place in several)}",
            expected="one of them",
            remedy="rename or drop the others",
        )
    if label := next((name for name in lowered if name in LABELS), None):
        raise Invalid(
            where=where,
            found=f"column {label}",
            expected="rows whose passage answers the query",
            remedy="drop the rows where it does not, and the column; retemper convert reads labels of 0 and 1 of .jsonl and .parquet",
        )
    negatives = {place: int(found[1] or 0) for place, name in enumerate(lowered) if (found := NEGATIVE.fullmatch(name))}
    if negatives and places["title"]:
        raise Invalid(
            where=where, found="columns title and negative", expected="one of them: negatives have no titles", remedy="drop or rename one"
        )
    return Columns(
        places["query"][0],
        places["passage"][0],
        **{role: places[role][0] for role in ("title", "document", "query_id", "split") if places[role]},
        negatives=tuple(sorted(negatives, key=lambda place: negatives[place])),
    )
