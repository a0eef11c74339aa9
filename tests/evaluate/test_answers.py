"""Coverage against DPR's code written out, on texts with accents, signs, and answers of many words."""

import json
import random
import re
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tasks.core.errors import UserError
from tasks.core.metrics.measures import means, parse
from tasks.core.stage.frozen import freeze_parameters
from tasks.core.statistics.judged import click_id
from tasks.core.tables.parquet import write_table
from tasks.core.tables.schemas import DOCUMENTS, QRELS, QUERIES
from tasks.evaluate.answers import contains, normalized_tokens
from tasks.evaluate.split import evaluate_split

CLICK_1 = click_id("1")


def category_words(text: str) -> list[str]:
    """SimpleTokenizer by unicode categories, a character at a time."""
    words, last = [], False
    for sign in unicodedata.normalize("NFD", text):
        kind = unicodedata.category(sign)[0]
        if kind in "LNM":
            words[-1:] = [words[-1] + sign] if last else [*words[-1:], sign]
        elif kind not in "ZC":
            words.append(sign)
        last = kind in "LNM"
    return [word.lower() for word in words]


@pytest.mark.parametrize(
    "text",
    ["The U.S. won 3-1, in Zürich!", "naïve\u00a0café\tÉTÉ", "a_b", "日本 12½ ²", "Straße\u200bende", "", " . ", "नमस्ते दुनिया", "x\u0301y"],
)
def test_words_are_simple_tokenizers(text: str) -> None:
    assert normalized_tokens(text) == category_words(text)


def test_answers_are_whole_tokens_in_a_row() -> None:
    text = normalized_tokens("In 1912, the New York Times wrote of the Titanic.")
    for answer, expected in (("new york", True), ("York New", False), ("Tita", False), ("1912,", True), ("1912 the", False), ("", False)):
        assert contains(text, normalized_tokens(answer)) is expected
    assert contains(normalized_tokens("Zu\u0308rich"), normalized_tokens("Z\u00fcrich"))


def corpus(folder: Path, documents: dict[str, str], answers: dict[str, list[str]]) -> None:
    write_table(folder / "documents.parquet", DOCUMENTS, [_table(DOCUMENTS, [(doc, "Paris", text) for doc, text in documents.items()])])
    rows = [(query, "what?", texts) for query, texts in answers.items()]
    write_table(folder / "queries" / "test.parquet", QUERIES, [_table(QUERIES, rows)])


def _table(schema: pa.Schema, rows: list[tuple[Any, ...]]) -> pa.Table:
    return pa.table([list(column) for column in zip(*rows, strict=True)], schema=schema)


def test_coverage_of_a_run_equals_a_plain_loop(tmp_path: Path) -> None:
    draw = random.Random(1)
    vocabulary = [f"w{n}" for n in range(30)]
    documents = {f"d{n}": " ".join(draw.choices(vocabulary, k=12)) + "." for n in range(60)}
    answers = {f"q{n}": [" ".join(draw.choices(vocabulary, k=draw.choice([1, 2]))).upper() for _ in range(2)] for n in range(40)}
    corpus(tmp_path, documents, answers)
    lists = {query: draw.sample(sorted(documents), 12) for query in list(answers)[:35]}  # five queries have no list
    lines = [f"{query} Q0 {doc} {rank} {1 / rank} x\n" for query, docs in lists.items() for rank, doc in enumerate(docs, 1)]
    (tmp_path / "test.trec").write_text("".join(lines))
    qrels = {query: {"d0": 1} for query in answers}
    names = ["Coverage@1", "AP", "Coverage@5", "Coverage@12"]
    measured = evaluate_split(tmp_path / "test.trec", qrels, parse(names, 1), corpus=tmp_path, split="test")
    assert len(measured) == 40
    found_means = means(names, measured)
    for k in (1, 5, 12):
        hits = sum(
            any(re.search(rf"(?<!\w){answer.lower()}(?!\w)", documents[doc]) for doc in lists.get(query, [])[:k] for answer in texts)
            for query, texts in answers.items()
        )
        assert found_means[f"Coverage@{k}"] == pytest.approx(hits / 40)
    assert 0 < found_means["Coverage@1"] < found_means["Coverage@5"] < found_means["Coverage@12"] < 1


