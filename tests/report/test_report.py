"""The stage from files to table, page, and tests: few systems, with or without dev, hostile texts, the same result twice."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tasks.core.errors import UserError
from tasks.core.files import folder_digest, write_json
from tasks.core.tables.schemas import DOCUMENTS, QRELS
from tasks.report.page import short_source
from tasks.report.summary import without_folders
from tasks.report.systems import DEPTH
from tasks.rerank.params import Rerank
from tasks.rescore.params import Rescore
from tests.report.project import PARAMS, check_self_contained, make_system, run_report, write_rows


def test_whole_report(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], charts_of: Callable[..., Any]
) -> None:
    for name, level in (("alpha", 0.8), ("bm25", 0.5), ("zeta", 0.52), ("init", 0.2)):
        make_system(project, name, level, ("dev", "test"))
    train = project / "curves" / "alpha" / "plots" / "metrics" / "train"
    train.mkdir(parents=True)
    (train / "loss.tsv").write_text("step\tloss\n1\t2.5\n2\tnan\n3\t1.5\n")
    write_json(project / "index_metrics" / "alpha.json", {"factory": "Flat<8>", "rows": 3, "recall@100": 0.987654})
    page = run_report(monkeypatch)
    check_self_contained(page)
    charts = dict(charts_of(page))
    assert list(charts) == [
        "AP of each system with 95% intervals",
        "difference on every query, alpha minus bm25",
        "AP, alpha minus bm25, by groups of queries",
        "loss over steps",
    ]
    assert "&lt;script&gt;alert" in page
    assert "<script>alert" not in page
    assert "beir:&lt;i&gt;here&lt;/i&gt;" in page
    assert "Flat&lt;8&gt;" in page
    assert "0.9877" in page
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "beir:<i>here</i>, 3 documents, titles on; test, 40 queries"
    rows = [line.split() for line in lines[4:8]]
    assert [row[0] if row[0] not in "ab" else row[1] for row in rows] == [
        "bm25",
        "init",
        "zeta",
        "alpha",
    ]  # in the order of params.yaml, not alphabetical
    assert rows[3][:2] == ["alpha", "*"]
    intervals = {row["name"]: row for row in charts["AP of each system with 95% intervals"]["data"]["values"]}
    assert [name for name, row in intervals.items() if row["kind"] == "best"] == ["alpha"]
    assert charts["loss over steps"]["data"]["values"] == [
        {"name": "alpha", "x": 1.0, "y": 2.5, "note": "2.5"},
        {"name": "alpha", "x": 3.0, "y": 1.5, "note": "1.5"},
    ]
    means = {name: json.loads((project / "metrics" / f"{name}.json").read_text()) for name in ("bm25", "alpha")}
    assert f"{means['alpha']['test']['AP']:.4f}" in rows[3]
    assert (
        intervals["alpha"]["value"] == means["alpha"]["test"]["AP"]
        and intervals["alpha"]["low"] < intervals["alpha"]["value"] < intervals["alpha"]["high"]
    )
    assert rows[3][3] == "ab"
    assert rows[1][3] == "-a"
    result = json.loads((project / "report" / "significance.json").read_text())
    assert result["best"] == {"system": "alpha", "chosen_on": "dev"}
    assert [len(pairs) for pairs in result["splits"].values()] == [5, 5]
    pair = next(pair for pair in result["splits"]["test"] if (pair["system"], pair["baseline"]) == ("alpha", "bm25"))
    assert pair["difference"] == pytest.approx(means["alpha"]["test"]["AP"] - means["bm25"]["test"]["AP"])
    run_report(monkeypatch, "again")
    assert folder_digest(project / "report") == folder_digest(project / "again")


def test_the_best_system_is_chosen_on_dev_not_test(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_system(project, "bm25", 0.5, ("dev", "test"))
    make_system(project, "init", 0.4, ("dev", "test"))
    metrics = json.loads((project / "metrics" / "init.json").read_text())
    write_json(project / "metrics" / "init.json", metrics | {"test": {"AP": 0.99, "RR@10": 0.99}})
    run_report(monkeypatch)
    assert json.loads((project / "report" / "significance.json").read_text())["best"]["system"] == "bm25"


def test_ties_go_to_the_simpler_system(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same rule promotes models: `alpha` is listed before `zeta`, which it starts from."""
    for name in ("alpha", "zeta"):
        make_system(project, name, 0.5, ("dev", "test"))
        values = pq.read_table(project / "values" / "zeta" / "dev.parquet") if name == "zeta" else None
    assert values is not None
    pq.write_table(values, project / "values" / "alpha" / "dev.parquet")
    dev = json.loads((project / "metrics" / "zeta.json").read_text())["dev"]
    metrics = json.loads((project / "metrics" / "alpha.json").read_text())
    write_json(project / "metrics" / "alpha.json", metrics | {"dev": dev})
    (project / "params.yaml").write_text(
        PARAMS.replace(
            "zeta: {init: base, negatives: bm25}, alpha: {init: zeta, negatives: bm25}",
            "alpha: {init: zeta, negatives: bm25}, zeta: {init: base, negatives: bm25}",
        )
    )
    run_report(monkeypatch)
    assert json.loads((project / "report" / "significance.json").read_text())["best"]["system"] == "zeta"


