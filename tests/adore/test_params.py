"""What an entry of `adore` must not contain, and how many steps it takes."""

import re

import numpy as np
import pytest

from tasks.adore.data import Data, steps_of
from tasks.adore.params import Adore, Study
from tasks.core.errors import UserError
from tasks.core.params.sections import validate
from tasks.core.tables.judgments import lists_of

GIVEN: dict[str, object] = {"round": "star", "negatives": "none"}
UNTRAINED = ("SQ8", "PQ4x4", "PQ8x4fs", "IVF8,PQ4", "IVF1k,PQ8", "PCA4,PQ2", "OPQ8,PQ8,RFlat", "HNSW32,SQ8", "RQ4x8", "RR8,OPQ4,PQ4")
TRAINED = ("PQ48", "OPQ8,PQ8", "OPQ24,IVF1,PQ24x8", "IVF1,PQ2x8", "OPQ8_32,PQ8", "RR32,PQ8", "PQ211")


def test_the_shortest_entry_is_adore_as_released() -> None:
    entry = validate(Adore, GIVEN, "adore.a")
    assert (entry.lists, entry.depth, entry.loss, entry.metric, entry.handling) == ("retrieved", 200, "lambda", "mrr", "drhard")
    assert (entry.optimizer, entry.lr, entry.weight_decay, entry.clip, entry.batch_queries) == ("adamw", 5e-6, 0.01, 1.0, 32)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"cut": 0}, "cut 0: every pair would have weight 0"),
        ({"cut": -3}, "every pair would have weight 0"),
        ({"cut": 5, "loss": "ranknet"}, "ranknet weights every pair by 1"),
        ({"negatives": "bm25"}, "negatives bm25 with lists: retrieved"),
        ({"lists": "given", "loss": "ranknet"}, "negatives none with lists: given"),
        ({"lists": "refreshed", "loss": "ranknet"}, "refresh None with lists: refreshed"),
        ({"refresh": 5}, "refresh 5 with lists: retrieved"),
        ({"lists": "random"}, "lists: random has no ranks for loss: lambda to weight"),
        ({"centroid_lr": 0.1}, "centroid_lr requires centroids"),
        ({"centroids": True, "index": "PQ2", "scores": "exact"}, "scores: exact gives the centroids no gradient"),
        ({"centroids": True}, "index Flat has no centroids; set an index such as OPQ24"),
        *(({"centroids": True, "index": index}, f"index {re.escape(index)}: centroids: true requires PQ") for index in UNTRAINED),
        ({"depth": 0}, "depth: found 0"),
        ({"refine": 1}, "refine: unknown key"),
    ],
)
def test_refusals(values: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words) as refusal:
        validate(Adore, GIVEN | values, "adore.a")
    assert "\n" not in str(refusal.value) and str(refusal.value).startswith("adore.a")


@pytest.mark.parametrize("index", TRAINED)
def test_centroids_of_these_are_trained(index: str) -> None:
    assert validate(Adore, GIVEN | {"centroids": True, "index": index}, "adore.a").index == index


def test_compressed_indexes_are_scored_as_their_papers_say() -> None:
    ltre = validate(Adore, GIVEN | {"index": "PQ2"}, "adore.a")
    jpq = validate(Adore, GIVEN | {"index": "PQ2", "centroids": True}, "adore.a")
    assert [(entry.scored, entry.handling) for entry in (ltre, jpq)] == [("exact", "drhard"), ("decoded", "jpq")]
    values = {"index": "PQ2", "scores": "decoded", "missing": "ltre"}
    params = validate(Adore, GIVEN | values, "adore.a")
    assert (params.scored, params.handling) == ("decoded", "ltre")
    assert validate(Study, {"round": "star", "factories": ["PQ2"]}, "study.s").scored == "exact"


def test_study_checks_its_cut_too() -> None:
    with pytest.raises(UserError, match="every pair would have weight 0"):
        validate(Study, {"round": "star", "factories": ["Flat"], "cut": 0}, "study.s")


@pytest.mark.parametrize(("batch_queries", "epochs", "steps"), [(4, 2.0, 3), (64, 5.0, 5), (6, 1.0, 1), (64, 0.1, 1)])
def test_steps(batch_queries: int, epochs: float, steps: int) -> None:
    """Of six queries; a batch holds no more than there are."""
    positives = lists_of(np.arange(6), np.arange(6), 6)
    data = Data(np.arange(6), positives, None, 9, positives)
    assert steps_of(data, validate(Adore, GIVEN | {"batch_queries": batch_queries, "epochs": epochs}, "adore.a")) == steps


@pytest.mark.parametrize(
    ("measures", "words"),
    [
        (["RR@10", "R@101"], r"measures R@101: expected a cutoff of at most serve_depth \(100\); raise serve_depth"),
        (["nDCG(judged_only=True)@101"], r"expected a cutoff of at most serve_depth \(100\); raise serve_depth"),
        (["Coverage@5"], "measures Coverage@5: reads texts, which a study does not; remove it"),
        (["RR10"], "'RR10' is not a valid measure"),
    ],
)
def test_a_study_refuses_what_it_cannot_measure(measures: list[str], words: str) -> None:
    with pytest.raises(UserError, match=words) as refusal:
        validate(Study, {"round": "star", "factories": ["Flat"], "measures": measures}, "study.s")
    assert "\n" not in str(refusal.value)
    assert validate(Study, {"round": "star", "factories": ["Flat"], "measures": ["R@101"], "serve_depth": 101}, "study.s")
