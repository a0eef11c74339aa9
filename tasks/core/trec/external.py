"""Read TREC runs and qrels of other programs, whole, with the line number of a mistake (which ir_measures' readers do not give).

Ids with white space, which a run of ours has escaped, are unescaped.
"""

import gzip
import re
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from tasks.core.errors import UserError
from tasks.core.metrics.measures import Qrels
from tasks.core.plurals import counted
from tasks.core.sources.grades import EXPECTED, is_grade
from tasks.core.trec.ids import unescape

ASCII_WORDS = re.compile(r"[^ \t\n\r\f\v]+")


def read_trec_run(path: Path) -> dict[str, list[str]]:
    """The documents of each query, as `read_scored_trec_run` orders them."""
    return {query: list(ranked) for query, ranked in read_scored_trec_run(path).items()}


def read_scored_trec_run(path: Path) -> dict[str, dict[str, np.float32]]:
    """Read any TREC run file (.gz too), whole in memory, in trec_eval's order: float32 score, then id, both descending.

    UserError for a repeated document, a score that is not a number, and ranks that contradict the scores.
    """
    scored: dict[str, dict[str, np.float32]] = {}
    last: dict[str, tuple[float, np.float32]] = {}  # rank and score of the query's previous line
    for number, (query, _, doc, rank, score, _) in _lines(path, 6, "query Q0 doc rank score tag"):
        ranked = scored.setdefault(query, {})
        if doc in ranked:
            raise UserError(f"{path}:{number}: found document {doc} twice for query {query}, expected once; keep its best line")
        try:
            ranked[doc] = np.float32(score)
        except ValueError:
            ranked[doc] = np.float32("nan")
        if np.isnan(ranked[doc]):
            raise UserError(f"{path}:{number}: found the score {score!r}, expected a number; fix that line")
        current, previous = (_rank(rank), ranked[doc]), last.get(query)
        last[query] = current
        if previous and (current[0] - previous[0]) * (current[1] - previous[1]) > 0:
            raise UserError(
                f"{path}:{number}: found rank {rank} with score {score} after rank {previous[0]:g} with {previous[1]:g}, expected "
                "higher scores at lower ranks; runs are ordered by score, so negate distances, or fix the ranks"
            )
    return {query: dict(sorted(ranked.items(), key=lambda item: (item[1], item[0]), reverse=True)) for query, ranked in scored.items()}


def _rank(text: str) -> float:
    return float(text) if text.isascii() and text.isdigit() else float("nan")


def refuse_strangers(run: Path, ranked: Mapping[str, object], qrels: Path, judged: Mapping[str, object]) -> None:
    """UserError if `run` answers none of the judged queries."""
    if not ranked.keys() & judged.keys():
        example, other = next(iter(ranked), "none"), next(iter(judged), "none")
        none = f"none of its {len(ranked):,} queries ({example}, ...) is" if len(ranked) != 1 else f"its only query ({example}) is not"
        one_of = f"one of the {len(judged):,} in {qrels} ({other}, ...)" if len(judged) != 1 else f"the only one in {qrels} ({other})"
        raise UserError(f"{run}: {none} {one_of}, expected the same ids; name the qrels of this run's queries")


def read_trec_qrels(path: Path) -> Qrels:
    """Any TREC qrels file (.gz too), including queries without a relevant document."""
    qrels: Qrels = {}
    for number, (query, _, doc, cell) in _lines(path, 4, "query iteration doc grade"):
        if not is_grade(cell):
            raise UserError(f"{path}:{number}: found the grade {cell!r}, expected {EXPECTED}; fix that line")
        grade = int(cell)
        if qrels.setdefault(query, {}).setdefault(doc, grade) != grade:
            raise UserError(f"{path}:{number}: found grade {grade} for {query} {doc}, but {qrels[query][doc]} before; keep one of them")
    return qrels


def _lines(path: Path, width: int, expected: str) -> Iterator[tuple[int, list[str]]]:
    try:
        with gzip.open(path, "rt", encoding="utf-8-sig") if path.suffix == ".gz" else path.open(encoding="utf-8-sig") as handle:
            for number, line in enumerate(handle, 1):
                fields = ASCII_WORDS.findall(line)  # an id may contain other spaces
                if len(fields) == width:
                    query, ignored, doc, *rest = fields
                    yield number, [unescape(query), ignored, unescape(doc), *rest]
                elif fields:
                    raise UserError(f"{path}:{number}: found {counted(len(fields), 'fields')}, expected {width}: {expected}")
    except FileNotFoundError:
        raise UserError(f"{path}: not found; name an existing file") from None
    except (UnicodeDecodeError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read ({error}); expected UTF-8 text, gzip if the name ends in .gz") from None
