"""The model that a revision stands for."""

import pytest

from flows.explaining import sides
from flows.explaining.sides import _best_model


@pytest.mark.parametrize(
    ("means", "model", "note"),
    [
        (
            {"bm25": 0.9, "init": 0.5, "star": 0.75},
            "star",
            "HEAD: BM25 is the best on dev (nDCG@10 0.9000, star 0.7500), but is not trained, so star is explained; "
            "for BM25, name HEAD:bm25",
        ),
        ({"bm25": 0.7, "init": 0.5, "star": 0.75}, "star", ""),
        ({"bm25": 0.7}, "bm25", ""),
    ],
    ids=["better", "worse", "alone"],
)
def test_bm25_is_no_best_model(means: dict[str, float], model: str, note: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the same whatever was trained, so a comparison of retrainings with it explains nothing."""
    monkeypatch.setattr(sides, "means_on_dev", lambda *_: means)
    assert _best_model("HEAD", {}, {"rounds": {"init": {}, "star": {}}}) == (model, note)