@pytest.mark.parametrize(
    ("splits", "split_names", "chosen_on"), [(("dev",), "dev", "dev"), (("test",), "test", "test"), (("dev", "test"), "test", "dev")]
)
@pytest.mark.parametrize("names", [("bm25",), ("init",), ("bm25", "init")])
def test_reports_of_few_systems_and_splits(
    project: Path, monkeypatch: pytest.MonkeyPatch, splits: tuple[str, ...], split_names: str, chosen_on: str, names: tuple[str, ...]
) -> None:
    for level, name in enumerate(names, 1):
        make_system(project, name, level / 3, splits)
    page = run_report(monkeypatch)
    check_self_contained(page)
    assert f"Results on {split_names}" in page
    assert json.loads((project / "report" / "significance.json").read_text())["best"] == {"system": names[-1], "chosen_on": chosen_on}
    assert ("query by query" in page) == (len(names) == 2)


@pytest.mark.parametrize(("relevance", "rank"), [("1", 2), ("2", None), ("{dev: 2}", None), ("{test: 2}", 2)])
def test_examples_use_the_relevance_grade_of_evaluate(
    project: Path, monkeypatch: pytest.MonkeyPatch, relevance: str, rank: int | None
) -> None:
    (project / "params.yaml").write_text(f"{PARAMS}evaluate: {{relevance: {relevance}}}\n")
    make_system(project, "bm25", 0.1, ("dev",))
    make_system(project, "init", 0.9, ("dev",))
    grades = [(f"dev{i:03}", doc, grade) for i in range(40) for doc, grade in (("d2", 1), ("d3", 2))]
    write_rows(project / "corpus" / "qrels" / "dev.parquet", QRELS, grades)
    page = run_report(monkeypatch).partition('id="examples"')[2]  # every run has d1, d2
    assert ("relevant at rank 2" in page, "relevant not found" in page) == (rank == 2, rank is None)


