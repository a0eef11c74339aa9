"""Fusion against a plain loop, a case worked by hand and, where it is installed, ranx; ties, missing documents, odd lists."""

import random
import statistics

import numpy as np
import pytest

from tasks.core.retrieval.fusion import GRIDS, UNTUNED, Method, Ranked, fuse, min_max, pair, z_scores

METHODS: list[Method] = ["linear", "zscore", "rrf"]
Lists = tuple[dict[str, float], dict[str, float]]  # scores by document of either system


def ranked_list(scores: dict[str, float]) -> Ranked:
    """A list as a run holds it: by falling score, ties by falling id."""
    order = sorted(scores, key=lambda document: (scores[document], document), reverse=True)
    return Ranked(order, np.array([scores[document] for document in order]))


def reference_fusion(lists: Lists, method: Method, setting: float) -> dict[str, float]:
    """Every method by its definition, a document at a time."""
    weights = (setting, 1 - setting)
    total: dict[str, float] = {}
    for document in {*lists[0], *lists[1]}:
        total[document] = 0.0
        for scores, weight in zip(lists, weights, strict=True):
            if document not in scores:
                continue  # adds nothing: 0 of rrf, the minimum of min-max, the mean of standard scores
            values = list(scores.values())
            low, high = min(values), max(values)
            if method == "rrf":
                rank = 1 + sum((scores[other], other) > (scores[document], document) for other in scores)
                total[document] += 1 / (setting + rank)
            elif low < high and method == "linear":
                total[document] += weight * (scores[document] - low) / (high - low)
            elif low == high:
                total[document] += weight
            else:
                total[document] += weight * (scores[document] - statistics.fmean(values)) / statistics.pstdev(values)
    return total


def draw_lists(seed: int) -> Lists:
    """Two random lists over the same corpus, with ties within and between them, and documents that one lacks."""
    rng = random.Random(seed)
    documents = [f"d{n}" for n in range(40)]
    levels = [float(np.float32(x)) for x in (-3.5, 0.1, 1 / 3, 2.0, 7.25, 40.0)]
    return tuple({document: rng.choice(levels) for document in rng.sample(documents, rng.randint(0, 25))} for _ in range(2))  # type: ignore[return-value]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("seed", range(12))
def test_equals_a_plain_loop(seed: int, method: Method) -> None:
    lists = draw_lists(seed)
    lists_pair = pair(ranked_list(lists[0]), ranked_list(lists[1]), method)
    for setting in GRIDS[method]:
        expected = reference_fusion(lists, method, setting)
        for depth in (1, 7, 1000):
            fused = fuse(lists_pair, setting, depth)
            assert len(fused) == min(depth, len(expected))
            for document, score in fused:
                assert score == pytest.approx(expected[document], rel=1e-5, abs=1e-6)
            assert fused == sorted(fused, key=lambda entry: (entry[1], entry[0]), reverse=True)  # ties: falling id
            last = fused[-1][1] if fused else 0
            assert all(expected[document] <= last + 1e-5 for document in set(expected) - {document for document, _ in fused})


def test_worked_by_hand() -> None:
    first, second = ranked_list({"a": 4.0, "b": 3.0, "c": 0.0}), ranked_list({"b": 0.9, "d": 0.7, "a": 0.5})
    # min-max: a 1, b 3/4, c 0 and b 1, d 1/2, a 0; of weight .2: b .15 + .8, d .4, a .2, c 0
    assert fuse(pair(first, second, "linear"), 0.2, 9) == [
        (doc, pytest.approx(s)) for doc, s in [("b", 0.95), ("d", 0.4), ("a", 0.2), ("c", 0)]
    ]
    # ranks: a 1, b 2, c 3 and b 1, d 2, a 3; k 1: b 1/3 + 1/2, a 1/2 + 1/4, d 1/3, c 1/4
    expected = [("b", 5 / 6), ("a", 3 / 4), ("d", 1 / 3), ("c", 1 / 4)]
    assert fuse(pair(first, second, "rrf"), 1, 9) == [(doc, pytest.approx(s)) for doc, s in expected]
    # standard scores of the second: mean .7, deviation .2 sqrt(2/3); of weight 0 a and c: -sqrt(3/2) and, missing, the mean's 0
    scores = dict(fuse(pair(first, second, "zscore"), 0, 9))
    assert scores == {"b": pytest.approx(1.5**0.5), "d": pytest.approx(0, abs=1e-6), "c": 0, "a": pytest.approx(-(1.5**0.5))}


