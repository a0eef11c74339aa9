"""Judgments that people have filled in, as the qrels of a batch for the inbox."""

from collections.abc import Collection
from pathlib import Path

from flows.batches.records import SHOWN
from flows.feedback.tables import csv_rows
from tasks.core.errors import UserError
from tasks.core.files import new_file
from tasks.core.sources.delimiters import NAMES
from tasks.core.sources.grades import MOST, is_grade
from tasks.core.tables.parquet import read_batches
from tasks.core.tables.schemas import QUERIES

COLUMNS = ("query-id", "corpus-id", "score")  # others are only for the judge to read


def take_in(path: Path, batch: Path, split: str) -> tuple[int, int]:
    """Write the rows of a CSV file (data/failures/suspects/SPLIT.csv) that have a score to BATCH/qrels/SPLIT.tsv.

    Returns how many rows have a score, and how many have none. Raises UserError, with the line, for a wrong score; if there is none; and
    if a judged query is in the other of dev and test, or was made from a document.
    """
    out = batch / "qrels" / f"{split}.tsv"
    if out.exists():
        raise UserError(f"{out}: already exists, expected a new batch; name another folder")
    rows, blank = _rows(path)
    judged = {query for query, _, _ in rows}
    _refuse_made(path, judged, split)
    _refuse_other_split(path, judged, split)
    if not rows:
        raise UserError(f"{path}: no row has a score, expected 0 (not relevant), 1, or more in column score; judge some")
    with new_file(out) as temporary:
        lines = ["\t".join(row) + "\n" for row in (COLUMNS, *rows)]
        temporary.write_text("".join(lines), encoding="utf-8")
    return len(rows), blank


def _refuse_other_split(path: Path, judged: Collection[str], split: str) -> None:
    """UserError if a judged query is in the project's other held-out split alone: dev would choose by what test measures."""
    other = "test" if split == "dev" else "dev"
    if misplaced := sorted(_in_split(judged, other) - _in_split(judged, split)):
        raise UserError(f"{path}: found query {misplaced[0]}, which is in {other}, expected queries of {split}; use --split {other}")


def _refuse_made(path: Path, judged: Collection[str], split: str) -> None:
    """UserError if a query was made from a document: the next run makes others, and the inbox knows no such query."""
    if made := sorted(_in_split(judged, split, "pseudo") - _in_split(judged, split)):
        raise UserError(
            f"{path}: found query {made[0][:SHOWN]}, which was made from a document, expected queries of the source; collect people's, "
            "as with retemper clicks"
        )


def _in_split(judged: Collection[str], split: str, corpus: str = "corpus") -> set[str]:
    """The judged queries that a split of the project's corpus has, the source's own or (`corpus`: pseudo) the one with made queries."""
    queries = Path("data", corpus, "queries") / f"{split}.parquet"
    batches = read_batches(queries, QUERIES, ["id"]) if queries.is_file() else ()
    return {query for batch in batches for query in batch["id"].to_pylist() if query in judged}


def _rows(path: Path) -> tuple[list[tuple[str, str, str]], int]:
    rows: dict[tuple[str, str], tuple[str, str, str]] = {}
    blank = 0
    if not path.exists():
        raise UserError(f"{path}: not found; retemper run writes data/failures/suspects/SPLIT.csv")
    for at, cells, delimiter in csv_rows(path, COLUMNS, f"a header with {', '.join(COLUMNS)}"):
        query, doc, score = (str(cells[name] or "") for name in COLUMNS)
        score = score.strip()  # ids stay as they are: with prepare.ids: escape, white space tells them apart
        if None in cells:
            raise UserError(f"{at}: found more cells than columns, expected a cell with {NAMES[delimiter]} in quotes; fix that line")
        if not score:
            blank += 1
            continue
        if not is_grade(score) or int(score) < 0:
            raise UserError(f"{at}: found score {score[:SHOWN]!r}, expected 0 (not relevant), 1, or more, up to {MOST:,}; fix that line")
        if not query.strip() or not doc.strip() or any(mark in query + doc for mark in "\t\r\n\0"):
            raise UserError(
                f"{at}: found query-id {query[:SHOWN]!r} and corpus-id {doc[:SHOWN]!r}, expected two ids without tabs, "
                "line ends, and NUL; fix that line"
            )
        score = str(int(score))
        if rows.setdefault((query, doc), (query, doc, score))[2] != score:
            raise UserError(f"{at}: found score {score} for {query} and {doc}, {rows[query, doc][2]} before; keep one")
    return list(rows.values()), blank
