"""The endpoints over real HTTP: answers, swaps under load, what is refused, what is counted and logged."""

import json
import os
import re
import socket
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pyarrow.parquet as pq
import pytest

from flows.serving.follow import replace_link
from tasks.search.__main__ import arguments, open_systems
from tasks.search.server.app import Settings
from tasks.search.server.limits import is_host
from tasks.search.server.log import Log

QUERIES = ("German politician", "a river in the north", "1925 novel", "zzz", "läuft 日本", "rock band from England")
SYSTEMS = ["--model", "tower", "data/encoders/tower", "data/indexes/warmup", "--model", "warmup", "data/encoders/warmup"]
SYSTEMS += ["data/indexes/warmup", "--lexical", "data/bm25", "--fusion", "hybrid", "data/runs/hybrid/fusion.json"]
SYSTEMS += ["--documents", "data/corpus/documents.parquet", "--tokens", "data/tokens", "--query", "unused"]


def search_results(model: str, query: str, k: int) -> list[tuple[str, float]]:
    """What `retemper search` finds."""
    results = open_systems(arguments().parse_args(SYSTEMS)).search(query, model, k)
    return list(zip(results.documents, map(float, results.scores), strict=True))


def hits_of(answer: Any) -> list[tuple[str, float]]:
    return [(hit["id"], hit["score"]) for hit in answer["hits"]]


def test_answers_are_those_of_search_and_come_with_texts(serving: Any) -> None:
    texts = {row["id"]: (row["title"], row["text"]) for row in pq.read_table("data/corpus/documents.parquet").to_pylist()}
    with serving() as server:
        for query in QUERIES:
            answer = httpx.get(f"{server.url}/search", params={"q": query, "k": 7}).json()
            assert hits_of(answer) == search_results("hybrid", query, 7), "to the last bit"
            assert answer["model"] == "hybrid"
            assert [hit["rank"] for hit in answer["hits"]] == list(range(1, len(answer["hits"]) + 1))
            assert all((hit["title"], hit["text"]) == texts[hit["id"]] for hit in answer["hits"])
            assert hits_of(httpx.post(f"{server.url}/search", json={"query": query, "k": 7}).json()) == hits_of(answer)
        answers = httpx.post(f"{server.url}/search", json={"queries": list(QUERIES), "k": 3}).json()["results"]
        assert [hits_of(answer) for answer in answers] == [search_results("hybrid", query, 3) for query in QUERIES]
        health = httpx.get(f"{server.url}/health").json()
        assert (health["status"], health["model"], health["documents"]) == ("ok", "hybrid", 60)


def test_a_swap_under_load_loses_no_request_and_mixes_no_answers(serving: Any, exports: Path) -> None:
    expected = {(model, query): search_results(model, query, 5) for model in ("hybrid", "warmup") for query in QUERIES}
    wrong_answers, models_seen, finished = list[str](), list[str](), threading.Event()

    def ask(number: int) -> None:
        try:
            with httpx.Client(timeout=120) as client:
                while not finished.is_set():
                    query = QUERIES[number % len(QUERIES)]
                    number += 1
                    answer = client.get(f"{server.url}/search", params={"q": query, "k": 5})
                    if answer.status_code != 200 or hits_of(answer.json()) != expected[answer.json()["model"], query]:
                        wrong_answers.append(answer.text)
                    models_seen.append(answer.json().get("model", ""))
        except Exception as error:
            wrong_answers.append(repr(error))

    with serving() as server:
        threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for model in ("warmup", "hybrid", "warmup"):
            before = len(models_seen)
            replace_link(exports / "current", model)
            server.current.look()
            assert server.current.served.label == model
            while len(models_seen) < before + 30 and not wrong_answers:
                time.sleep(0.01)
        finished.set()
        for thread in threads:
            thread.join()
        text = httpx.get(f"{server.url}/metrics").text
    assert wrong_answers == []
    assert {"hybrid", "warmup"} == set(models_seen)
    assert 'retemper_swaps_total{result="done"} 3.0' in text
    assert f'retemper_requests_total{{endpoint="/search",status="200"}} {len(models_seen)}.0' in text
    assert f"retemper_request_seconds_count {len(models_seen)}.0" in text
    assert 'retemper_model_info{model="warmup"} 1.0' in text
    quantiles = dict(re.findall(r'retemper_latency_seconds{quantile="(.+?)"} (\S+)', text))
    assert 0 < float(quantiles["0.5"]) <= float(quantiles["0.99"])
    sizes = float(re.findall(r"retemper_batch_queries_sum (\S+)", text)[0])
    assert sizes == len(models_seen)


