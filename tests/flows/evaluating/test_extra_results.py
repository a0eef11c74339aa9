"""Tables of further data sets against tests by SciPy and rows worked out by hand."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import stats

from flows.evaluating import extra_results
from flows.pages import measured
from tasks.core.statistics import tested
from tasks.core.tables.parquet import write_table
from tasks.core.tables.schemas import QRELS

ABOUT: dict[str, Any] = {
    "digest": "d",
    "source": "beir:some/nq",
    "revision": "r",
    "documents": 1234,
    "texts": "titles off",
    "relevance": {"dev": 1, "test": 2},
    "metric": "nDCG@10",
    "systems": ["bm25", "star", "<b>"],
    "left_out": ["crossed"],
}
QUERIES = 40


def values() -> dict[str, Any]:
    """star is far above bm25; <b> is above it significantly, but not after the correction (p .04)."""
    draw = np.random.Generator(np.random.PCG64(5))
    low, *noise = draw.uniform(0, 0.5, QUERIES), *draw.normal(0, 1, (2, QUERIES))
    t = [5.0, 2.1]
    gains = [
        (sample - sample.mean()) / sample.std(ddof=1) * 0.05 + size * 0.05 / QUERIES**0.5 for sample, size in zip(noise, t, strict=True)
    ]
    return {"bm25": low, "star": low + gains[0], "<b>": low + gains[1]}


def write_results(tree: Path) -> None:
    extra_results.write("nq", ABOUT, tested.Tested(), metrics=tree / "metrics", values=tree / "values", qrels=tree / "qrels")


@pytest.fixture
def results_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for system, column in values().items():
        folder = tmp_path / "tree/values" / system
        folder.mkdir(parents=True)
        table = pa.table({"query": [f"q{n}" for n in range(QUERIES)], "AP": column / 2, "nDCG@10": column})
        pq.write_table(table, folder / "test.parquet")
        (tmp_path / "tree/metrics").mkdir(exist_ok=True)
        means = {"test": {"AP": column.mean() / 2, "nDCG@10": column.mean()}}
        (tmp_path / f"tree/metrics/{system}.json").write_text(json.dumps(means))
    write_results(tmp_path / "tree")
    return tmp_path / "data/extra/nq"


def test_every_two_systems_are_tested_with_holms_correction(results_folder: Path) -> None:
    report = json.loads((results_folder / "significance.json").read_text())
    pairs = {(pair["system"], pair["baseline"]): pair for pair in report["splits"]["test"]["pairs"]}
    scores = values()
    raw = {pair: float(stats.ttest_rel(scores[pair[0]], scores[pair[1]]).pvalue) for pair in pairs}
    assert set(raw) == {("star", "bm25"), ("<b>", "bm25"), ("<b>", "star")}
    expected, highest = {}, 0.0
    for step, pair in enumerate(sorted(raw, key=raw.__getitem__)):
        highest = max(highest, min(1.0, (3 - step) * raw[pair]))
        expected[pair] = highest
    for pair, row in pairs.items():
        assert row["p"] == pytest.approx(raw[pair], abs=0, rel=1e-9) and row["p_holm"] == pytest.approx(expected[pair], abs=0, rel=1e-9)
        assert row["difference"] == pytest.approx(np.mean(scores[pair[0]] - scores[pair[1]]))
        assert row["significant"] == (expected[pair] <= 0.05)
    assert raw["<b>", "bm25"] < 0.05 < expected["<b>", "bm25"]
    assert pairs["star", "bm25"]["significant"]


@pytest.mark.usefixtures("results_folder")
def test_the_table_names_what_each_is_above() -> None:
    results, means = extra_results.load("nq"), {name: column.mean() for name, column in values().items()}
    header, rows = results.rows("test", "star")
    assert (results.splits, results.queries("test")) == (["test"], "40 queries")
    assert header == ["system", "nDCG@10", "above", "AP"]
    assert rows == [
        ["a bm25", f"{means['bm25']:.4f}", "", f"{means['bm25'] / 2:.4f}"],
        ["b star *", f"{means['star']:.4f}", "a", f"{means['star'] / 2:.4f}"],
        ["c <b>", f"{means['<b>']:.4f}", "", f"{means['<b>'] / 2:.4f}"],
    ]
    text = extra_results.text(results, "star")
    assert text.startswith("extra.nq: beir:some/nq, 1,234 documents, zero-shot\ntest, 40 queries\n")
    assert "(paired two-sided t-tests over groups of queries that share relevant documents, Holm over 3 pairs, level 0.05)" in text
    assert "*: star, the best on the main data set, where it was chosen" in text
    assert "not measured here: crossed" in text
    assert "the best on" not in extra_results.text(results, "elsewhere")


@pytest.mark.usefixtures("results_folder")
def test_queries_about_one_document_are_drawn_at_once(tmp_path: Path) -> None:
    """Five queries for each of eight documents: tests use one value for each document."""
    scores = values()
    rows = [[f"q{n}" for n in range(QUERIES)], [f"d{n // 5}" for n in range(QUERIES)], [1] * QUERIES]
    write_table(tmp_path / "tree/qrels/test.parquet", QRELS, [pa.table(rows, schema=QRELS)])
    write_results(tmp_path / "tree")
    split = json.loads((tmp_path / "data/extra/nq/significance.json").read_text())["splits"]["test"]
    test = stats.ttest_1samp((scores["star"] - scores["bm25"]).reshape(8, 5).mean(axis=1), 0.0)
    pair = next(pair for pair in split["pairs"] if (pair["system"], pair["baseline"]) == ("star", "bm25"))
    assert (split["groups"], pair["p"]) == (8, pytest.approx(test.pvalue))
    assert (pair["low"], pair["high"]) == pytest.approx(tuple(test.confidence_interval(0.95)))
    assert "\ntest, 40 queries in 8 groups\n" in extra_results.text(extra_results.load("nq"), "star")


def test_letters_of_more_systems_than_the_alphabet_has_are_told_apart() -> None:
    systems = [f"s{number}" for number in range(27)]
    pairs = [{"system": "s0", "baseline": system, "significant": True, "difference": 0.1} for system in ("s26", "s1")]
    about = {"systems": systems, "metric": "AP"}
    results = extra_results.ExtraResults(
        "nq", about, {system: {"test": {"AP": 0.5}} for system in systems}, {"splits": {"test": {"pairs": pairs}}}
    )
    assert results.rows("test", "s0")[1][0][2] == "b aa"


def test_mtebs_json_leaves_out_what_mteb_would_count_otherwise(results_folder: Path) -> None:
    task = json.loads((results_folder / "mteb/star.json").read_text())
    assert (task["task_name"], task["dataset_revision"]) == ("nq", "r")
    assert task["scores"]["test"][0]["ndcg_at_10"] == pytest.approx(values()["star"].mean())


@pytest.mark.usefixtures("results_folder")
def test_systems_with_other_queries_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "tree/values/star/test.parquet"
    pq.write_table(pq.read_table(file).slice(1), file)
    with pytest.raises(extra_results.UserError, match="found systems with different test queries, expected the same"):
        write_results(tmp_path / "tree")
    assert extra_results.is_current("nq", "d"), "what was there stays"


@pytest.mark.usefixtures("results_folder")
def test_sections_take_the_place_of_earlier_ones_in_the_page(tmp_path: Path) -> None:
    (tmp_path / "data/report").mkdir()
    report = f"<nav>{measured.LINKS}</nav><main>{measured.PLACE}</main>"
    (tmp_path / "data/report/report.html").write_text(report)
    section = extra_results.section(extra_results.load("nq"), "star")
    for _ in range(2):
        measured.add([section])
        page = (tmp_path / ".retemper/report.html").read_text()
        assert page.count('<a href="#extra-nq">On nq</a>') == page.count('<h2 id="extra-nq">On nq</h2>') == 1
        assert "c &lt;b&gt;" in page and "<b>" not in page, "names are escaped"
        assert '<td class="name" data-label="above">a</td>' in page
    measured.add([])
    assert (tmp_path / ".retemper/report.html").read_text() == report
