"""The best model, and tables."""

import json
from pathlib import Path

import pytest

from flows.process.display import Outcome, clock, markdown_table, summary, text_table
from flows.results.metrics import best_model, read_metrics, rows
from tasks.core.errors import UserError

METRICS = {
    "bm25": {"dev": {"nDCG@10": 0.9, "AP": 0.1}, "test": {"nDCG@10": 0.7, "AP": 0.2}},
    "star": {"dev": {"nDCG@10": 0.8, "AP": 0.3}, "test": {"nDCG@10": 0.6, "AP": 0.5}},
    "init": {"dev": {"nDCG@10": 0.5, "AP": 0.4}},
}


def test_the_best_model_is_chosen_on_dev_among_those_with_an_index(tmp_path: Path) -> None:
    for model in ("star", "init"):  # bm25 has none
        (tmp_path / model).mkdir()
    assert best_model(METRICS, "nDCG@10", {}, indexes=tmp_path) == "star"
    assert best_model(METRICS, "AP", {}, indexes=tmp_path) == "init"
    with pytest.raises(UserError, match="no model with an index and P@5 on dev"):
        best_model(METRICS, "P@5", {}, indexes=tmp_path)
    with pytest.raises(UserError, match="run retemper run first"):
        best_model({}, "AP", {}, indexes=tmp_path)


@pytest.mark.parametrize("text", ["null", "[]", '{"dev": 5}'])
def test_a_file_without_metrics_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "star.json").write_text(text)
    with pytest.raises(UserError, match=r"star.json: found no metrics, expected \{split: \{measure: value\}\}; remove it and run again"):
        read_metrics(tmp_path)


def test_a_fusion_that_can_be_searched_may_be_the_best(tmp_path: Path) -> None:
    fuse = {"hybrid": {"first": "bm25", "second": "star"}, "again": {"first": "hybrid", "second": "over"}}
    sections = {"rounds": {"star": {}, "init": {}}, "fuse": fuse, "rescore": {"over": {}}}
    metrics = METRICS | {name: {"dev": {"AP": value}} for name, value in {"hybrid": 0.6, "again": 0.7, "star": 0.5}.items()}
    (tmp_path / "star").mkdir()
    assert best_model(metrics, "AP", sections, indexes=tmp_path, fused=True) == "hybrid"
    assert best_model(metrics, "AP", sections, indexes=tmp_path) == "star", "a champion has one encoder"


def test_of_equal_models_the_simpler_one_is_the_best(tmp_path: Path) -> None:
    sections = {"rounds": {"star": {"init": "base"}}, "adore": {"star_adore": {"round": "star"}}}
    for model in ("star", "star_adore"):
        (tmp_path / model).mkdir()
    tied = {model: {"dev": {"AP": 0.5}} for model in ("star", "star_adore")}
    assert best_model(tied, "AP", sections, indexes=tmp_path) == "star", "what the report says too"


def test_metrics_are_read_by_model(tmp_path: Path) -> None:
    for model, splits in METRICS.items():
        (tmp_path / f"{model}.json").write_text(json.dumps(splits))
    assert read_metrics(tmp_path) == METRICS
    assert read_metrics(tmp_path / "nowhere") == {}


def test_the_table_has_test_last_and_the_best_at_the_bottom() -> None:
    header, body = rows(METRICS)
    assert header == ["model", "split", "nDCG@10", "AP"]
    assert [line[:3] for line in body] == [
        ["init", "dev", "0.5000"],
        ["star", "dev", "0.8000"],
        ["bm25", "dev", "0.9000"],
        ["star", "test", "0.6000"],
        ["bm25", "test", "0.7000"],
    ]


def test_of_mistakes_the_fewest_are_at_the_bottom() -> None:
    _, body = rows({"many": {"dev": {"Hole@10": 0.9}}, "few": {"dev": {"Hole@10": 0.1}}})
    assert [line[0] for line in body] == ["many", "few"]


def test_tables() -> None:
    assert text_table(["a", "n"], [["x", "1.5"], ["yy", "10.0"]]) == "a      n\nx    1.5\nyy  10.0"
    assert markdown_table(["a", "n"], [["x", "1"]]) == "| a | n |\n| --- | ---: |\n| x | 1 |"
    outcomes = {"a": Outcome("Ran", 61.0), "b": Outcome("Cached", 1.0), "c": Outcome("Failed", 2.0)}
    assert summary(["a", "b", "c", "d"], outcomes, 70) == (
        "stage  state     time\na      Ran      1m01s\nb      Cached\nc      Failed   2.0 s\nd      Skipped\n"
        "executed 1, cached 1, failed 1, skipped 1, in 1m10s"
    )
    text = summary(["a", *"defgh"], outcomes, 70)
    assert text.splitlines()[2:] == ["5 later stages  Skipped", "executed 1, cached 0, skipped 5, in 1m10s"]
    assert [clock(seconds) for seconds in (0.04, 59.94, 60, 3599.4, 7380)] == ["0.0 s", "59.9 s", "1m00s", "59m59s", "2h03m"]
