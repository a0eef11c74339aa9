"""Distances of two versions of a file, by hand."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save_file

from flows.reproducing.closeness import distance
from flows.reproducing.reproduce import mark_close
from flows.storage.cache import file_md5, object_path


def test_vectors_and_weights_are_apart_by_the_norm_of_their_difference(tmp_path: Path) -> None:
    first, second = np.array([[3.0, 4.0]], dtype=np.float32), np.array([[3.0, 4.5]], dtype=np.float32)
    for name, value in (("a.npy", first), ("b.npy", second), ("c.npy", first.T)):
        np.save(tmp_path / name, value)
    assert distance("x.npy", tmp_path / "a.npy", tmp_path / "b.npy") == pytest.approx(0.1)
    assert distance("x.npy", tmp_path / "a.npy", tmp_path / "c.npy") == math.inf
    save_file({"w": first, "v": first}, tmp_path / "a.safetensors")
    save_file({"w": first, "v": second}, tmp_path / "b.safetensors")
    save_file({"w": first}, tmp_path / "c.safetensors")
    assert distance("x.safetensors", tmp_path / "a.safetensors", tmp_path / "b.safetensors") == pytest.approx(0.1)
    assert distance("x.safetensors", tmp_path / "a.safetensors", tmp_path / "c.safetensors") == math.inf


def test_weights_that_are_no_numbers_are_close_to_nothing(tmp_path: Path) -> None:
    ones = np.ones(3, dtype=np.float32)
    save_file({"v": ones, "w": ones}, tmp_path / "a.safetensors")
    save_file({"v": ones, "w": np.array([1, np.nan, 1], dtype=np.float32)}, tmp_path / "b.safetensors")
    assert distance("x.safetensors", tmp_path / "a.safetensors", tmp_path / "b.safetensors") == math.inf


def test_weights_in_half_precision_are_measured(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    for name, value in (("a", 1.0), ("b", 1.5)):
        save_file({"w": torch.full((4,), value, dtype=torch.bfloat16)}, tmp_path / f"{name}.safetensors")
    assert distance("x.safetensors", tmp_path / "a.safetensors", tmp_path / "b.safetensors") == pytest.approx(0.5)


def test_figures_are_apart_by_the_largest_difference(tmp_path: Path) -> None:
    def write(name: str, value: Any) -> Path:
        (tmp_path / name).write_text(json.dumps(value))
        return tmp_path / name

    first = write("a.json", {"dev": {"nDCG@10": 0.5, "RR@10": 0.25}, "weights": "abc"})
    assert distance("m.json", first, write("b.json", {"dev": {"nDCG@10": 0.503, "RR@10": 0.25}, "weights": "other"})) == pytest.approx(
        0.003
    )
    assert distance("m.json", first, write("c.json", {"dev": {"nDCG@10": 0.5}})) == math.inf
    assert distance("page.html", first, first) is None


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [("NaN", "NaN", 0), ("NaN", "0.5", math.inf), ("0.5", "NaN", math.inf), ("Infinity", "Infinity", 0), ("Infinity", "1", math.inf)],
)
def test_figures_that_are_no_numbers_are_close_to_their_like_alone(tmp_path: Path, first: str, second: str, expected: float) -> None:
    for name, value in (("a", first), ("b", second)):
        (tmp_path / f"{name}.json").write_text(f'{{"dev": {{"RR": 0.25, "nDCG": {value}, "AP": 0.5}}}}')
    assert distance("m.json", tmp_path / "a.json", tmp_path / "b.json") == expected


@pytest.mark.parametrize("space", ["", "\u00a0", "\u2028"], ids=["plain", "no-break space", "line separator"])
def test_runs_are_apart_by_documents_of_the_first_ten(tmp_path: Path, space: str) -> None:
    def write(name: str, docs: list[str]) -> None:
        (tmp_path / f"{name}.trec").write_text("".join(f"q{space}1 Q0 {doc} {rank} {-rank} s\n" for rank, doc in enumerate(docs, 1)))
        table = pa.table({"query": [f"q{space}1"] * len(docs), "doc": docs, "rank": range(1, len(docs) + 1)})
        pq.write_table(table, tmp_path / f"{name}.parquet")

    write("a", [f"d{space}{n}" for n in range(12)])
    write("b", ["x", *(f"d{space}{n}" for n in range(11))])
    for kind in ("trec", "parquet"):
        assert distance(f"r.{kind}", tmp_path / f"a.{kind}", tmp_path / f"b.{kind}") == pytest.approx(2 / 11), "x for d9, of eleven"
        assert distance(f"r.{kind}", tmp_path / f"a.{kind}", tmp_path / f"a.{kind}") == 0


def test_more_documents_and_other_queries_are_apart(tmp_path: Path) -> None:
    for name, rows in (("few", [("q1", 2)]), ("many", [("q1", 10)]), ("more", [("q1", 2), ("q2", 2)])):
        lines = [(query, f"d{rank}", rank) for query, count in rows for rank in range(1, count + 1)]
        (tmp_path / f"{name}.trec").write_text("".join(f"{query} Q0 {doc} {rank} {-rank} s\n" for query, doc, rank in lines))
        table = pa.table({key: list(column) for key, column in zip(("query", "doc", "rank"), zip(*lines, strict=True), strict=True)})
        pq.write_table(table, tmp_path / f"{name}.parquet")
    for kind in ("trec", "parquet"):
        few, many, more = (tmp_path / f"{name}.{kind}" for name in ("few", "many", "more"))
        assert distance(f"r.{kind}", few, many) == distance(f"r.{kind}", many, few) == pytest.approx(0.8), "eight of ten"
        assert distance(f"r.{kind}", few, more) == distance(f"r.{kind}", more, few) == math.inf, "q2 is in one alone"
        assert distance(f"r.{kind}", more, more) == 0


def test_only_what_other_hardware_made_is_compared_by_tolerance(tmp_path: Path) -> None:
    """Of two rounds, a was trained elsewhere; its metrics follow from that, b's do not."""
    lock = {
        f"{stage}@{name}": {
            "deps": [{"path": f"data/encoders/{name}", "md5": "x"}] if stage == "evaluate" else [],
            "outs": [{"path": f"data/{'metrics' if stage == 'evaluate' else 'encoders'}/{name}{'.json' if stage == 'evaluate' else ''}"}],
        }
        for stage in ("train", "evaluate")
        for name in "ab"
    }
    digests = []
    for folder, value in (("old", 0.5), ("new", 0.504)):
        (tmp_path / "metrics.json").write_text(json.dumps({"dev": value}))
        digests.append(file_md5(tmp_path / "metrics.json"))
        path = object_path(tmp_path / folder, digests[-1])
        path.parent.mkdir(parents=True)
        (tmp_path / "metrics.json").rename(path)
    old, new = digests
    rows = [(f"data/metrics/{name}.json", old, f"different: {new}") for name in "ab"]
    caches = (tmp_path / "old", tmp_path / "new")
    marked = list(mark_close(rows, lock, {"train@a"}, caches=caches, tolerance=0.01))
    assert [row[2] for row in marked] == ["close: measured 0.004 apart, tolerance 0.01", f"different: {new}"]
    assert next(mark_close(rows, lock, {"train@a"}, caches=caches, tolerance=0.001))[2].startswith("different: measured 0.004 apart")
    unmade = [(*rows[0][:2], "different: not made")]
    assert next(mark_close(unmade, lock, {"train@a"}, caches=caches, tolerance=1))[2] == "different: not made"
