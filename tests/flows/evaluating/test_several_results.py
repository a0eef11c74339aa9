"""The table of several models and data sets, against means by hand and tests by SciPy."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import stats

from flows.evaluating import several_results
from flows.evaluating.evaluate import Shown
from flows.evaluating.several_results import Results, Table
from tasks.core.errors import Problem
from tasks.core.statistics import tested

QUERIES = [f"q{number:02}" for number in range(40)]
MODELS = {"init": "m/init", "star": "m/star", "bm25": "bm25"}
PLAIN: dict[str, Any] = {"bm25": {"k1": 1.2, "b": 0.75}}


def values(seed: int) -> dict[str, Any]:
    """Of init, star far above it, and bm25 above it by as much as only Holm's correction does not take for significant (p .04)."""
    draw = np.random.Generator(np.random.PCG64(seed))
    low, *noise = draw.uniform(0, 0.5, 40), *draw.normal(0, 1, (2, 40))
    gains = [
        (sample - sample.mean()) / sample.std(ddof=1) * 0.05 + t * 0.05 / 40**0.5 for sample, t in zip(noise, (-5.0, 2.1), strict=True)
    ]
    return {"init": low, "star": low + gains[0], "bm25": low + gains[1]}


def results(seed: int, splits: tuple[str, ...], models: tuple[str, ...] = tuple(MODELS), groups: dict[str, str] | None = None) -> Results:
    scores = {split: values(seed + number) for number, split in enumerate(splits)}
    return Results(
        {
            model: {split: {"AP": scores[split][model].mean() / 2, "nDCG@10": scores[split][model].mean()} for split in splits}
            for model in models
        },
        {model: {split: dict(zip(QUERIES, scores[split][model].tolist(), strict=True)) for split in splits} for model in models},
        {model: f"titles {'on' if seed == 9 else 'off'}" for model in models if model != "bm25"},
        {split: groups or {} for split in ("dev", "test")},
        "r",
    )


def table(**sets: Results) -> Table:
    return Table(MODELS, {label: f"beir:x/{label}" for label in sets}, sets, "nDCG@10", tested.Tested())


def test_every_model_is_tested_against_the_first_with_holms_correction() -> None:
    scores, tests = values(1), several_results.record(table(nq=results(1, ("test",))), {})["tests"]
    assert (tests["against"], tests["alpha"], list(tests["data"]["nq"])) == ("init", 0.05, ["test"])
    raw = {name: float(stats.ttest_rel(scores[name], scores["init"]).pvalue) for name in ("star", "bm25")}
    assert raw["star"] < 0.025 < raw["bm25"] < 0.05
    expected = {"star": 2 * raw["star"], "bm25": raw["bm25"]}
    for name, test in tests["data"]["nq"]["test"].items():
        assert test["p"] == pytest.approx(raw[name]) and test["p_holm"] == pytest.approx(expected[name])
        assert test["difference"] == pytest.approx(float(np.mean(scores[name] - scores["init"])))
        assert test["significant"] and test["queries"] == test["groups"] == 40


def test_the_table_as_it_is_printed() -> None:
    output = several_results.text(table(nq=results(1, ("dev", "test")), fiqa=results(9, ("dev",))), PLAIN, None)
    rows = []
    for label, split, seed in (("nq", "dev", 1), ("nq", "test", 2), ("fiqa", "dev", 9)):
        means = [values(seed)[model].mean() for model in MODELS]
        rows.append(f"{label:4}  {split:11}       40  {means[0]:.4f}    {means[1]:.4f} -  {means[2]:.4f}*+")
    means = [(values(2)[model].mean() + values(9)[model].mean()) / 2 for model in MODELS]
    expected = [
        "nDCG@10, zero-shot",
        "data  split        queries    init      star      bm25",
        *rows,
        f"mean  test or dev           {means[0]:.4f}    {means[1]:.4f}    {means[2]:.4f}*",
        "*: the best of its row",
        "+ or -: significantly above or below init, the first model (paired two-sided t-tests over groups of queries that share relevant "
        "documents, Holm over the other models of a row, level 0.05)",
        "mean: unweighted, over 2 data sets: test, but dev of fiqa, which has no test",
        "init, star on nq: titles off",
        "init, star on fiqa: titles on",
        "bm25: k1 1.2, b 0.75",
    ]
    assert output.splitlines() == expected


def test_a_terminal_gets_lines_that_fit() -> None:
    output = several_results.text(table(nq=results(1, ("test",))), PLAIN, 40)
    assert max(map(len, output.splitlines()[1:7])) <= 40 and "init" in output


