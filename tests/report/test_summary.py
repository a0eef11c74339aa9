"""What the page says first, of systems that are made of others."""

from typing import Any

import pytest

from tasks.report.summary import index_sentence, training_sentence
from tasks.report.systems import System

SECTIONS: dict[str, Any] = {
    "adore": {"tower": {"round": "star"}},
    "fuse": {
        "two": {"first": "warmup", "second": "star"},
        "again": {"first": "tower", "second": "two"},
        "last_bm25": {"first": "star", "second": "bm25"},
    },
    "rerank": {"above": {"run": "two", "reranker": "small"}},
}
INDEXES = {"star": {"bytes_per_vector": 1536.0}, "warmup": {"bytes_per_vector": 1000.0}}


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("star", "Its index (star) takes 1,536 bytes per passage."),
        ("tower", "Its index (star) takes 1,536 bytes per passage."),
        ("last_bm25", "Its index (star) takes 1,536 bytes per passage."),
        ("two", "Its indexes (warmup and star) take 2,536 bytes per passage."),
        ("again", "Its indexes (star and warmup) take 2,536 bytes per passage."),
        ("above", "Its indexes (warmup and star) take 2,536 bytes per passage."),
        ("bm25", ""),
    ],
)
def test_the_size_of_all_indexes_that_a_system_searches(name: str, sentence: str) -> None:
    assert index_sentence(System(name, "", {}, {}, {}), SECTIONS, INDEXES) == sentence


def test_only_encoders_that_a_training_starts_from_are_named() -> None:
    rounds = {"one": {"init": "e5", "steps": 9}, "two": {"init": "mlm"}}
    encoders = {"e5": {"source": "me/e5"}, "bge": {"source": "me/bge"}, "later": {"source": "me/later"}}
    sections = {"rounds": rounds, "pretrain": {"mlm": {"init": "bge"}}, "encoders": encoders}
    assert training_sentence(sections, {}, "/models/mini") == "2 rounds, from mini and me/e5 and me/bge."
