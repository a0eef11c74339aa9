"""Validation while training: what is held out, what is measured, which weights are kept."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tasks.core.errors import Corrupt, UserError
from tasks.core.metrics.measures import parse, per_query
from tasks.core.tables.judgments import DocumentLists, lists_of
from tasks.core.training.checkpoints import BEST, CHECKPOINT
from tasks.core.training.loop import Journal, Schedule, Steps, Validation, fit
from tasks.train.batches import TrainingSet
from tasks.train.params import Round
from tasks.train.validation import hold_out, ndcg, trained_before

EMPTY = DocumentLists(np.zeros(61, dtype=np.int64), np.zeros(0, dtype=np.int32))


def training_set(per_document: int = 3, negatives: DocumentLists = EMPTY) -> TrainingSet:
    """60 queries, `per_document` for each relevant document, of a corpus of 100."""
    queries = np.arange(60)
    positives = lists_of(queries, queries // per_document, 60)
    return TrainingSet(queries, positives, negatives, 100, positives)


def params(**fields: Any) -> Round:
    return Round.model_validate({"init": "base", "negatives": "bm25", "validate_every": 1, **fields})


def test_held_out_documents_are_trained_on_by_no_query() -> None:
    data = training_set()
    kept, sample = hold_out(data, params(validation_queries=7, validation_documents=50))
    assert len(sample.queries) == 7
    assert not set(kept.queries // 3) & set(sample.queries // 3)
    assert len(kept.queries) == 51, "of the third document, two queries are neither trained on nor measured"
    assert len(sample.documents) == 50
    assert (sample.positive == (sample.documents[None] == (sample.queries // 3)[:, None])).all()
    again = hold_out(data, params(validation_queries=7, validation_documents=50, seed=1))[1]
    assert (again.queries == sample.queries).all(), "split_seed draws it, not seed"
    assert set(hold_out(data, params(validation_queries=7, split_seed=1))[1].queries) != set(sample.queries)


def test_what_held_out_queries_share_with_others_is_told() -> None:
    """Query 0 has documents 0 and 1, query 1 has 1 and 2, query 2 has 3. Whatever is drawn first is trained on by nobody."""
    positives = lists_of(np.array([0, 0, 1, 1, 2]), np.array([0, 1, 1, 2, 3]), 3)
    data = TrainingSet(np.arange(3), positives, EMPTY, 4, positives)
    seen = set()
    for seed in range(40):
        kept, sample = hold_out(data, params(validation_queries=1, split_seed=seed))
        seen.add((*sample.queries.tolist(), tuple(kept.queries.tolist()), sample.describe(kept)))
    line = "1 training query is held out, and ranks 4 documents"
    shares = f"{line}; 50% of their relevant documents are relevant to queries that may be trained on"
    assert seen == {(0, (1, 2), shares), (0, (2,), line), (1, (0, 2), shares), (2, (0, 1), line)}


def test_documents_with_the_text_of_a_positive_are_held_out_with_it() -> None:
    """Query 0 has document 0, query 1 document 1; both documents have one text."""
    positives = lists_of(np.arange(4), np.arange(4), 4)
    known = lists_of(np.array([0, 0, 1, 1, 2, 3]), np.array([0, 1, 0, 1, 2, 3]), 4)
    data = TrainingSet(np.arange(4), positives, EMPTY, 4, known)
    for seed in range(20):
        kept, sample = hold_out(data, params(validation_queries=1, split_seed=seed))
        if sample.queries[0] < 2:
            assert set(kept.queries) == {2, 3}
            assert sample.positive.sum() == 2, "and a copy of a positive is relevant"


def test_a_sample_has_the_best_hard_negatives_and_random_documents() -> None:
    ranked = lists_of(np.repeat(np.arange(60), 20), np.tile(np.arange(70, 90), 60), 60)
    sample = hold_out(training_set(1, ranked), params(validation_queries=5, validation_documents=25))[1]
    assert len(sample.documents) == 25
    assert {*range(70, 80)} <= set(sample.documents), "half of what 5 positives leave, best ranks first"
    assert len(hold_out(training_set(1, ranked), params(validation_queries=5, validation_documents=10**6))[1].documents) == 100
    none = hold_out(training_set(1, ranked), params(negatives="none", validation_queries=5, validation_documents=25))[1]
    assert len({*range(70, 90)} & set(none.documents)) < 15, "without hard negatives all are random"


def test_no_query_left_to_train_on_is_refused() -> None:
    with pytest.raises(UserError, match=r"validation_queries 60: found 60 queries, expected some to remain for training"):
        hold_out(training_set(), params(validation_queries=60))


def test_a_start_that_was_trained_on_held_out_queries_is_reported() -> None:
    validated = params(init="warmup", validation_queries=7, validation_documents=50)
    sample = hold_out(training_set(), validated)[1]
    trained = {"steps": 4, "seed": 42, "queries": 32, "of": 51}
    assert trained_before({}, sample, validated) == trained_before({"steps": 0}, sample, validated) == "", "not trained"
    assert trained_before(trained | {"held_out": sample.digest}, sample, validated) == "", "on other queries"
    line = trained_before({"steps": 0}, sample, validated, np.append(sample.queries[:2], -1))
    assert line.startswith("warmup knows 2 of the held-out queries, so the validation at step 0 is too good; set keep: last"), "a champion"
    others_known = np.setdiff1d(np.arange(60), sample.queries)
    assert trained_before({"steps": 0}, sample, validated, others_known) == ""
    fewer, others = params(validation_queries=6), params(validation_queries=7, split_seed=1)
    for other in ({}, *({"held_out": hold_out(training_set(), settings)[1].digest} for settings in (fewer, others))):
        assert trained_before(trained | other, sample, validated).startswith(
            "warmup, or a round before it, was trained without holding these queries out"
        )


def test_ndcg_is_that_of_ir_measures() -> None:
    rng = np.random.default_rng(3)
    scores, positive = rng.normal(size=(40, 30)).astype(np.float32), rng.random((40, 30)) < 0.2
    positive[:, 0] = True
    names = [f"d{number:02}" for number in range(30)]
    qrels = {f"q{row}": {name: int(grade) for name, grade in zip(names, grades, strict=True)} for row, grades in enumerate(positive)}
    rankings = {f"q{row}": [names[place] for place in np.argsort(-line)] for row, line in enumerate(scores)}
    values = per_query(parse(["nDCG@10"], 1), qrels, rankings)
    assert ndcg(scores, positive) == pytest.approx(np.mean([line["nDCG@10"] for line in values.values()]), abs=1e-9)
    assert ndcg(np.zeros((1, 3), dtype=np.float32), np.array([[False, True, False]])) == pytest.approx(1 / np.log2(3)), "ties by order"


class Walk(nn.Module):
    """One weight, which a step of SGD with lr 1 moves by 1."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))


