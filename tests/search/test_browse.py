"""`python -m tasks.search.browse`: what the page asks for, judgments on disk, and what is refused."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastapi import HTTPException
from fastapi.testclient import TestClient

from flows.feedback.judgments import take_in
from tasks.core.errors import UserError
from tasks.core.lexical.build import build, save
from tasks.core.lexical.params import BM25
from tasks.core.retrieval.fusion import Ranked
from tasks.core.tables.schemas import DOCUMENTS
from tasks.core.text.analysis import analyzer
from tasks.search import browse
from tasks.search.__main__ import open_systems
from tasks.search.browse import TYPED, Corpus, Judgment, Judgments, arguments, create_app, main, query_id
from tasks.search.lists import LexicalSystem

SYSTEMS = ["--model", "tower", "data/encoders/tower", "data/indexes/warmup", "--lexical", "data/bm25"]
SYSTEMS += ["--fusion", "hybrid", "data/runs/hybrid/fusion.json", "--documents", "data/corpus/documents.parquet", "--tokens", "data/tokens"]
GIVEN = [*SYSTEMS, "--corpus", "data/corpus", "--values", "data/values", "--batch", "inbox/judged", "--chosen", "tower", "bm25"]
GIVEN += ["--metric", "nDCG@10"]


@pytest.fixture
def client(small: Any, monkeypatch: pytest.MonkeyPatch) -> TestClient:
    """The page over a finished project, as main makes it."""
    monkeypatch.chdir(small.folder)
    return make_client(GIVEN)


def make_client(options: list[str], judgments: Judgments | None = None) -> TestClient:
    args = arguments().parse_args(options)
    systems = open_systems(args, resident=True)
    args.systems = systems.names
    judgments = judgments or Judgments(args.batch, args.split)
    return TestClient(create_app(systems, Corpus(args), judgments, LexicalSystem(args.lexical)), base_url="http://localhost")


def stored_values(name: str) -> dict[str, float]:
    table = pq.read_table(f"data/values/{name}/dev.parquet")
    return dict(zip(table["query"].to_pylist(), table["nDCG@10"].to_pylist(), strict=True))


def test_systems_queries_and_results(client: TestClient, small: Any) -> None:
    listing = client.get("/api/systems").json()
    assert listing == {"systems": ["tower", "bm25", "hybrid"], "chosen": ["tower", "bm25"], "split": "dev", "metric": "nDCG@10"}
    first, second = stored_values("tower"), stored_values("bm25")
    rows = client.get("/api/queries", params={"first": "tower", "second": "bm25"}).json()
    assert {row["query"]: (row["first"], row["second"]) for row in rows} == {query: (first[query], second[query]) for query in first}
    assert [row["first"] - row["second"] for row in rows] == sorted(first[query] - second[query] for query in first)

    row = rows[0]
    for name in listing["systems"]:
        results = client.get("/api/search", params={"system": name, "text": row["text"], "k": 5, "query": row["query"]}).json()
        runs = [line.split() for line in (small.folder / f"data/runs/{name}/dev.trec").read_text().splitlines()]
        assert [hit["id"] for hit in results["hits"]] == [line[2] for line in runs if line[0] == row["query"]][:5], "as in the run"
        assert results["relevant"] >= 1
        graded = {hit["id"]: hit["grade"] for hit in results["hits"]}
        grades = {
            qrel["doc"]: qrel["grade"]
            for qrel in pq.read_table("data/corpus/qrels/dev.parquet").to_pylist()
            if qrel["query"] == row["query"]
        }
        assert graded == {doc: grades.get(doc) for doc in graded}


def test_data_that_a_run_replaces_are_told(client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the files are gone, as between two stages of a run
    answer = client.get("/api/search", params={"system": "tower", "text": "a query"})
    assert answer.status_code == 503
    detail = answer.json()["detail"]
    assert detail.startswith("data/ has changed since this page was opened (data/")
    assert detail.endswith("); once the run has ended, start retemper browse again")


def test_matched_words_are_bm25s(client: TestClient) -> None:
    documents = pq.read_table("data/corpus/documents.parquet").to_pylist()
    text = " ".join(documents[0]["text"].split()[:6])
    hit = client.get("/api/search", params={"system": "bm25", "text": text, "k": 1}).json()["hits"][0]
    terms = LexicalSystem(Path("data/bm25")).terms
    words = {word.strip(".,()\"'") for word in hit["text"].split()}
    expected = {word for word in words if set(terms(word)) & set(terms(text))}
    assert hit["matched"]
    assert set(hit["matched"]) >= {word for word in expected if word.isalnum() and len(word) > 1}


def test_judgments_are_a_batch_that_survives_the_session(client: TestClient, small: Any) -> None:
    query = client.get("/api/queries", params={"first": "tower", "second": "bm25"}).json()[0]
    assert client.post("/api/judge", json={"query": query["query"], "text": query["text"], "doc": "d01", "grade": 1}).json() == {
        "query": query["query"]
    }
    client.post("/api/judge", json={"query": query["query"], "text": query["text"], "doc": "d01", "grade": 0})
    typed = client.post("/api/judge", json={"text": "läuft", "doc": "d02", "grade": 2}).json()["query"]
    assert typed.startswith(TYPED)
    qrels = small.folder / "inbox/judged/qrels/dev.tsv"
    assert qrels.read_text() == f"query-id\tcorpus-id\tscore\n{query['query']}\td01\t0\n{typed}\td02\t2\n"
    lines = (small.folder / "inbox/judged/queries.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [{"_id": typed, "text": "läuft"}]

    restarted = make_client(GIVEN)
    restarted.post("/api/judge", json={"text": "more", "doc": "d03", "grade": 1})
    assert len(qrels.read_text().splitlines()) == 4, "what an earlier session judged is kept"


def test_a_listed_query_is_searched_and_judged_without_its_text(client: TestClient, small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's field would drop line breaks, and a query may be longer than one that is typed."""
    query, text = client.get("/api/queries", params={"first": "tower", "second": "bm25"}).json()[0]["query"], "river\nnorth " * 300
    stored, asked = browse.query_texts, []
    monkeypatch.setattr(browse, "query_texts", lambda *of: [*stored(*of), (query, text)])
    monkeypatch.setattr(browse.Systems, "search", lambda _, text, *__: asked.append(text) or Ranked(("d01",), np.ones(1)))
    restarted = make_client(GIVEN)
    assert restarted.get("/api/search", params={"system": "tower", "query": query}).status_code == 200
    assert restarted.get("/api/search", params={"system": "tower", "query": query, "text": "rivernorth"}).status_code == 200
    assert asked == [text, text]
    assert restarted.post("/api/judge", json={"query": query, "doc": "d01", "grade": 1}).json() == {"query": query}
    assert (small.folder / "inbox/judged/qrels/dev.tsv").read_text().splitlines()[1:] == [f"{query}\td01\t1"]
    answer = restarted.post("/api/judge", json={"doc": "d01", "grade": 1})
    assert (answer.status_code, answer.json()["detail"]) == (422, "text: empty, expected the query that was typed")


