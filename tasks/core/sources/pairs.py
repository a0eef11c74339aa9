"""One file of queries, each with a passage that answers it: its name, and its columns.

    FILE                       .csv .tsv .jsonl .ndjson, each plain or .gz; .parquet
    FILE#ROLE=NAME,ROLE=NAME   the same, with columns of other names: faq.csv#query=Frage,passage=Antwort

Columns are known by their names, in upper or lower case, among them those of sentence-transformers' training data; others are ignored.
A role is the first word of a line below; one without a name (`#id=`) has no column, whatever the file has. In a name, %2C is a comma.
Labels and scores are refused: every passage answers its query. `#label=` says that all do, whatever such a column has.

    query          anchor | query | question | sentence1
    passage        positive | answer | passage | text | sentence2
    title          title: of the passage (optional)
    id             of the passage: id | _id | doc_id | docid | pid | corpus_id | corpus-id (optional)
    query_id       query_id | query-id | qid (optional)
    split          split: train, dev (or validation, valid, val), or test (optional)
    negatives      negative | negative_1 ... (optional)
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from tasks.core.errors import Invalid, Unavailable, UserError

ENDINGS = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")
EXPECTED = "a file of queries and answers: .csv, .tsv, .jsonl, .ndjson, each plain or .gz, or .parquet"
PACKED = (".gz", ".zst", ".bz2", ".xz", ".zip")
SHEETS = (".xlsx", ".xls", ".xlsm", ".ods", ".numbers")
OTHERS = {  # of files that may well hold pairs
    ".json": "write one object a line, as .jsonl",
    ".txt": "save it as .csv or .tsv",
    **dict.fromkeys(SHEETS, "save it as CSV in UTF-8"),
    **dict.fromkeys(PACKED[1:], "unpack it"),
}
ANCHORS = ("anchor", "query", "question", "sentence1")
PASSAGES = ("positive", "answer", "passage", "text", "sentence2")
LABELS = ("label", "labels", "score", "scores")
NEGATIVE = re.compile(r"negative(?:_([0-9]{1,9}))?")
ROLES = {
    "query": ANCHORS,
    "passage": PASSAGES,
    "title": ("title",),
    "id": ("id", "_id", "doc_id", "docid", "pid", "corpus_id", "corpus-id"),
    "query_id": ("query_id", "query-id", "qid"),
    "split": ("split",),
}
ASKED, SEPARATOR = re.compile(r"#(?=\w+=)"), re.compile(r",(?=\w+=)")  # before and between the columns that a SPEC names
EXAMPLE = "pairs:FILE#query=NAME,passage=NAME"
QUOTED = {ord(mark): f"%{ord(mark):02X}" for mark in "%,#/:"}  # those with a meaning in a SPEC, of which others show a part
NO_LABEL = "label="  # in a SPEC: a column of LABELS is not read
SHOWN, MOST = 40, 20  # characters of a column's name and names that a message quotes


@dataclass(frozen=True)
class Columns:
    """The places of the columns that are read, by role."""

    query: int
    passage: int
    title: int | None = None
    id: int | None = None
    query_id: int | None = None
    split: int | None = None
    negatives: tuple[int, ...] = ()


def extension(path: Path) -> str:
    """The ending of a file's name, in lower case and without .gz."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def is_pairs_file(path: Path) -> bool:
    """Whether a file's name suggests pairs, in a form that we read or not; in an inbox, files other than batches have other names."""
    name, last = path.name.lower(), Path(path.name.lower()).suffix
    suffix = Path(name.removesuffix(last)).suffix if last in PACKED else last
    return path.is_file() and suffix in (*ENDINGS, *SHEETS) and not name.startswith("~$")  # Excel's lock


def pairs_file(path: Path) -> Path:
    """Return `path`. UserError if it is not a file, or of a form that is not read."""
    if not path.exists():
        raise Unavailable(f"{path}: not found, expected {EXPECTED}; fix the path (relative ones start at {Path.cwd()})")
    if not path.is_file():
        raise UserError(f"{path}: found a folder, expected {EXPECTED}; name one file in it")
    if extension(path) not in ENDINGS or path.name.lower().endswith(".parquet.gz"):
        raise UserError(f"{path}: found a file of another form, expected {EXPECTED}; {OTHERS.get(extension(path), 'convert or rename it')}")
    return path