def test_one_model_has_no_marks_and_one_data_set_no_mean() -> None:
    init = results(1, ("test",), ("init",))
    output = several_results.text(
        Table({"init": "m"}, {"nq": "x", "fiqa": "y"}, {"nq": init, "fiqa": init}, "nDCG@10", tested.Tested()), PLAIN, None
    )
    mean = f"{values(1)['init'].mean():.4f}"
    assert output.splitlines() == [
        "nDCG@10, zero-shot",
        "data  split  queries    init",
        f"nq    test        40  {mean}",
        f"fiqa  test        40  {mean}",
        f"mean  test            {mean}",
        "mean: unweighted, over test of 2 data sets",
        "titles off",
    ]
    assert "mean" not in several_results.text(table(nq=results(1, ("dev", "test"))), PLAIN, None)


def test_groups_are_shown_where_queries_share_documents() -> None:
    pairs = {query: QUERIES[number // 2 * 2] for number, query in enumerate(QUERIES)}
    lines = several_results.text(table(nq=results(1, ("test",), groups=pairs)), PLAIN, None).splitlines()
    assert lines[1].split()[:4] == ["data", "split", "queries", "groups"] and lines[2].split()[2:4] == ["40", "20"]
    one_group = table(nq=results(1, ("test",), groups=dict.fromkeys(QUERIES, "q00")))
    output = several_results.text(one_group, PLAIN, None)
    line = "nq, test: all 40 queries share relevant documents, so nothing can be tested unless report.draws is queries"
    assert line in output.splitlines() and " -" not in output.splitlines()[2] and "+" not in output.splitlines()[2]


@pytest.mark.parametrize(("test", "size", "told"), [("t", 33, True), ("t", 32, False), ("permutation", 33, False)])
def test_a_row_that_one_group_makes_untestable_says_so(test: Any, size: int, told: bool) -> None:
    """A t-test says nothing once one group has more than 80% of the queries."""
    compared = table(nq=results(1, ("test",), groups={query: query if place >= size else "q00" for place, query in enumerate(QUERIES)}))
    rows = several_results.text(replace(compared, test=tested.Tested(test=test, permutations=1000)), PLAIN, None).splitlines()
    line = (
        f"nq, test: {size} of 40 queries share relevant documents, and the others are {40 - size} groups, "
        "so there is no interval, and only a permutation test (report.test) gives a p-value"
    )
    assert (line in rows) == told and sum("no interval" in row for row in rows) == told


def test_a_model_that_failed_leaves_a_gap_and_the_mean_is_over_what_all_have() -> None:
    comparison = table(nq=results(1, ("test",)), fiqa=results(2, ("test",), ("init", "bm25")), scifact=results(3, ("test",)))
    comparison = Table(
        MODELS,
        {**comparison.data, "arguana": "beir:x/arguana"},
        {**comparison.results, "last": results(4, ("test",), ("star", "bm25"))},
        "nDCG@10",
        tested.Tested(),
    )
    report = several_results.record(comparison, {"star on beir:x/fiqa": Problem("stage", "encode: failed", 1)})
    means = {model: (values(1)[model].mean() + values(3)[model].mean()) / 2 for model in MODELS}
    assert {model: figures["nDCG@10"] for model, figures in report["mean"]["models"].items()} == pytest.approx(means)
    assert {model: figures["AP"] * 2 for model, figures in report["mean"]["models"].items()} == pytest.approx(means)
    assert report["mean"]["splits"] == {"nq": "test", "scifact": "test"} and report["failed"] == {"star on beir:x/fiqa": "encode: failed"}
    assert list(report["tests"]["data"]["fiqa"]["test"]) == ["bm25"] and "last" not in report["tests"]["data"], (
        "not without the first model"
    )
    assert report["data"]["arguana"] == {"source": "beir:x/arguana", "revision": None}
    output = several_results.text(comparison, PLAIN, None)
    assert "mean: unweighted, over test of 2 data sets; without fiqa, arguana, where a model failed" in output
    row = next(line.split() for line in output.splitlines() if line.startswith("fiqa"))
    assert [cell.rstrip("*+") for cell in row[3:]] == [f"{values(2)[model].mean():.4f}" for model in ("init", "bm25")]


def test_queries_of_a_click_log_are_no_split_of_a_table(tmp_path: Path) -> None:
    """They may lack the metric: Coverage asks for answers."""
    for path, content in (
        ("data/metrics/bm25.json", {"dev": {"AP": 0.5, "Coverage@5": 1.0}, "clicks": {"AP": 0.5}}),
        ("data/source.json", {"dataset": {"digest": "r"}}),
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(json.dumps(content))
    (tmp_path / "data/values/bm25").mkdir(parents=True)
    for split, names in (("dev", ("AP", "Coverage@5")), ("clicks", ("AP",))):
        pq.write_table(pa.table({"query": ["q"], **{name: [1.0] for name in names}}), tmp_path / f"data/values/bm25/{split}.parquet")
    found = several_results.read(tmp_path, {"bm25": "bm25"}, Shown(False, False, {}), metric="Coverage@5")
    assert (found.values, found.splits) == ({"bm25": {"dev": {"q": 1.0}}}, ["dev"])