def test_a_model_that_cannot_be_loaded_leaves_the_old_one(serving: Any, exports: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (exports / "broken").mkdir()
    (exports / "broken/serving.json").write_text("{}")
    with serving() as server:
        replace_link(exports / "current", "broken")
        server.current.look()
        assert hits_of(httpx.get(f"{server.url}/search", params={"q": "river", "k": 2}).json()) == search_results("hybrid", "river", 2)
        assert "broken/serving.json: not the record of an export" in httpx.get(f"{server.url}/health").json()["problem"]
        assert 'retemper_swaps_total{result="failed"} 1.0' in httpx.get(f"{server.url}/metrics").text
        output = capsys.readouterr().out
        assert output.startswith("warning: still serving hybrid, the next model cannot be loaded: ") and output.count("\n") == 1
        server.current._again = 0.0
        server.current.look()
        assert capsys.readouterr().out == "", "a second attempt that fails as the first is not said again"
        record = exports / "broken/serving.json"
        stat = record.stat()
        for path in (exports / "warmup").iterdir():  # the rest of a copy arrives, under the times that it had
            if path.name != "serving.json":
                (exports / "broken" / path.name).symlink_to(path)
        record.write_bytes((exports / "warmup/serving.json").read_bytes())
        os.utime(record, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        server.current.look()
        assert server.current.served.label == "hybrid", "not at every look"
        server.current._again = 0.0
        server.current.look()
        assert (server.current.served.label, server.current.problem) == ("warmup", "")
        replace_link(exports / "current", "hybrid")
        server.current.look()
        assert server.current.served.label == "hybrid"
        replace_link(exports / "current", "warmup")
        server.current.look()
        assert httpx.get(f"{server.url}/health").json()["problem"] == ""
        assert "retemper_problem 0.0" in httpx.get(f"{server.url}/metrics").text
        (exports / "problem").write_text("champion/3 cannot be served yet")
        assert httpx.get(f"{server.url}/health").json()["problem"] == "champion/3 cannot be served yet"
        assert "retemper_problem 1.0" in httpx.get(f"{server.url}/metrics").text
        replace_link(exports / "current", "broken")
        (exports / "broken/serving.json").write_text("{}")
        server.current.look()
        problem = httpx.get(f"{server.url}/health").json()["problem"]
        assert problem.startswith("champion/3 cannot be served yet; ") and "not the record of an export" in problem


JSON = {"content-type": "application/json"}


def test_requests_that_are_refused(serving: Any) -> None:
    cases: list[tuple[str, str, dict[str, Any], int, str]] = [
        ("GET", "/search", {}, 400, "the query is empty; enter some words"),
        ("GET", "/search?q=%20", {}, 400, "the query is empty; enter some words"),
        ("GET", f"/search?q={'x' * 2001}", {}, 400, "the query has 2,001 characters, expected at most 2,000"),
        ("GET", "/search?q=x&k=0", {}, 400, "k: found 0, expected 1 to 100"),
        ("GET", "/search?q=x&k=101", {}, 400, "k: found 101, expected 1 to 100"),
        ("GET", "/search?q=x&k=many", {}, 422, 'k: found "many", expected a whole number from 1 to 100'),
        ("POST", "/search", {"content": "{", "headers": JSON}, 422, "found no JSON (EOF while parsing an object at line 1 column 1"),
        ("POST", "/search", {"json": {}}, 422, "expected either query or queries"),
        ("POST", "/search", {"json": {"query": "x", "queries": ["x"]}}, 422, "expected either query or queries"),
        ("POST", "/search", {"json": {"queries": ["x", " "]}}, 400, "the query is empty; enter some words"),
        ("POST", "/search", {"json": {"queries": ["x"] * 65}}, 422, "queries: found a list of 65, expected a list of 1 to 64 texts"),
        ("GET", "/search?query=x", {}, 422, "query: found an unknown key, expected q and k (GET /search)"),
        ("GET", "/search?q=x&top_k=2", {}, 422, "top_k: found an unknown key, expected q and k (GET /search)"),
        ("POST", "/search", {"json": {"query": "x", "depth": 3}}, 422, "depth: found an unknown key, expected query, queries, k (/search"),
        ("POST", "/search", {"json": {"query": "x", "k": True}}, 422, "k: found true, expected a whole number from 1 to 100"),
        ("POST", "/search", {"json": {"query": "x", "k": "5"}}, 422, 'k: found "5", expected a whole number from 1 to 100'),
        ("POST", "/click", {"json": {"query_id": "a" * 32, "doc": "d", "position": "1"}}, 422, 'position: found "1", expected a whole'),
        ("POST", "/search", {"json": {"query": "x", "k": 0}}, 422, "k: found 0, expected a whole number from 1 to 100"),
        ("POST", "/search", {"json": {"query": "x", "k": 101}}, 422, "k: found 101, expected a whole number from 1 to 100"),
        ("POST", "/search", {"json": {"query": "x" * 2001}}, 422, "query: found 2,001 characters, expected text of at most"),
        ("POST", "/search", {"json": {"queries": []}}, 422, "queries: found a list of 0, expected a list of 1 to 64 texts"),
        ("POST", "/search", {"json": {"queries": ["x", 3]}}, 422, "queries.1: found 3, expected text"),
        ("POST", "/search", {"json": ["x"]}, 422, "found a list of 1, expected an object"),
        ("POST", "/click", {"json": {"query_id": "a" * 32, "position": 1}}, 422, "doc: missing, expected text of 1 to 2,000 characters"),
        ("POST", "/click", {"json": {"query_id": "a" * 32, "doc": "", "position": 1}}, 422, 'doc: found "", expected text of 1 to 2,000'),
        ("POST", "/click", {"json": {"query_id": {}, "doc": "d", "position": 1}}, 422, "query_id: found an object, expected the id"),
        ("POST", "/click", {"json": {"query_id": "a" * 32, "doc": "d", "position": 0}}, 422, "position: found 0, expected a whole number"),
        ("POST", "/search", {"content": '{"query": "x"}'}, 415, "expected content-type: application/json"),
        ("POST", "/search", {"content": b" " * (256 * 1024 + 1), "headers": JSON}, 413, "the body has more than 262,144 bytes"),
        ("POST", "/search", {"json": {"queries": ["x"] * 3}}, 503, "too many queries are waiting; try again"),
        (
            "POST",
            "/click",
            {"json": {"query_id": "../x", "doc": "d1", "position": 1}},
            422,
            'query_id: found "../x", expected the id of an answer of /search',
        ),
        ("POST", "/click", {"json": {"query_id": "a" * 32, "doc": "d1", "position": 1}}, 404, "queries are not logged; start"),
        ("DELETE", "/search", {}, 405, "Method Not Allowed"),
        ("GET", "/docs", {}, 404, "Not Found"),
    ]
    with serving(Settings(waiting=2)) as server:
        for method, path, options, status, message in cases:
            answer = httpx.request(method, server.url + path, **options)
            assert (answer.status_code, answer.json()["detail"][: len(message)]) == (status, message), (method, path)
            assert answer.headers.get("retry-after") == ("1" if status == 503 else None)
        text = httpx.get(f"{server.url}/metrics").text
        assert 'retemper_requests_total{endpoint="/search",status="503"} 1.0' in text
        assert 'retemper_errors_total{endpoint="/search"} 1.0' in text
        assert 'retemper_requests_total{endpoint="other",status="404"} 1.0' in text, "a made-up path makes no series of its own"
        assert "retemper_request_seconds_count 0.0" in text, "what is refused has no latency"


def test_a_client_that_leaves_amid_its_body_is_no_fault_of_the_server(serving: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with serving() as server:
        host, _, port = server.url.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port))) as client:
            head = f"POST /search HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n"
            client.sendall(head.encode() + b'{"query":')
        text, deadline = "", time.monotonic() + 300
        while 'endpoint="/search"' not in text and time.monotonic() < deadline:
            text = httpx.get(f"{server.url}/metrics").text
    assert 'retemper_requests_total{endpoint="/search",status="400"} 1.0' in text
    assert 'retemper_errors_total{endpoint="/search"} 0.0' in text
    assert "error" not in capsys.readouterr().err


