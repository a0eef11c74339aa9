"""Which data sets a run refuses once they are prepared, and how."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from flows.pipeline import splits
from tasks.core.tables.parquet import write_table
from tasks.core.tables.schemas import QRELS, QUERIES

SECTIONS = {
    "dataset": {"source": "beir:x"},
    "rounds": {"init": {"init": "base", "negatives": "none", "steps": 0}, "star": {"init": "base", "negatives": "bm25"}},
    "rerankers": {"came": {"source": "x"}, "tuned": {"source": "x", "steps": 5}},
    "adore": {"tower": {"round": "star"}},
}
STAGES = ("prepare", "base", "train@init", "train@star", "reranker@came", "reranker@tuned", "adore@tower", "evaluate@star", "report")
ALL, UNTRAINED = {"train": 3, "dev": 2, "test": 1}, ("prepare", "train@init", "evaluate@init", "evaluate_bm25", "report")


def check_splits(folder: Path, counts: dict[str, int], stages: Sequence[str] = STAGES, **options: Any) -> str:
    rows = {split: {"queries": counts.get(split, 0), "positives": counts.get(split, 0)} for split in ("train", "dev", "test")}
    (folder / "stats.json").write_text(json.dumps({"splits": rows} | options.pop("found", {})))
    sections = SECTIONS | {"evaluate": options.pop("evaluate", {})}
    return splits.check(stages, sections, stats=folder / "stats.json", **options)


def test_which_stages_train_on_train() -> None:
    assert splits.training_stages(STAGES, SECTIONS) == ["train@star", "reranker@tuned", "adore@tower"]
    assert splits.training_stages(STAGES, {}) == []


def test_data_sets_that_are_accepted(tmp_path: Path) -> None:
    assert check_splits(tmp_path, ALL) == ""
    assert check_splits(tmp_path, ALL, with_dev=True) == ""
    assert check_splits(tmp_path, {"dev": 1}, UNTRAINED) == ""
    assert check_splits(tmp_path, {"train": 1}, ("prepare", "bm25")) == "", "nothing is measured"
    assert "the best system is chosen on test" in check_splits(tmp_path, {"test": 1}, UNTRAINED)
    assert "the best system is chosen on test" in check_splits(tmp_path, {"train": 1, "test": 1})
    assert check_splits(tmp_path, {"test": 1}, ("prepare", "train@init", "evaluate@init")) == "", "nothing is chosen"
    for text in (None, "", "[]", '{"splits": {"train": 1}}'):  # someone's own graph
        if text is not None:
            (tmp_path / "other.json").write_text(text)
        assert splits.check(STAGES, SECTIONS, stats=tmp_path / "other.json") == ""


def test_queries_of_dev_that_are_in_test_are_told(tmp_path: Path) -> None:
    message = check_splits(tmp_path, ALL, found={"dev_in_test": 1_200})
    assert message.startswith("beir:x: 1,200 queries of dev are in test too, by id or text") and "\n" not in message
    assert check_splits(tmp_path, ALL, ("prepare", "bm25"), found={"dev_in_test": 2}) == "", "nothing is measured"
    (tmp_path / "stats.json").write_text('{"dev_in_test": 1}')
    for dev, warned in (("corpus", True), ("pseudo", False)):
        sections = SECTIONS | {"queries": "pseudo", "pseudo": {"dev": dev}}
        assert ("1 query of dev is in test" in splits.check(STAGES, sections, stats=tmp_path / "stats.json")) == warned


def test_the_first_queries_of_dev_that_are_in_test_are_named(tmp_path: Path) -> None:
    """A batch of hundreds of queries brings one, and the figures alone do not say which."""
    rows = {"dev": {"a": "who?", "b": "Is It THERE ?", "c": "mine"}, "test": {"x": "is it there ?", "c": "another text", "y": "yours"}}
    (tmp_path / "queries").mkdir()
    for split, texts in rows.items():
        table = pa.table([list(texts), list(texts.values()), [None] * len(texts)], schema=QUERIES)
        write_table(tmp_path / f"queries/{split}.parquet", QUERIES, [table])
    message = check_splits(tmp_path, ALL, found={"dev_in_test": 2})
    assert ": 2 queries of dev are in test too, by id or text (dev 'b', test 'x'; dev 'c', test 'c'), so figures" in message


@pytest.mark.parametrize("queries", ["corpus", "pseudo"])
def test_one_document_trains_nothing_and_can_be_searched(tmp_path: Path, queries: str) -> None:
    rows = {split: {"queries": 5} for split in ("train", "dev", "test")}
    for count in (1, 2):
        (tmp_path / "stats.json").write_text(json.dumps({"splits": rows, "documents": {"count": count}}))
        assert splits.check(UNTRAINED, SECTIONS | {"queries": queries}, stats=tmp_path / "stats.json") == ""
        if count > 1:
            assert splits.check(STAGES, SECTIONS | {"queries": queries}, stats=tmp_path / "stats.json") == ""
            continue
        with pytest.raises(splits.Unfit) as refusal:
            splits.check(STAGES, SECTIONS | {"queries": queries}, stats=tmp_path / "stats.json")
        message = "beir:x: found 1 document, expected more: a single document has no negatives, so train@star, reranker@tuned, adore@tower"
        assert str(refusal.value).startswith(f"{message} would learn nothing; nothing was changed; add documents")
        assert ("retemper run --recipe zero_shot" in str(refusal.value)) == (queries == "corpus")
        assert "\n" not in str(refusal.value)


def test_what_the_source_lacks_is_made_where_queries_are_pseudo(tmp_path: Path) -> None:
    (tmp_path / "stats.json").write_text('{"splits": {}}')
    assert splits.check(STAGES, SECTIONS | {"queries": "pseudo"}, with_dev=True, stats=tmp_path / "stats.json") == ""


@pytest.mark.parametrize(
    ("counts", "options", "message"),
    [
        (
            {"test": 300},
            {"edits": ["dataset.source=beir:my corpus"]},
            "beir:x: found judged queries of test 300, expected train, which train@star, reranker@tuned, adore@tower need; nothing was "
            "changed; to run what needs no training (BM25, the encoder as is, the report): "
            "retemper run --recipe zero_shot --set 'dataset.source=beir:my corpus'",
        ),
        ({"train": 1, "test": 1}, {"with_dev": True}, "expected dev, on which a new model is compared with the champion; add a dev split"),
        ({"train": 1}, {}, "expected dev or test, on which systems are measured; nothing was changed; add one of them"),
        ({}, {"stages": UNTRAINED}, "found no judged queries, expected dev or test"),
    ],
)
def test_data_sets_that_are_refused(tmp_path: Path, counts: dict[str, int], options: dict[str, Any], message: str) -> None:
    with pytest.raises(splits.Unfit) as refusal:
        check_splits(tmp_path, counts, **options)
    assert message in str(refusal.value)


def test_a_short_file_of_pairs_needs_rows_or_a_column(tmp_path: Path) -> None:
    """One file has no place to which a split could be added."""
    (tmp_path / "stats.json").write_text(json.dumps({"splits": {"train": {"queries": 2, "positives": 2}}}))
    with pytest.raises(splits.Unfit, match=r"nothing was changed; add rows, as a hash of the query .* each, or a column split$"):
        splits.check(STAGES, SECTIONS | {"dataset": {"source": "pairs:q.csv"}}, stats=tmp_path / "stats.json")


def test_grades_that_nothing_reaches_are_refused(tmp_path: Path) -> None:
    for split, grade in {"dev": 1, "test": 3}.items():
        rows = pa.table([pa.array(column, field.type) for column, field in zip((["q"], ["d"], [grade]), QRELS, strict=True)], schema=QRELS)
        write_table(tmp_path / f"qrels/{split}.parquet", QRELS, [rows])
    for fine in (1, {"test": 3}, {"dev": 1, "test": 2}):
        assert check_splits(tmp_path, ALL, evaluate={"relevance": fine}) == ""
    line = (
        "^beir:x: found 1 as the largest grade of dev, expected at least 2, or no document is relevant; set evaluate.relevance .* to 1, or"
    )
    with pytest.raises(splits.Unfit, match=line):
        check_splits(tmp_path, ALL, evaluate={"relevance": 2})
    with pytest.raises(splits.Unfit, match="found 3 as the largest grade of test, expected at least 4"):
        check_splits(tmp_path, ALL, evaluate={"relevance": {"dev": 1, "test": 4}})
    assert check_splits(tmp_path, ALL, ("prepare", "bm25"), evaluate={"relevance": 2}) == "", "nothing is measured"


def test_queries_without_a_relevant_document_are_not_judged(tmp_path: Path) -> None:
    rows = {split: {"queries": 3, "positives": 0} for split in ("train", "dev", "test")}
    (tmp_path / "stats.json").write_text(json.dumps({"splits": rows}))
    with pytest.raises(splits.Unfit, match="found no judged queries, expected dev or test, on which systems are measured"):
        splits.check(UNTRAINED, SECTIONS, stats=tmp_path / "stats.json")


def test_an_unfit_data_set_is_refused_when_it_is_prepared_and_nothing_has_changed(retraining: Any, server_url: str) -> None:
    project = retraining
    project.environment["PREFECT_API_URL"] = server_url
    splits_of = {split: {"queries": 20} for split in ("train", "dev", "test")}
    (project.source / "stats.json").write_text(json.dumps({"splits": splits_of}))
    project.call("run")
    other = project.source.with_name("other")
    shutil.copytree(project.source, other)
    (other / "stats.json").write_text(json.dumps({"splits": splits_of | {"train": {"queries": 0}}}))
    project.add(7.0, folder=other)
    names = ("params.yaml", "dvc.lock", "data/source.json", "data/corpus/stats.json", "data/metrics/a.json", "data/report/report.html")
    before = {name: (project.folder / name).read_bytes() for name in names}
    project.set_act("fail")  # if a training begins
    out, err = project.call("run", "--set", "dataset.source=beir:../other", "--set", "bm25.k1=1.5", status=2)
    assert "train@a" not in out
    assert err == (
        "retemper: beir:../other: found judged queries of dev 20, test 20, expected train, which train@a need; nothing was changed; to run "
        "what needs no training (BM25, the encoder as is, the report): retemper run --recipe zero_shot "
        "--set dataset.source=beir:../other --set bm25.k1=1.5\n"
    )
    assert {name: (project.folder / name).read_bytes() for name in names} == before
    assert "executed 0, cached 5" in project.call("run")[0]
    by_hand = before["params.yaml"].replace(b"beir:../source", b"beir:../other")
    (project.folder / "params.yaml").write_bytes(by_hand)
    project.call("run", status=2)
    assert {name: (project.folder / name).read_bytes() for name in names} == before | {"params.yaml": by_hand}