def test_short_runs_and_missing_baselines_are_reported(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    extra = "rerank: {few: {run: bm25, reranker: r, depth: 9}, ten: {run: bm25, reranker: r, depth: 10}}\nrescore: {default: {run: bm25}}\n"
    (project / "params.yaml").write_text(PARAMS.replace("[bm25, init]", "[bm25, wramup]") + extra)
    for name in ("bm25", "few", "ten", "default"):
        make_system(project, name, 0.5, ("dev", "test"))
    page = run_report(monkeypatch)
    lines = capsys.readouterr().out.splitlines()
    line = (
        "few has at most 9 ranks, which lowers its AP, RR@10; ten has at most 10 ranks, which lowers its AP; "
        "default has at most 100 ranks, which lowers its AP"
    )
    assert [text for text in lines if "ranks" in text] == [line] and f"{line}." in page
    assert [text for text in lines if "baselines" in text] == ["baselines not in the table: wramup"]
    assert {model.model_fields["depth"].default for model in (Rerank, Rescore)} == {DEPTH}


@pytest.mark.parametrize("dev", ["pseudo", "corpus"])
def test_queries_that_no_human_judged_are_told(
    dev: str, project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kinds = {"title": {"made": 1581, "train": 9}, "span": {"made": 20, "train": 7}}
    write_json(project / "corpus" / "stats.json", {"documents": {"count": 3}, "splits": {}, "pseudo": {"kinds": kinds, "dev": dev}})
    make_system(project, "bm25", 0.5, ("dev", "test"))
    page = run_report(monkeypatch)
    output = capsys.readouterr().out
    for text in (page.lower(), output):
        assert "no human judged the training queries" in text and "9 from 1,581 titles, 7 from 20 spans" in text
        assert ("the choice of the best system used no human judgment" in text) == (dev == "pseudo")


def test_queries_in_two_splits_are_reported(project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    note = "5 queries of train are also in dev or test, and 1 query of dev is also in test, by id or text, which flatters the figures"
    for counts, noted in (({"leaks": 5, "dev_in_test": 1}, True), ({"leaks": 0, "dev_in_test": 0}, False)):
        write_json(project / "corpus" / "stats.json", {"documents": {"count": 3}, "splits": {}, **counts})
        make_system(project, "bm25", 0.5, ("dev", "test"))
        page = run_report(monkeypatch)
        assert (note in page, note in capsys.readouterr().out) == (noted, noted)


def test_errors_are_one_line_and_leave_no_out(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="found no JSON file"):
        run_report(monkeypatch)
    make_system(project, "bm25", 0.5, ("test",))
    make_system(project, "init", 0.5, ("test",), count=39)
    with pytest.raises(UserError, match="init and bm25 have different test queries"):
        run_report(monkeypatch)
    (project / "params.yaml").write_text(PARAMS.replace("metric: AP", "metric: nDCG@10"))
    with pytest.raises(UserError, match=r"report.metric: found 'nDCG@10', expected one of evaluate.measures: AP, RR@10"):
        run_report(monkeypatch)
    assert not (project / "report").exists()


def test_examples_shorten_texts_without_blanks(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_rows(project / "corpus/documents.parquet", DOCUMENTS, [(doc, "", "東京 " + "語" * 1400) for doc in ("d1", "d2", "d3")])
    for name, level in (("alpha", 0.8), ("bm25", 0.5)):
        make_system(project, name, level, ("dev", "test"))
    page = run_report(monkeypatch).partition('id="examples"')[2]
    assert page.count("語" * 300) >= 2 and "語" * 321 not in page


def test_a_source_is_shown_without_its_folders() -> None:
    assert short_source("beir:/a/b/scifact/") == "beir:scifact"
    assert short_source("irds:beir/scifact") == "irds:beir/scifact"
    assert short_source("demo") == "demo"
    assert short_source("pairs:../a/faq.csv#query=Frage/Problem") == "pairs:faq.csv#query=Frage%2FProblem"
    sources = ("beir:/a/b/scifact/", "beir:../scifact", "irds:beir/scifact", "/a/model", "~/model", "some/model", "package:a/model")
    expected = ["beir:scifact", "beir:../scifact", "irds:beir/scifact", "model", "model", "some/model", "package:a/model"]
    assert list(map(without_folders, sources)) == expected


def test_two_equal_systems_are_level_without_a_sign(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("bm25", "init"):
        make_system(project, name, 0.5, ("dev", "test"))
    for folder in ("values", "runs"):
        shutil.rmtree(project / folder / "init")
        shutil.copytree(project / folder / "bm25", project / folder / "init")
    shutil.copyfile(project / "metrics" / "bm25.json", project / "metrics" / "init.json")
    train = {"queries": 0, "positives": 0, "words": None, "qrels": 0, "positives_per_query": 0.0}
    test = {"queries": 40, "positives": 40, "words": None, "qrels": 40, "positives_per_query": 1.0}
    write_json(project / "corpus" / "stats.json", {"documents": {"count": 3}, "splits": {"train": train, "test": test}})
    page = " ".join(run_report(monkeypatch).split())
    assert "on test it is level with <b>init</b> (not significant, p" in page
    assert "bm25 has +0.0000 against init" in page and "-0.0000" not in page.partition("</dl>")[0]
    dataset = page.partition('id="dataset"')[2].partition("</table>")[0]
    assert "<b>test</b>" in dataset and "<b>train</b>" not in dataset, "a split without queries has no row"