@pytest.mark.parametrize("method", METHODS)
def test_odd_lists(method: Method) -> None:
    some, none = ranked_list({"a": 2.0, "b": 1.0}), Ranked()
    assert fuse(pair(none, none, method), 0.5, 9) == []
    for lists_pair in (pair(some, none, method), pair(none, some, method)):
        assert [document for document, _ in fuse(lists_pair, 0.5, 9)] == ["a", "b"]
    single, level = ranked_list({"a": 5.0}), ranked_list({"a": 5.0, "b": 5.0, "c": 5.0})
    for lists in ((single, single), (level, level), (single, level)):
        fused = fuse(pair(*lists, method), 0.5, 9)
        assert np.isfinite([score for _, score in fused]).all()
        assert {document for document, _ in fused} == {*lists[0].documents, *lists[1].documents}
    if method != "rrf":  # a list of equal scores orders nothing: the other one does
        assert fuse(pair(level, some, method), 0.9, 9)[0][0] == "a"
    assert min_max(np.full(3, 7.0)).tolist() == z_scores(np.full(3, 7.0)).tolist() == [1, 1, 1]
    assert min_max(np.empty(0)).tolist() == z_scores(np.empty(0)).tolist() == []


def test_grids_reach_from_one_list_to_the_other_and_have_what_is_used_without_dev() -> None:
    for method in ("linear", "zscore"):
        assert GRIDS[method] == pytest.approx([0.05 * step for step in range(21)])  # type: ignore[index]
        assert GRIDS[method][0] == 0 and GRIDS[method][-1] == 1, "either list alone"  # type: ignore[index]
    assert all(UNTUNED[method] in GRIDS[method] for method in METHODS)
    assert list(GRIDS["rrf"]) == sorted(set(GRIDS["rrf"])) and UNTUNED["rrf"] == 60, "as in the paper"


@pytest.mark.parametrize("method", METHODS)
def test_the_only_document_of_a_list_counts(method: Method) -> None:
    dense = ranked_list({f"d{n:02}": 1 - n / 100 for n in range(30)})
    only = fuse(pair(ranked_list({"x": 8.5}), dense, method), 60 if method == "rrf" else 0.5, 10)
    assert "x" in dict(only)  # BM25 matches nothing else: the dense list's last documents must not all precede it


def test_weights_of_one_and_zero_give_a_list_in_its_own_order() -> None:
    lists = {f"d{n}": float(n % 5) for n in range(20)}, {f"d{n}": float(n % 3) for n in range(20)}
    for method in ("linear", "zscore"):
        lists_pair = pair(ranked_list(lists[0]), ranked_list(lists[1]), method)  # type: ignore[arg-type]
        assert [document for document, _ in fuse(lists_pair, 1, 99)] == ranked_list(lists[0]).documents
        assert [document for document, _ in fuse(lists_pair, 0, 99)] == ranked_list(lists[1]).documents


@pytest.mark.parametrize("method", METHODS)
def test_equals_ranx(method: Method) -> None:
    ranx = pytest.importorskip("ranx")
    drawn_lists = [draw_lists(seed) for seed in range(20)]
    usable = {f"q{n}": lists for n, lists in enumerate(drawn_lists) if all(len(set(scores.values())) > 1 for scores in lists)}
    runs = [ranx.Run({query: {d: ranked_list(lists[side]).scores[place] for place, d in enumerate(ranked_list(lists[side]).documents)}
                      for query, lists in usable.items()}) for side in (0, 1)]  # fmt: skip
    for setting in GRIDS[method]:
        if method == "rrf":
            theirs = ranx.fuse(runs=list(runs), norm=None, method="rrf", params={"k": setting})
        else:
            norm = {"linear": "min-max", "zscore": "zmuv"}[method]
            theirs = ranx.fuse(runs=list(runs), norm=norm, method="wsum", params={"weights": (setting, 1 - setting)})
        for query, lists in usable.items():
            ours = dict(fuse(pair(ranked_list(lists[0]), ranked_list(lists[1]), method), setting, 1000))
            assert ours == {d: pytest.approx(score, rel=1e-5, abs=1e-6) for d, score in theirs.run[query].items()}