def test_a_judged_query_without_answers_is_refused(tmp_path: Path) -> None:
    corpus(tmp_path, {"d": "text"}, {"q": ["text"], "p": [" "]})
    (tmp_path / "test.trec").write_text("q Q0 d 1 1.0 x\n")
    with pytest.raises(UserError, match="query p has no answers, expected at least one for Coverage"):
        evaluate_split(tmp_path / "test.trec", {"p": {"d": 1}}, parse(["Coverage@5"], 1), corpus=tmp_path, split="test")


def test_click_queries_alone_are_measured_without_coverage(tmp_path: Path) -> None:
    corpus(tmp_path, {"d": "text"}, {"q": ["text"]})
    (tmp_path / "queries" / "dev.parquet").write_bytes((tmp_path / "queries" / "test.parquet").read_bytes())
    (tmp_path / "dev.trec").write_text(f"{CLICK_1} Q0 d 1 1.0 x\n")
    qrels = {CLICK_1: {"d": 1}}
    measured = evaluate_split(tmp_path / "dev.trec", qrels, parse(["Coverage@5", "AP"], 1), corpus=tmp_path, split="dev")
    assert measured == {CLICK_1: {"AP": 1.0}}
    with pytest.raises(UserError, match="dev: all judged queries come from clicks, which have no answers"):
        evaluate_split(tmp_path / "dev.trec", qrels, parse(["Coverage@5"], 1), corpus=tmp_path, split="dev")


def test_documents_or_queries_twice_in_a_run_are_refused(tmp_path: Path) -> None:
    for lines, message in (
        (["q Q0 d 1 2 x", "q Q0 e 2 1 x", "q Q0 d 3 0 x"], "found document d twice for query q"),
        (["q Q0 d 1 2 x", "p Q0 d 1 1 x", "q Q0 e 2 1 x"], "found lines of query q in two places"),
    ):
        (tmp_path / "test.trec").write_text("\n".join(lines) + "\n")
        with pytest.raises(UserError, match=message):
            evaluate_split(tmp_path / "test.trec", {"q": {"d": 1}}, parse(["AP"], 1), corpus=tmp_path, split="test")


def test_the_stage_measures_coverage_where_it_is_asked_for(tmp_path: Path) -> None:
    corpus(tmp_path, {"d": "Paris, France", "e": "Rome"}, {"q": ["paris"], "p": ["Oslo"], "r": ["Rome"]})
    for split, rows in (("dev", []), ("test", [("q", "d", 1), ("p", "d", 1), ("r", "d", 0)])):
        write_table(tmp_path / "qrels" / f"{split}.parquet", QRELS, [_table(QRELS, rows)] if rows else [])
    (tmp_path / "test.trec").write_text("q Q0 e 1 2.0 x\nq Q0 d 2 1.0 x\np Q0 e 1 1.0 x\nr Q0 e 1 1.0 x\n")
    (tmp_path / "params.yaml").write_text("evaluate: {measures: [Coverage@1, AP, Coverage@2]}\n")
    freeze_parameters(tmp_path)
    command = [sys.executable, "-m", "tasks.evaluate", "--name", "bm25"]
    command += ["--runs", ".", "--corpus", ".", "--values", "values", "--metrics", "metrics.json"]
    environment = {"PYTHONPATH": str(Path(__file__).parents[2])}
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "bm25: test, 1 query without a relevant document, counted as 0 in binary measures\n" in result.stdout
    expected = {"Coverage@1": 1 / 3, "AP": 0.5 / 3, "Coverage@2": 2 / 3}
    assert json.loads((tmp_path / "metrics.json").read_text()) == {"test": pytest.approx(expected)}
    write_table(tmp_path / "qrels" / "dev.parquet", QRELS, [_table(QRELS, [("q", "d", 1), (CLICK_1, "d", 1)])])
    (tmp_path / "queries" / "dev.parquet").write_bytes((tmp_path / "queries" / "test.parquet").read_bytes())
    (tmp_path / "dev.trec").write_text(f"q Q0 d 1 2.0 x\n{CLICK_1} Q0 d 1 1.0 x\n")
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert (metrics["dev"], metrics["clicks"]) == ({"Coverage@1": 1.0, "AP": 1.0, "Coverage@2": 1.0}, {"AP": 1.0}), (
        "no answers are asked of clicks"
    )
    (tmp_path / "documents.parquet").unlink()
    (tmp_path / "params.yaml").write_text("evaluate: {measures: [AP]}\n")
    freeze_parameters(tmp_path)
    assert subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True).returncode == 0, "no text is read"
