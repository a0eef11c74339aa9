"""Which pairs of systems are tested, each once."""

import random

import numpy as np
import pytest

from tasks.core.metrics.paired_tests import holm
from tasks.report.significance import compare
from tasks.report.systems import System


def system(name: str, values: list[float]) -> System:
    return System(
        name, "", {"test": {"AP": float(np.mean(values))}}, {"test": [str(i) for i in range(len(values))]}, {"test": np.array(values)}
    )


def test_every_pair_is_tested_once() -> None:
    draw = random.Random(0)
    systems = [system(name, [draw.random() for _ in range(9)]) for name in ("bm25", "init", "warm", "star")]
    pairs = compare(systems, ("init", "bm25", "absent"), "test", 0.05)
    met = [(pair.system, pair.baseline) for pair in pairs]
    assert met == [("init", "bm25"), ("warm", "bm25"), ("warm", "init"), ("star", "bm25"), ("star", "init")]
    assert [pair.p_holm for pair in pairs] == holm([pair.p for pair in pairs])
    assert pairs[1].difference == pytest.approx(float((systems[2].values["test"] - systems[0].values["test"]).mean()))
    assert compare(systems[:1], ("bm25",), "test", 0.05) == []
    assert compare(systems, ("bm25",), "dev", 0.05) == []
