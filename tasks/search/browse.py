"""A local page to compare two systems query by query, and to judge what they find. `python -m tasks.search.browse`."""

import fcntl
import json
import os
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import blake2b
from importlib.resources import files
from pathlib import Path
from threading import Lock
from typing import Any

import pyarrow as pa
from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from pydantic import BaseModel, Field

from tasks.core.charts.local import local_app, serve_local
from tasks.core.errors import UserError
from tasks.core.files import read_json, write_text
from tasks.core.params.safe_yaml import HALVES
from tasks.core.sources.grades import is_grade
from tasks.core.stage.entry import parser, stage
from tasks.core.tables.ids import ordinals
from tasks.core.tables.parquet import read_table, values_of
from tasks.core.tables.schemas import MEASURED, QRELS
from tasks.core.text.mapped import query_texts
from tasks.search.__main__ import hit_texts, open_systems, system_arguments
from tasks.search.lists import LexicalSystem, Systems

MOST = 100  # documents in an answer
TYPED = "browse-"  # prefix of the ids of queries that are typed in the page
HEADER = "query-id\tcorpus-id\tscore"  # of a batch's qrels
SHOWN = 60  # characters of a line in a message
REMEDY = "name another --batch, or fix that line"


class Judgment(BaseModel):
    """A judgment that a person clicked. `query` is the id of a query of the corpus; None: the query was typed in, as `text`."""

    query: str | None = None
    text: str = Field("", max_length=2000)
    doc: str = Field(min_length=1)
    grade: int = Field(ge=0, le=3)


class Corpus:
    """Documents, and the queries of a split with their judgments and the systems' values."""

    def __init__(self, args: Namespace) -> None:
        self.documents, self.split = args.documents, args.split
        self.queries = dict(query_texts(args.corpus, args.split))
        self.qrels: dict[str, dict[str, int]] = {}
        judged = read_table(args.corpus / "qrels" / f"{args.split}.parquet", QRELS)
        for query, doc, grade in zip(*(judged[name].to_pylist() for name in QRELS.names), strict=True):
            self.qrels.setdefault(query, {})[doc] = grade
        self.metric, self.chosen = args.metric, args.chosen
        self.values = {name: _values(args.values / name / f"{args.split}.parquet", args.metric) for name in args.systems}

    def difference(self, first: str, second: str) -> list[dict[str, Any]]:
        """Every query with both systems' values. The queries on which `first` loses most come first."""
        first_values, second_values = self.values.get(first, {}), self.values.get(second, {})
        rows = [
            {"query": query, "text": self.queries[query], "first": first_values[query], "second": second_values[query]}
            for query in first_values
            if query in second_values and query in self.queries
        ]
        return sorted(rows, key=lambda row: (row["first"] - row["second"], row["query"]))


class Judgments:
    """Judgments as a batch for the inbox: qrels/SPLIT.tsv, and queries.jsonl for queries that were typed in.

    Others may change the batch meanwhile (a second page, `retemper forget`), so each judgment is added to what is on disk then.
    """

    def __init__(self, batch: Path, split: str) -> None:
        """UserError if the batch is not as we write it, here and in `add`."""
        self._batch, self._qrels, self._queries = batch, batch / "qrels" / f"{split}.tsv", batch / "queries.jsonl"
        self._lock = Lock()
        self.grades = _grades(self._qrels)  # as last read; replaced, never changed, because other threads read it
        _typed(self._queries)

    def of(self, query: str) -> dict[str, int]:
        """The grades of a query's documents."""
        return {doc: grade for (name, doc), grade in self.grades.items() if name == query}

    def add(self, judgment: Judgment, corpus_grade: int = 0) -> str:
        """Add a judgment, write all to disk, and return the id of its query.

        A document that is relevant already, here or by `corpus_grade`, keeps the higher grade.
        """
        query = query_id(judgment.query, judgment.text)
        if any(mark in query + judgment.doc for mark in "\t\n\r"):
            raise HTTPException(400, "an id with a tab or a line end cannot be written as qrels")
        pair = query, judgment.doc
        with self._lock, _hold(self._batch):
            grades, typed = _grades(self._qrels), _typed(self._queries)
            grades[pair] = max(judgment.grade, grades.get(pair, 0), corpus_grade) if judgment.grade else 0
            if judgment.query is None:
                typed[query] = judgment.text
                lines = [json.dumps({"_id": name, "text": text}, ensure_ascii=False) + "\n" for name, text in typed.items()]
                write_text(self._queries, "".join(lines))
            rows = [f"{name}\t{doc}\t{grade}\n" for (name, doc), grade in grades.items()]
            write_text(self._qrels, HEADER + "\n" + "".join(rows))
            self.grades = grades
        return query


