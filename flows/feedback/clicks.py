"""Turn click logs into training queries: a batch for the inbox whose train qrels have a weight, the estimated relevance of the pair.

A log is JSON lines or CSV (by its file extension), one search per line:

    {"query": text, "shown": [ids in order], "clicked": [ids]}    or "position": the clicked ranks, from 1, in place of "clicked"

or the search server's own: events {"event": "search", "id", "query", "shown"} and, after them, {"event": "click", "id", "position" or
"doc"}. An event without "event" is a search if it has "shown", else a click. In CSV, lists are JSON or separated by blanks.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from flows.batches.foreseen import query_texts
from flows.batches.known import Known
from flows.batches.places import new_place
from flows.batches.records import SHOWN, lines
from flows.feedback.propensity import Pair, Propensities, harvest, power_law, relevance, relevance_error
from flows.feedback.tables import csv_rows
from tasks.core.errors import UserError
from tasks.core.files import write_json
from tasks.core.params.safe_yaml import HALVES
from tasks.core.sources.columns import WEIGHT
from tasks.core.statistics.judged import click_id
from tasks.core.tables.id_sets import hashes
from tasks.core.text.plain import is_dev, plain

HASHED = re.compile("blake2b:[0-9a-f]{32}")  # in place of a query, by retemper serve --log-queries hashed
LARGEST = {"eta": 10.0, "max_weight": 1e6, "dev_share": 1.0, "dev_relevance": 1e6}  # of a rule: beyond these, floats overflow or become 0
Method = Literal["harvest", "power"]


@dataclass(frozen=True)
class Rule:
    """How clicks become judgments."""

    method: Method = "harvest"
    eta: float = 1.0  # p_k = 1 / k^eta for ranks that are not measured
    max_weight: float = 10.0  # of one click
    min_impressions: int = 5  # of a pair
    min_clicks: int = 1
    dev_share: float = 0.0  # share of the queries that go to dev
    dev_relevance: float = 0.2  # least estimated relevance, minus its standard error, of a pair in dev


@dataclass
class Log:
    """The counts of a log: by pair and rank, how often shown and clicked; the first spelling of each query; the number of searches."""

    counts: dict[Pair, dict[int, tuple[int, int]]] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    searches: int = 0
    skipped: int = 0
    first: str = ""  # the first line that was skipped, and why

    def skip(self, line: str) -> None:
        self.skipped += 1
        self.first = self.first or line

    def show(self, query: str, shown: Sequence[str]) -> None:
        """Count a search."""
        self.searches += 1
        self.texts.setdefault(plain(query), " ".join(query.split()))
        for rank, doc in enumerate(shown, 1):
            self._add(query, doc, rank, shown=1)

    def click(self, query: str, shown: Sequence[str], ranks: set[int]) -> None:
        """Count the clicks of a search, each rank once."""
        for rank in ranks:
            self._add(query, shown[rank - 1], rank, clicked=1)

    def _add(self, query: str, doc: str, rank: int, *, shown: int = 0, clicked: int = 0) -> None:
        by_rank = self.counts.setdefault((plain(query), doc), {})
        before = by_rank.get(rank, (0, 0))
        by_rank[rank] = (before[0] + shown, before[1] + clicked)


@dataclass(frozen=True)
class Imported:
    """The result of taking in a log."""

    log: Log
    propensities: Propensities
    pairs: Mapping[str, int]  # by split
    queries: int
    left_out: Mapping[str, int]  # pairs, by reason


def take_in(path: Path, batch: Path, rule: Rule, *, known: Known | None = None) -> Imported:
    """Write a log's clicks to the new folder `batch`: queries.jsonl, qrels/SPLIT.tsv, and the estimates in propensities.json.

    `known`: the data set. Queries that it has in another split, and documents that it lacks, are left out. Raises UserError if the batch
    exists, or the log gives no pair.
    """
    if batch.exists():
        raise UserError(f"{batch}: already exists, expected a new batch; name another folder")
    for field_name, largest in LARGEST.items():
        if not 0 <= (value := getattr(rule, field_name)) <= largest:  # or NaN
            raise UserError(f"--{field_name.replace('_', '-')}: found {value:g}, expected a number from 0 to {largest:,.0f}")
    log = read(path)
    if not log.searches:
        raise UserError(f"{path}: found no search{f' ({log.first})' if log.first else ''}, expected lines with query, shown and clicked")
    ranks = max(rank for by_rank in log.counts.values() for rank in by_rank)
    propensities = harvest(log.counts, ranks, rule.eta) if rule.method == "harvest" else power_law(ranks, rule.eta)
    rows, left_out = _judgments(log, propensities, rule, known=known)
    if not rows and not left_out:
        raise UserError(f"{path}: found searches but no clicks, expected clicked or position in some lines; check the log")
    if not rows:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in left_out.items())
        raise UserError(
            f"{path}: no pair of a query and a document is left ({reasons}); lower --min-impressions, --min-clicks or --dev-relevance"
        )
    queries = list(dict.fromkeys(query for query, _, _ in rows))
    splits: dict[str, list[tuple[str, str, float]]] = defaultdict(list)
    for row in rows:
        splits["dev" if is_dev(row[0], rule.dev_share) else "train"].append(row)
    batch.parent.mkdir(parents=True, exist_ok=True)
    with new_place(batch) as folder:
        (folder / "qrels").mkdir()
        texts = (json.dumps({"_id": click_id(query), "text": log.texts[query]}, ensure_ascii=False) + "\n" for query in queries)
        (folder / "queries.jsonl").write_text("".join(texts), encoding="utf-8")
        for split, split_rows in splits.items():
            out = (f"{click_id(query)}\t{doc}\t1" + (f"\t{weight:.6g}" if split == "train" else "") for query, doc, weight in split_rows)
            header = "query-id\tcorpus-id\tscore" + (f"\t{WEIGHT}" if split == "train" else "")
            (folder / f"qrels/{split}.tsv").write_text("\n".join([header, *out, ""]), encoding="utf-8")
        estimated = {"method": rule.method, "eta": propensities.eta, "measured": propensities.measured, "propensities": propensities.values}
        write_json(folder / "propensities.json", {**estimated, "searches": log.searches, "left_out": left_out})
    return Imported(log, propensities, {split: len(split_rows) for split, split_rows in splits.items()}, len(queries), left_out)


def _judgments(
    log: Log, propensities: Propensities, rule: Rule, *, known: Known | None
) -> tuple[list[tuple[str, str, float]], dict[str, int]]:
    """(query, document, weight) of each pair that counts, and the number of other pairs by reason."""
    left_out: Counter[str] = Counter()
    clicked = [(pair, ranks) for pair, ranks in log.counts.items() if any(count for _, count in ranks.values())]
    known_flags = known.has_documents(hashes([doc for (_, doc), _ in clicked])).tolist() if known else [True] * len(clicked)
    keys = dict(zip(log.texts, hashes(list(log.texts)).tolist(), strict=True))
    parts = known.parts() if known else []
    train, held_out = query_texts(parts, ["train"]), query_texts(parts, ["dev", "test"])
    rows = []
    for ((query, doc), ranks), is_known in zip(clicked, known_flags, strict=True):
        others = train if is_dev(query, rule.dev_share) else held_out
        if any(mark in doc for mark in "\t\r\n"):  # qrels are lines of cells separated by tabs
            left_out["of documents with tabs or line ends in their ids"] += 1
        elif not is_known:
            left_out["of documents that the data set lacks"] += 1
        elif keys[query] in others:
            left_out["of queries that the data set has in another split"] += 1
        elif sum(shown for shown, _ in ranks.values()) < rule.min_impressions or sum(c for _, c in ranks.values()) < rule.min_clicks:
            left_out["seen or clicked too rarely"] += 1
        elif is_dev(query, rule.dev_share) and not _is_relevant(ranks, propensities, rule):
            left_out["of dev, not surely relevant"] += 1
        else:
            rows.append((query, doc, relevance(ranks, propensities, rule.max_weight)))
    return rows, dict(left_out)


def _is_relevant(ranks: Mapping[int, tuple[int, int]], propensities: Propensities, rule: Rule) -> bool:
    """Whether a pair is surely relevant enough for dev, where all pairs get the same grade: a click alone says little."""
    return relevance(ranks, propensities, rule.max_weight) - relevance_error(ranks, propensities, rule.max_weight) >= rule.dev_relevance


def read(path: Path) -> Log:
    """Read a log into counts; invalid lines are skipped and counted. Raises UserError if it cannot be read at all."""
    if not path.is_file():
        raise UserError(f"{path}: not found, expected a click log; fix the path")
    log, open_searches = Log(), dict[str, tuple[str, list[str], set[int]]]()
    for at, record in _records(path, log):
        try:
            _take(record, log, open_searches)
        except ValueError as error:
            log.skip(f"{at}: {error}")
    return log


def _take(record: Mapping[str, Any], log: Log, searches: dict[str, tuple[str, list[str], set[int]]]) -> None:
    """Count one line; raise ValueError, in words, if it is invalid. `searches`: the server's searches by id, with their clicked ranks."""
    if record.get("event", "search" if "shown" in record else "click") == "click":
        if str(record.get("id")) not in searches:
            raise ValueError(f"found a click of search {record.get('id')!r}, expected one before it")
        query, shown, clicked_before = searches[str(record["id"])]
        newly_clicked = _ranks(record, shown) - clicked_before
        log.click(query, shown, newly_clicked)
        clicked_before |= newly_clicked
        return
    text, shown = record.get("query"), _listed(record, "shown")
    if not isinstance(text, str) or not text.strip() or not shown:
        raise ValueError("found no query, or nothing shown, expected query and shown")
    if HASHED.fullmatch(text):
        raise ValueError("found a hashed query, expected its text, as retemper serve --log-queries plain writes it")
    if not all(shown) or len(set(shown)) < len(shown):
        raise ValueError("found an empty id, or the same id twice, in shown, expected distinct ids")
    if HALVES.search("".join((text, *shown))):
        raise ValueError("found an unpaired surrogate (\\ud800 to \\udfff) in query or shown, expected valid Unicode text")
    ranks = _ranks(record, shown)
    log.show(text, shown)
    log.click(text, shown, ranks)
    if record.get("id") is not None:
        searches[str(record["id"])] = (text, shown, ranks)