def test_grades_are_not_read_while_another_is_added(tmp_path: Path) -> None:
    """A dictionary that grows while it is read raises RuntimeError: a search reads the one from before, or the next one."""
    judgments = Judgments(tmp_path, "dev")
    judgments.add(Judgment(query="q", text="x", doc="d1", grade=1))
    before = judgments.grades
    judgments.add(Judgment(query="q", text="x", doc="d2", grade=2))
    assert before == {("q", "d1"): 1}
    assert judgments.of("q") == {"d1": 1, "d2": 2}


@pytest.mark.parametrize(
    ("path", "params", "status", "detail"),
    [
        ("/api/search", {"system": "sun", "text": "x"}, 404, "no system sun, expected one of tower, bm25, hybrid"),
        ("/api/search", {"system": "bm25", "text": "  "}, 400, "the query is empty; enter some words"),
    ],
)
def test_wrong_requests(client: TestClient, path: str, params: dict[str, str], status: int, detail: str) -> None:
    answer = client.get(path, params=params)
    assert (answer.status_code, answer.json()["detail"]) == (status, detail)


@pytest.mark.parametrize(
    "judgment",
    [
        {"text": "x", "doc": "a\tb", "grade": 1},
        {"text": "x", "doc": "d01", "grade": 9},
        {"text": "", "doc": "d01", "grade": 1},
        {"query": "nobody", "text": "x", "doc": "d01", "grade": 1},
        {"text": "x", "doc": "nowhere", "grade": 1},
    ],
)
def test_wrong_judgments_write_nothing(client: TestClient, small: Any, judgment: dict[str, Any]) -> None:
    assert client.post("/api/judge", json=judgment).status_code in (400, 404, 422)
    assert not (small.folder / "inbox").exists()
    with pytest.raises(HTTPException, match="an id with a tab or a line end"):
        Judgments(Path("inbox/judged"), "dev").add(Judgment(text="x", doc="a\tb", grade=1))
    assert not (small.folder / "inbox").exists()