def file_and_columns(place: str) -> tuple[str, str]:
    """A SPEC's file, and the columns that it names, empty or `#ROLE=NAME,...` in the order of ROLES. UserError for another role."""
    file, *selection = ASKED.split(place, maxsplit=1)
    column_names: dict[str, str] = {}
    for column in SEPARATOR.split(selection[0]) if selection else ():
        role, _, name = column.partition("=")
        if (role not in ROLES and column != NO_LABEL) or role in column_names:
            found = f"{role} twice" if role in column_names else f"the role {role!r}"
            raise UserError(
                f"dataset 'pairs:{place}': found {found}, expected {', '.join(ROLES)}, or {NO_LABEL}, each once; for example {EXAMPLE}"
            )
        column_names[role] = unquote(name).strip().translate(QUOTED)
    if missing := next((role for role in ("query", "passage") if column_names.get(role) == ""), None):
        raise UserError(f"dataset 'pairs:{place}': found no column name for {missing}, expected one, for example {EXAMPLE}")
    return file.strip(), "#" * bool(column_names) + ",".join(
        f"{role}={column_names[role]}" for role in (*ROLES, "label") if role in column_names
    )


def columns_of(where: str, names: Sequence[str], selection: str = "") -> Columns:
    """The columns of a file whose header has `names`, where the SPEC has `selection` for some: `#ROLE=NAME,...`.

    UserError, which lists them, if there is no query or passage, if a role has several columns, or if one that was asked for is missing.
    """
    lowered = [name.strip().lower() for name in names]
    shown = ", ".join(name.strip()[:SHOWN] for name in names[:MOST]) + (" ..." if len(names) > MOST else "")
    named_columns = {role: unquote(name) for role, _, name in (column.partition("=") for column in selection[1:].split(",")) if role}
    named_places = {  # none for a role without a name, though a column may have none either, as the row numbers that pandas writes
        role: [place for place, name in enumerate(lowered) if name and name == named_columns[role].lower()] for role in named_columns
    }
    if missing := next((role for role, role_places in named_places.items() if named_columns[role] and not role_places), None):
        raise Invalid(
            where=where,
            found=f"columns {shown}",
            expected=f"{named_columns[missing]}, the column of the {missing} in {selection}",
            remedy=f"fix the name there, as {EXAMPLE}",
        )
    named_set = {place for role_places in named_places.values() for place in role_places}
    known_places = {role: [place for place, name in enumerate(lowered) if name in ROLES[role] and place not in named_set] for role in ROLES}
    places = known_places | named_places
    if not places["query"] or not places["passage"]:
        raise Invalid(
            where=where,
            found=f"columns {shown}",
            expected=f"a query ({' | '.join(ANCHORS)}) and the passage that answers it ({' | '.join(PASSAGES)}), optionally title, id, "
            "query_id, split, negative",
            remedy=f"rename them in the file, or name them, as {EXAMPLE}"
            + ("; if there are only documents, save them as corpus.csv in a folder" if places["passage"] else ""),
        )
    if duplicates := next((role_places for role_places in places.values() if len(role_places) > 1), None):
        raise Invalid(
            where=where,
            found=f"columns {' and '.join(names[place].strip() for place in duplicates)}",
            expected="one of them",
            remedy=f"rename or drop the others, or name the one, as {EXAMPLE}",
        )
    label = next((name for place, name in enumerate(lowered) if name in LABELS and place not in named_set), None)
    if label and "label" not in named_columns:
        raise Invalid(
            where=where,
            found=f"column {label}",
            expected="rows whose passage answers the query",
            remedy=f"if all do, ignore the column (pairs:FILE#{NO_LABEL}); else drop the other rows, or use retemper convert, which reads "
            "labels 0 and 1 of .jsonl and .parquet",
        )
    negatives = {
        place: int(match[1] or 0) for place, name in enumerate(lowered) if place not in named_set and (match := NEGATIVE.fullmatch(name))
    }
    if negatives and places["title"]:
        raise Invalid(
            where=where, found="columns title and negative", expected="one of them: negatives have no titles", remedy="drop or rename one"
        )
    return Columns(
        places["query"][0],
        places["passage"][0],
        **{role: places[role][0] for role in ("title", "id", "query_id", "split") if places[role]},
        negatives=tuple(sorted(negatives, key=lambda place: negatives[place])),
    )