def test_only_those_with_the_key_may_search(serving: Any) -> None:
    with serving(Settings(key="schlüssel", hosts=("127.0.0.1", "search.example"))) as server:
        key = "schlüssel".encode()
        for headers, status in (
            ({}, 401),
            ({"x-api-key": b"other"}, 401),
            ({"authorization": b"Basic " + key}, 401),
            ({"x-api-key": key}, 200),
            ({"x-api-key": key, "sec-fetch-site": "cross-site"}, 200),
            ({"authorization": b"bearer " + key}, 200),
            ({"x-api-key": key, "host": "search.example"}, 200),
            ({"x-api-key": key, "host": "evil.example"}, 400),
        ):
            for path in ("/search?q=x", "/metrics"):
                answer = httpx.get(server.url + path, headers=headers)
                assert answer.status_code == status, (headers, path)
        assert httpx.post(f"{server.url}/click", json={}).status_code == 401
        assert [httpx.get(server.url + path).status_code for path in ("/", "/health")] == [200, 200]


def test_a_refused_host_is_measured_and_answered_as_all_others(serving: Any) -> None:
    with serving(Settings(hosts=("127.0.0.1",))) as server:
        answer = httpx.get(f"{server.url}/health", headers={"host": "evil.example:80"})
        detail = "found the host evil.example:80, expected a name of this server; add --allow-host NAME"
        assert (answer.status_code, answer.json()) == (400, {"detail": detail})
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "default-src 'self'" in answer.headers["content-security-policy"]
        assert 'retemper_requests_total{endpoint="/health",status="400"} 1.0' in httpx.get(f"{server.url}/metrics").text