@pytest.mark.parametrize("headers", [{"host": "evil.example"}, {"origin": "http://evil.example"}, {"origin": "null"}])
def test_other_pages_get_no_answer(client: TestClient, small: Any, headers: dict[str, str]) -> None:
    assert client.get("/api/systems", headers=headers).status_code == 403
    assert client.post("/api/judge", json={"text": "x", "doc": "a", "grade": 1}, headers=headers).status_code == 403
    assert not (small.folder / "inbox").exists()


def test_a_port_that_is_taken_is_one_line(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    monkeypatch.chdir(small.folder)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        monkeypatch.setattr(sys, "argv", ["browse", *GIVEN, "--port", str(port)])
        with pytest.raises(UserError, match=f"--port {port}: is taken, expected a free one"):
            main()


@pytest.mark.skipif(not shutil.which("chromium"), reason="no chromium")
def test_the_page_lists_queries_in_a_browser(small: Any, tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "tasks.search.browse", *GIVEN], cwd=small.folder, stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout
            address = server.stdout.readline().split()[0]
            command = [
                "chromium",
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                f"--user-data-dir={tmp_path}",
                "--virtual-time-budget=20000",
            ]
            page = subprocess.run([*command, "--dump-dom", address], stdout=subprocess.PIPE, text=True, check=True, timeout=120).stdout
        finally:
            server.terminate()
    first, second = (json.loads((small.folder / f"data/metrics/{name}.json").read_text()) for name in ("tower", "bm25"))
    assert first["dev"]["nDCG@10"] != second["dev"]["nDCG@10"]
    assert 'aria-pressed="true">lost' in page
    assert '<option value="hybrid">hybrid</option>' in page
    assert " dev queries by nDCG@10, against bm25<" in page
    assert '<span dir="auto">' in page, "a query runs in its own direction"


def test_a_second_session_reads_what_the_first_has_written(tmp_path: Path) -> None:
    """Quotes are part of an id, and of what is typed only a line feed ends a line."""
    first = Judgments(tmp_path, "dev")
    for query, doc in (('"q', "d1"), ("q", 'd"1"'), ("'q'", '"')):
        first.add(Judgment(query=query, text="x", doc=doc, grade=2))
    texts = ["one\u2028two", "three\u0085four\x1c", 'fi"ve\nsix']
    typed = [first.add(Judgment(text=text, doc="d", grade=1)) for text in texts]

    reopened = Judgments(tmp_path, "dev")
    assert reopened.grades == first.grades and len(reopened.grades) == 6
    typed.append(reopened.add(Judgment(text="seven", doc="d", grade=0)))
    lines = (tmp_path / "queries.jsonl").read_bytes().decode().removesuffix("\n").split("\n")
    assert [json.loads(line) for line in lines] == [
        {"_id": query, "text": text} for query, text in zip(typed, [*texts, "seven"], strict=True)
    ]
    assert Judgments(tmp_path, "dev").grades == reopened.grades
    (tmp_path / "queries.jsonl").write_text("")  # as retemper forget leaves it
    assert Judgments(tmp_path, "dev").grades == reopened.grades


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("qrels/dev.tsv", "q\td\t1\n", "dev.tsv:1: found 'q\\td\\t1', expected the header 'query-id\\tcorpus-id\\tscore'"),
        ("qrels/dev.tsv", "query-id\tcorpus-id\tscore\tweight\n", "dev.tsv:1: found 'query-id"),
        ("qrels/dev.tsv", "query-id\tcorpus-id\tscore\n\nq\td\tyes\n", "dev.tsv:3: found 'q\\td\\tyes', expected a query, a document"),
        ("qrels/dev.tsv", "query-id\tcorpus-id\tscore\nq\td\t1\t0.5\n", "dev.tsv:2: found 'q\\td\\t1\\t0.5', expected a query"),
        ("qrels/dev.tsv", "\xe4".encode("latin-1"), "dev.tsv: cannot be read ("),
        ("queries.jsonl", '{"_id": "q"', 'queries.jsonl:1: found \'{"_id": "q"\', expected an object with _id and text alone'),
        ("queries.jsonl", '{"_id": "q", "text": "t", "metadata": {}}\n', "queries.jsonl:1: found "),
        ("queries.jsonl", '{"_id": [1], "text": "t"}\n', 'queries.jsonl:1: found \'{"_id": [1], "text": "t"}\', expected an object'),
        ("queries.jsonl", '{"_id": "q", "text": "\\ud800"}\n', "queries.jsonl:1: found "),
        ("queries.jsonl", "[" * 100_000 + "\n", "queries.jsonl:1: found '[["),
    ],
)
def test_a_batch_that_would_lose_something_is_refused(tmp_path: Path, name: str, content: str | bytes, message: str) -> None:
    """Each judgment writes both files again, with what was read of them."""
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError) as error:
        Judgments(tmp_path, "dev")
    assert str(error.value).startswith(f"{path.parent}/{message}")
    assert str(error.value).endswith("; name another --batch, or fix that line")


