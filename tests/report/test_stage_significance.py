"""What the stage writes of a test of significance: significance.json, the page, table.txt; and its results in MTEB's form."""

import json
import random
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import stats

from tasks.core.files import write_json
from tasks.core.stage.frozen import freeze_parameters
from tasks.core.tables.schemas import DOCUMENTS, QRELS, QUERIES
from tasks.report.__main__ import main

PARAMS = """
dataset: {source: 'beir:data/here'}
text: {titles: false}
report: {metric: nDCG@10, test: permutation, permutations: 5000, baselines: [bm25, init]}
evaluate: {relevance: {test: 2}}
rounds: {init: {init: base, negatives: none}, zeta: {init: base, negatives: bm25}}
"""
MEASURES = ["nDCG@10", "RR@10"]


def write(path: Path, table: pa.Table) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)


def make_project(folder: Path, shared: int = 1) -> None:
    """Three systems of 40 queries a split, `shared` of them about each document; zeta is a little above bm25."""
    (folder / "params.yaml").write_text(PARAMS)
    documents, splits = pa.table([["d1"], [""], ["one"]], schema=DOCUMENTS), ("dev", "test")
    write(folder / "corpus/documents.parquet", documents)
    queries = [f"q{n:02}" for n in range(40)]
    for split in splits:
        write(folder / f"corpus/queries/{split}.parquet", pa.table([queries, queries, [[]] * 40], schema=QUERIES))
        write(folder / f"corpus/qrels/{split}.parquet", pa.table([queries, [f"d{n // shared}" for n in range(40)], [2] * 40], schema=QRELS))
    write_json(folder / "corpus/stats.json", {"documents": {"count": 1}, "splits": {}})
    write_json(folder / "source.json", {"dataset": {"digest": "d1g"}})
    write_json(folder / "failures/groups.json", {"splits": {}, "alpha": 0.05})
    write_json(folder / "failures/worst.json", {})
    for name, level in (("bm25", 0.5), ("init", 0.2), ("zeta", 0.525)):
        rng, metrics = random.Random(name), {}
        for split in splits:
            values = [[min(1.0, max(0.0, level + rng.gauss(0, 0.1))) for _ in queries] for _ in MEASURES]
            write(folder / f"values/{name}/{split}.parquet", pa.table([queries, *values], ["query", *MEASURES]))
            metrics[split] = {measure: sum(row) / 40 for measure, row in zip(MEASURES, values, strict=True)}
            (folder / f"runs/{name}").mkdir(parents=True, exist_ok=True)
            (folder / f"runs/{name}/{split}.trec").write_text("".join(f"{query} Q0 d1 1 1.0 {name}\n" for query in queries))
        write_json(folder / f"metrics/{name}.json", metrics)


def run_report(monkeypatch: pytest.MonkeyPatch) -> str:
    """The page of the project in this folder."""
    names = ("metrics", "values", "runs", "index-metrics", "curves", "failures", "corpus")
    arguments = [part for name in names for part in (f"--{name}", name.replace("-", "_"))]
    monkeypatch.setattr("sys.argv", ["report", *arguments, "--source", "source.json", "--out", "report"])
    freeze_parameters()
    main()
    return Path("report/report.html").read_text()


def test_significance_power_and_mteb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    make_project(tmp_path)
    page = run_report(monkeypatch)
    significance = json.loads((tmp_path / "report" / "significance.json").read_text())
    assert (
        significance["test"]
        == "paired two-sided permutation tests (5,000 sign flips, seed 42) over groups of queries that share relevant documents"
    )
    assert significance["marked"] == {"dev": 0.01, "test": 0.05}
    pair = next(pair for pair in significance["splits"]["test"] if (pair["system"], pair["baseline"]) == ("zeta", "bm25"))
    first, second = (pq.read_table(tmp_path / "values" / name / "test.parquet")["nDCG@10"].to_numpy() for name in ("zeta", "bm25"))
    differences = first - second
    assert pair["effect"]["d"] == pytest.approx(differences.mean() / differences.std(ddof=1))
    assert pair["p"] == pytest.approx(float(stats.ttest_rel(first, second).pvalue), abs=0.03)
    assert not pair["significant"] and pair["warning"].startswith("test, zeta against bm25: 40 queries show a difference of 0.0")
    output = capsys.readouterr().out
    assert pair["warning"] in page and f"{pair['effect']['detectable']:.4f}" in page and f"{pair['effect']['needed']:,}" in page
    assert f"{pair['warning']}\n" in output, "the best model against the first baseline"
    assert "Paired two-sided permutation tests (5,000 sign flips, seed 42) on nDCG@10" in page
    means = json.loads((tmp_path / "metrics" / "zeta.json").read_text())
    result = json.loads((tmp_path / "report" / "mteb" / "zeta.json").read_text())
    assert (result["task_name"], result["dataset_revision"]) == ("here", "d1g")
    assert result["scores"]["test"][0]["main_score"] == means["test"]["nDCG@10"]
    assert "mrr_at_10" in result["scores"]["dev"][0] and "mrr_at_10" not in result["scores"]["test"][0], "relevant from grade 2"


def test_queries_about_one_document_are_one_draw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Four queries a document: tests, intervals of means, and what is said go by ten groups."""
    monkeypatch.chdir(tmp_path)
    make_project(tmp_path, shared=4)
    page = run_report(monkeypatch)
    significance = json.loads((tmp_path / "report" / "significance.json").read_text())
    assert {(pair["queries"], pair["groups"]) for pairs in significance["splits"].values() for pair in pairs} == {(40, 10)}
    values = pq.read_table(tmp_path / "values/bm25/test.parquet")["nDCG@10"].to_numpy()
    low = stats.ttest_1samp(values.reshape(10, 4).mean(axis=1), 0.0).confidence_interval(0.95).low
    charts = re.findall(r'<script type="application/json">(.*?)</script><figcaption>nDCG@10 of each system', page)
    spec = json.loads(charts[0])
    assert next(row for row in spec["data"]["values"] if row["name"] == "bm25")["low"] == pytest.approx(low)
    sentence = "zeta against bm25: 40 queries are 10 groups that share relevant documents, which say as much as"
    assert f"On test, {sentence}" in page and sentence in capsys.readouterr().out