@pytest.mark.parametrize(
    ("host", "names", "is_one"),
    [
        ("search.example.org", ["localhost", "Search.example.org"], True),
        ("SEARCH.example.org:8080", ["search.example.org"], True),
        ("other.search.example.org", ["search.example.org"], False),
        ("a.example.org", ["*.example.org"], True),
        ("example.org", ["*.example.org"], False),
        ("evilexample.org", ["*.example.org"], False),
        ("search.example.org.evil", ["*.example.org", "search.example.org"], False),
        ("[::1]:8080", ["[::1]"], True),
        ("[::1]", ["[::1]"], True),
        ("", ["localhost"], False),
        ("anything", ["*"], True),
        ("anything", [], False),
    ],
)
def test_names_of_the_server(host: str, names: list[str], is_one: bool) -> None:
    assert is_host(host, names) == is_one


def test_queries_and_clicks_are_logged(serving: Any, tmp_path: Path) -> None:
    def lines(path: Path) -> list[dict[str, Any]]:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

    plain, hashed = tmp_path / "logs/plain.jsonl", tmp_path / "logs/hashed.jsonl"
    errors: list[OSError] = []
    with serving(log=Log(plain, "plain", errors.append)) as server:
        answer = httpx.get(f"{server.url}/search", params={"q": "läuft", "k": 3}).json()
        clicked = {"query_id": answer["id"], "doc": answer["hits"][1]["id"], "position": 2}
        assert httpx.post(f"{server.url}/click", json=clicked).json() == {"status": "ok"}
        image = httpx.get(f"{server.url}/search", params={"q": "river"}, headers={"sec-fetch-site": "cross-site"})
        assert (image.status_code, image.json()["detail"][:45]) == (403, "found a request by a page of another site, ex"), "writes nothing"
        assert httpx.get(server.url, headers={"sec-fetch-site": "cross-site"}).status_code == 200, "a link to the page"
        search, click = lines(plain)
        assert search == {
            "event": "search",
            "id": answer["id"],
            "time": search["time"],
            "query": "läuft",
            "shown": [hit["id"] for hit in answer["hits"]],
            "model": "hybrid",
        }
        assert click == {"event": "click", "id": answer["id"], "time": click["time"], "doc": answer["hits"][1]["id"], "position": 2}
        assert search["time"] <= click["time"]
        plain.rename(tmp_path / "moved")  # logrotate
        plain.parent.joinpath("plain.jsonl").mkdir()  # and a disk that fails
        assert httpx.get(f"{server.url}/search?q=river", headers={"sec-fetch-site": "same-origin"}).status_code == 200, (
            "no answer waits for the log"
        )
        assert len(errors) == 1
    for _ in range(2):  # the second is a restart
        with serving(log=Log(hashed, "hashed", errors.append)) as server:
            for query in ("läuft", "river"):
                httpx.get(f"{server.url}/search", params={"q": query})
    queries = [line["query"] for line in lines(hashed)]
    assert queries[:2] == queries[2:] and len(set(queries)) == 2
    assert all(re.fullmatch("blake2b:[0-9a-f]{32}", query) for query in queries)
    assert {oct(path.stat().st_mode & 0o777) for path in (hashed, hashed.with_name("hashed.jsonl.key"))} == {"0o600"}


def test_the_page_fetches_nothing_from_elsewhere(serving: Any) -> None:
    with serving() as server:
        answer = httpx.get(server.url)
    assert "default-src 'self'" in answer.headers["content-security-policy"]
    assert not re.search(r"(?:src|href)=\"?(?:https?:)?//", answer.text)