def query_id(query: str | None, text: str) -> str:
    """The id of a query: its own, or of one that was typed, of its text."""
    return query or TYPED + blake2b(text.encode(), digest_size=8).hexdigest()


@contextmanager
def _hold(folder: Path) -> Iterator[None]:
    """Wait for the lock of a folder, and hold it: another process may be writing there. Some network file systems have no such locks."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def create_app(systems: Systems, corpus: Corpus, judgments: Judgments, lexical: LexicalSystem) -> FastAPI:
    """Make the app: the page, and the endpoints that it calls. Matching words are found by the analysis of `lexical`, BM25."""
    app = local_app("retemper browse")
    page = files("tasks.search").joinpath("browse.html").read_text(encoding="utf-8")
    lock = Lock()  # one at a time: the index and the encoder use all threads already

    @app.get("/", response_class=HTMLResponse)
    def index() -> str:
        return page

    @app.get("/api/systems")
    def list_systems() -> dict[str, Any]:
        return {"systems": systems.names, "chosen": corpus.chosen, "split": corpus.split, "metric": corpus.metric}

    @app.get("/api/queries")
    def list_queries(first: str, second: str) -> list[dict[str, Any]]:
        return corpus.difference(first, second)

    @app.get("/api/search")
    def search(system: str, text: str = "", k: int = 10, query: str | None = None) -> dict[str, Any]:
        text = corpus.queries.get(query or "", text)  # a field of the page has no line breaks
        if system not in systems.names:
            raise HTTPException(404, f"no system {system}, expected one of {', '.join(systems.names)}")
        if not text.strip():
            raise HTTPException(400, "the query is empty; enter some words")
        try:
            with lock:
                ranked = systems.search(text, system, min(max(k, 1), MOST))
            texts = hit_texts(corpus.documents, ranked.documents)
        except (UserError, OSError) as error:  # a run replaces files
            message = f"data/ has changed since this page was opened ({error}); once the run has ended, start retemper browse again"
            raise HTTPException(503, message) from None
        name = query_id(query, text)
        grades = corpus.qrels.get(name, {}) | judgments.of(name)
        terms = set(lexical.terms(text))
        hits = []
        for doc, score in zip(ranked.documents, ranked.scores, strict=True):
            title, body = texts[doc]
            hit = {"id": doc, "score": float(score), "title": title, "text": body, "grade": grades.get(doc)}
            hits.append(hit | {"matched": sorted({word for word in lexical.cut(body) if terms.intersection(lexical.terms(word))})})
        return {"hits": hits, "relevant": sum(grade > 0 for grade in grades.values())}

    @app.post("/api/judge")
    def judge(judgment: Judgment) -> dict[str, str]:
        if judgment.query is not None and judgment.query not in corpus.queries and not judgment.query.startswith(TYPED):
            raise HTTPException(404, f"no query {judgment.query} in {corpus.split}")
        if judgment.query is None and not judgment.text:
            raise HTTPException(422, "text: empty, expected the query that was typed")
        if ordinals(pa.chunked_array([[judgment.doc]], pa.string()), corpus.documents)[0] < 0:
            raise HTTPException(404, f"no document {judgment.doc} in the corpus")
        corpus_grade = corpus.qrels.get(query_id(judgment.query, judgment.text), {}).get(judgment.doc, 0)
        try:
            return {"query": judgments.add(judgment, corpus_grade)}
        except (UserError, OSError) as error:  # someone has edited the batch, or a disk is full
            raise HTTPException(503, f"the judgment is not written: {error}") from None

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        """One line, without what was found: half a character cannot be sent."""
        fault = error.errors()[0]
        return JSONResponse({"detail": f"{'.'.join(str(part) for part in fault['loc'][1:])}: {fault['msg']}"}, status_code=422)

    return app


def _grades(path: Path) -> dict[tuple[str, str], int]:
    """The grades of qrels by query and document. Raises UserError if they are not as `Judgments` writes them, as it would lose the rest."""
    grades = {}
    for number, line in _lines(path):
        cells = line.split("\t")
        if number == 1 and line != HEADER:
            raise UserError(f"{path}:1: found {line[:SHOWN]!r}, expected the header {HEADER!r}; {REMEDY}")
        if number > 1 and (len(cells) != 3 or not is_grade(cells[2])):
            raise UserError(f"{path}:{number}: found {line[:SHOWN]!r}, expected a query, a document, and a grade, with tabs; {REMEDY}")
        if number > 1:
            grades[cells[0], cells[1]] = int(cells[2])
    return grades


def _typed(path: Path) -> dict[str, str]:
    """The texts of queries by id. Raises UserError if they are not as `Judgments` writes them."""
    texts = {}
    for number, line in _lines(path):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if not isinstance(record, dict) or record.keys() != {"_id", "text"} or not all(map(_is_text, record.values())):
            raise UserError(f"{path}:{number}: found {line[:SHOWN]!r}, expected an object with _id and text alone, both texts; {REMEDY}")
        texts[record["_id"]] = record["text"]
    return texts


def _is_text(value: object) -> bool:
    return isinstance(value, str) and not HALVES.search(value)


def _lines(path: Path) -> list[tuple[int, str]]:
    """The lines of a file that are not empty, with their numbers; none if there is no file."""
    if not path.exists():
        return []
    try:
        text = path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: cannot be read ({error}), expected UTF-8; {REMEDY}") from None
    return [(number, line) for number, line in enumerate(text.split("\n"), 1) if line]


def _values(path: Path, metric: str) -> Mapping[str, float]:
    """A system's values by query; empty if it was not measured."""
    metrics = path.parent.parent.parent / "metrics" / f"{path.parent.name}.json"
    if not path.exists() or not metrics.exists():
        return {}
    measured = read_json(metrics)[path.stem]
    if metric not in measured:
        raise UserError(f"params.yaml: report.metric: found {metric!r}, expected one of evaluate.measures: {', '.join(measured)}")
    return values_of(path, metric)


def arguments() -> ArgumentParser:
    """The command line."""
    command_line = system_arguments(
        parser(
            __doc__ or "",
            documents="documents.parquet of the corpus",
            tokens="token folder",
            corpus="corpus folder",
            values="folder of the systems' measures for every query",
            batch="folder to write judgments to",
        )
    )
    command_line.add_argument("--split", choices=MEASURED, default=MEASURED[0], help="split whose queries are shown")
    command_line.add_argument("--chosen", nargs=2, required=True, metavar="SYSTEM", help="the two systems shown first")
    command_line.add_argument("--metric", required=True, help="measure of the values")
    command_line.add_argument("--port", type=int, default=0, help="port to listen on; 0: any free port")
    return command_line


def main() -> None:
    args = arguments().parse_args()
    systems = open_systems(args, resident=True)
    args.systems = systems.names
    app = create_app(systems, Corpus(args), Judgments(args.batch, args.split), LexicalSystem(args.lexical))
    serve_local(app, args.port, f"judgments are written to {args.batch}")


if __name__ == "__main__":
    with stage(), suppress(KeyboardInterrupt):  # the usual way to stop it
        main()