def test_two_pages_add_to_one_batch(tmp_path: Path) -> None:
    first, second = Judgments(tmp_path, "dev"), Judgments(tmp_path, "dev")
    for number, judgments in enumerate((first, second, first, second)):
        judgments.add(Judgment(text=f"text {number}", doc=f"d{number}", grade=1))
    queries, qrels = tmp_path / "queries.jsonl", tmp_path / "qrels/dev.tsv"
    assert [json.loads(line)["text"] for line in queries.read_text().splitlines()] == [f"text {number}" for number in range(4)]
    assert [line.split("\t")[1:] for line in qrels.read_text().splitlines()[1:]] == [[f"d{number}", "1"] for number in range(4)]
    for path in (queries, qrels):  # as retemper forget does
        path.write_text("".join(line for line in path.read_text().splitlines(keepends=True) if "text 1" not in line and "d1" not in line))
    first.add(Judgment(query="q", text="x", doc="d9", grade=0))
    assert [line.split("\t")[1] for line in qrels.read_text().splitlines()[1:]] == ["d0", "d2", "d3", "d9"]
    assert "text 1" not in queries.read_text()
    assert not list(tmp_path.rglob(".*")), "the inbox has no lock file"


@pytest.fixture
def judging(tmp_path: Path) -> TestClient:
    """The page over a corpus of query q, one that was typed once, and documents d1, grade 3, d2, not judged; nothing can be searched."""
    documents = tmp_path / "documents.parquet"
    pq.write_table(pa.table([["d1", "d2"], ["", ""], ["one", "two"]], schema=DOCUMENTS), documents)
    corpus: Any = SimpleNamespace(
        documents=documents, split="dev", queries={"q": "x"}, qrels={"q": {"d1": 3}, query_id(None, "typed"): {"d1": 3}}
    )
    unused: Any = None
    return TestClient(create_app(unused, corpus, Judgments(tmp_path / "batch", "dev"), unused), base_url="http://localhost")


@pytest.mark.parametrize("query", [{"query": "q"}, {"text": "typed"}])
def test_a_click_on_relevant_keeps_a_higher_grade(judging: TestClient, tmp_path: Path, query: dict[str, str]) -> None:
    qrels = tmp_path / "batch/qrels/dev.tsv"
    for doc, grade, expected in (
        ("d1", 1, 3),
        ("d1", 0, 0),
        ("d1", 1, 3),
        ("d2", 0, 0),
        ("d2", 2, 2),
        ("d2", 1, 2),
        ("d2", 0, 0),
        ("d2", 1, 1),
    ):
        assert judging.post("/api/judge", json={**query, "doc": doc, "grade": grade}).status_code == 200
        assert dict(line.split("\t")[1:] for line in qrels.read_text().splitlines()[1:])[doc] == str(expected), (doc, grade)