def _ranks(record: Mapping[str, Any], shown: Sequence[str]) -> set[int]:
    """The ranks that were clicked, by position, or by the ids of the documents."""
    places, doc = _listed(record, "position"), record.get("doc")
    if places:
        if not all(place.isdecimal() and 1 <= int(place) <= len(shown) for place in places):
            raise ValueError(f"found position {', '.join(places)}, expected ranks from 1 to {len(shown)}")
        ranks = {int(place) for place in places}
        if isinstance(doc, str | int) and {shown[rank - 1] for rank in ranks} != {str(doc)}:
            raise ValueError(f"found a click on {doc!r} at position {', '.join(places)}, expected the document that was shown there")
        return ranks
    clicked = record.get("clicked")  # may be one id, with blanks or brackets; `doc` always is
    docs = [str(clicked)] if clicked in shown else _listed(record, "clicked")
    if "clicked" not in record and doc is not None:
        docs = _ids("doc", doc if isinstance(doc, list) else [doc])
    if unknown := [one for one in docs if one not in shown]:
        raise ValueError(f"found a click on {unknown[0]!r}, expected one of those shown")
    return {list(shown).index(one) + 1 for one in docs}


def _listed(record: Mapping[str, Any], field: str) -> list[str]:
    """A field's list of ids or ranks: a JSON list, or a cell with JSON or blanks as separators. Raises ValueError for any other item."""
    value = record.get(field)
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)
        except RecursionError:
            raise ValueError(f"found a list that is nested too deeply in {field}, expected ids") from None
        except ValueError:
            raise ValueError(f"found {value[:SHOWN]!r} in {field}, expected a list in JSON") from None
    if value is None or isinstance(value, str):
        return (value or "").split()
    return _ids(field, value if isinstance(value, list) else [value])


def _ids(field: str, items: Sequence[object]) -> list[str]:
    for item in items:
        if isinstance(item, bool) or not isinstance(item, str | int):
            raise ValueError(f"found {json.dumps(item)[:SHOWN]} in {field}, expected strings or integers")
    return [str(item) for item in items]


def _records(path: Path, log: Log) -> Iterator[tuple[str, dict[str, Any]]]:
    if path.name.removesuffix(".gz").endswith(".csv"):
        optional = ("clicked", "position", "doc", "event", "id")
        for row in csv_rows(path, ("query", "shown"), "query, shown, and clicked or position", optional=optional):
            yield row.at, {column: cell for column, cell in row.cells.items() if column and cell}
        return
    for number, line in lines(path, log.skip):
        at = f"{path}:{number}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if isinstance(record, dict):
            yield at, record
        else:
            log.skip(f"{at}: found no JSON object")