def walk(folder: Path, values: list[float], **fields: Any) -> tuple[int, float, list[int]]:
    """Train 6 steps with a validation whose value after step n is values[n]: steps kept, the weight, and where it was measured."""
    folder.mkdir(exist_ok=True)
    (folder / "curves").mkdir(exist_ok=True)
    module, measured = Walk(), []

    def measure() -> float:
        measured.append(int(module.weight))
        return values[measured[-1]]

    def backward(_: int) -> dict[str, float]:
        module.weight.grad = -torch.ones(1)
        return {"loss": 1.0}

    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    optimizer.param_groups[0]["lr"] = 1.0
    validation = Validation("validation/x", measure, fields.pop("every", 1), **fields)
    schedule = Schedule(6, 0.0, 10.0, 0, 10**9)  # lr stays 1 to the last of six steps
    best_step = fit(
        module, optimizer, Steps.undrawn(backward), schedule, Journal("walk", folder, folder / "curves", 0.0), validation=validation
    )
    return best_step, float(module.weight.detach()), measured


def test_the_best_weights_are_kept(tmp_path: Path) -> None:
    values = [0.1, 0.2, 0.5, 0.3, 0.5, 0.2, 0.1]
    best_step, weight, measured = walk(tmp_path / "best", values)
    assert (best_step, measured) == (2, [0, 1, 2, 3, 4, 5, 6]), "the first of equals"
    assert weight == pytest.approx(2, abs=1e-6)
    assert walk(tmp_path / "last", values, keep_best=False)[0] == 6
    assert walk(tmp_path / "rarely", values, every=4)[0] == 4
    assert walk(tmp_path / "end", [*values[:6], 0.9], every=4)[2] == [0, 4, 6], "the end is measured too"
    assert walk(tmp_path / "start", [0.9, *values[1:]])[:2] == (0, 0.0), "training that only made it worse"
    lines = (tmp_path / "rarely/curves/plots/metrics/validation/x.tsv").read_text().splitlines()
    assert [sorted(map(float, line.split("\t"))) for line in lines[1:]] == [[0, 0.1], [0.5, 4], [0.1, 6]]


def test_patience_ends_a_training(tmp_path: Path) -> None:
    best_step, _, measured = walk(tmp_path / "early", [0.1, 0.4, 0.3, 0.2, 0.9, 0.9, 0.9], patience=2)
    assert (best_step, measured) == (1, [0, 1, 2, 3])
    assert walk(tmp_path / "last", [0.1, 0.4, 0.3, 0.2, 0.9, 0.9, 0.9], patience=2, keep_best=False)[0] == 3


def test_lost_best_weights_are_one_line_and_the_next_training_begins_anew(tmp_path: Path) -> None:
    (tmp_path / "lost" / "curves").mkdir(parents=True)
    values = [0.1, 0.5, 0.3, 0.3, 0.3, 0.3, 0.3]

    def lose_best(*_: object) -> bool:
        (tmp_path / "lost" / BEST).unlink(missing_ok=True)
        return False

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Validation, "over", lose_best)
        with pytest.raises(Corrupt, match="expected the weights after 1 steps"):
            walk(tmp_path / "lost", values)
    assert not (tmp_path / "lost" / CHECKPOINT).exists()
    assert walk(tmp_path / "lost", values)[0] == 1


def test_patience_without_validation_is_refused() -> None:
    with pytest.raises(ValueError, match="patience counts validations"):
        params(patience=2, validate_every=None)