def test_half_a_character_is_refused_without_sending_it_back(judging: TestClient, tmp_path: Path) -> None:
    body = {"content": b'{"text": "\\ud800", "doc": "d1", "grade": 1}', "headers": {"content-type": "application/json"}}
    answer = judging.post("/api/judge", **body)
    assert answer.status_code == 422
    assert answer.json() == {"detail": "text: Input should be a valid string, unable to parse raw data as a unicode string"}
    assert not (tmp_path / "batch").exists()


def test_a_batch_that_is_invalid_by_now_is_reported_and_left(judging: TestClient, tmp_path: Path) -> None:
    qrels = tmp_path / "batch/qrels/dev.tsv"
    qrels.parent.mkdir(parents=True)
    qrels.write_text("a note\n")
    answer = judging.post("/api/judge", json={"query": "q", "text": "x", "doc": "d1", "grade": 1})
    assert answer.status_code == 503
    assert answer.json()["detail"].startswith(f"the judgment is not written: {qrels}:1: found 'a note', expected the header")
    assert qrels.read_text() == "a note\n"


def test_judgments_of_a_spreadsheet_can_be_added_to(tmp_path: Path) -> None:
    """What `retemper judgments` writes, and an empty line that an editor left."""
    (tmp_path / "suspects.csv").write_text("query-id,corpus-id,score\nq,d1,2\nq,d2,\n")
    take_in(tmp_path / "suspects.csv", tmp_path, "dev")
    with (tmp_path / "qrels/dev.tsv").open("a") as handle:
        handle.write("\n")
    judgments = Judgments(tmp_path, "dev")
    judgments.add(Judgment(query="q", text="x", doc="d3", grade=0))
    assert (tmp_path / "qrels/dev.tsv").read_text() == "query-id\tcorpus-id\tscore\nq\td1\t2\nq\td3\t0\n"


def test_no_other_page_shows_this_one_in_a_frame(tmp_path: Path) -> None:
    unused: Any = None
    page = TestClient(create_app(unused, unused, Judgments(tmp_path, "dev"), unused), base_url="http://localhost").get("/")
    assert page.status_code == 200
    assert "frame-ancestors 'none'" in page.headers["Content-Security-Policy"].split("; ")


def test_matched_bigrams_stand_in_the_text(tmp_path: Path) -> None:
    """Each as it stands there, so that the page can mark it: not a whole sentence because one of its bigrams is in the query."""
    documents = {"1": "北京大学位于海淀区", "2": "ＩＰｈｏｎｅ系统, Fishes"}
    for cjk in ("bigrams", "words"):
        params = BM25.model_validate({"cjk": cjk})
        terms = analyzer(params.stemmer, params.stopwords, cjk)
        scratch = tmp_path / f"{cjk}.postings"
        scratch.mkdir()
        save(tmp_path / cjk, build(documents.values(), terms, params, scratch), [pa.array(list(documents))], params)
    matches = {
        cjk: [
            {word for word in lexical.cut(text) if set(lexical.terms(word)) & set(lexical.terms("海淀区 iphone 系统 fish"))}
            for text in documents.values()
        ]
        for cjk in ("bigrams", "words")
        if (lexical := LexicalSystem(tmp_path / cjk))
    }
    assert matches["bigrams"] == [{"海淀", "淀区"}, {"ＩＰｈｏｎｅ", "系统", "Fishes"}]
    assert matches["words"] == [set(), {"Fishes"}]


def test_ctrl_c_is_no_error() -> None:
    """Not even before the page is served; `retemper browse` says that it is stopped."""
    interrupted = "def interrupted(*_, **__): raise KeyboardInterrupt\n"
    script = f"import runpy\nfrom tasks.core.stage import entry\n{interrupted}entry.parser = interrupted\n"
    script += "runpy.run_module('tasks.search.browse', run_name='__main__')"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
