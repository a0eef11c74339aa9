"""Hinge, hardest negative, margin-MSE and KL with their gradients against plain loops; the step that puts them together."""

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import tasks.train
from tasks.core.errors import UserError
from tasks.train.batches import Batch
from tasks.train.losses import hardest_negatives, hinge, kl, margin_mse, nll, ranknet
from tasks.train.params import Round
from tasks.train.step import batch_loss

CASES = range(40)


def random_case(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores on a coarse grid, so that ties are common, and negatives: none of a query, or of all, in some cases."""
    rng = np.random.default_rng(seed)
    queries, hard = int(rng.integers(1, 6)), int(rng.integers(0, 4))
    scores = torch.tensor(rng.integers(-6, 7, size=(queries, queries * (1 + hard))) / 2.0, requires_grad=True)
    negative = rng.random(scores.shape) < 0.7
    negative[np.arange(queries), np.arange(queries)] = False
    if seed % 5 == 0:
        negative[0] = False
    if seed % 7 == 0:
        negative[:] = False
    return scores, torch.from_numpy(negative)


def group_case(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Student, teacher and valid slots of groups; some have no teacher's score of the positive, some no negative."""
    rng = np.random.default_rng(seed)
    shape = (int(rng.integers(1, 6)), 1 + int(rng.integers(1, 5)))
    student = torch.tensor(rng.normal(scale=4, size=shape), requires_grad=True)
    teacher = torch.tensor(np.round(rng.normal(scale=4, size=shape)))  # ties
    valid = torch.from_numpy(rng.random(shape) < 0.8)
    if seed % 7 == 0:
        valid[:] = False
    return student, teacher, valid


def check_loss(loss: torch.Tensor, scores: torch.Tensor, value: float, gradient: np.ndarray) -> None:
    loss.backward()
    assert scores.grad is not None
    assert float(loss) == pytest.approx(value, abs=1e-9)
    np.testing.assert_allclose(scores.grad, gradient, atol=1e-9)


@pytest.mark.parametrize("seed", CASES)
@pytest.mark.parametrize("margin", [0.3, 1.2])
def test_hinge_and_its_gradient(seed: int, margin: float) -> None:
    scores, negative = random_case(seed)
    pairs = [tuple(pair) for pair in negative.nonzero().tolist()]
    value, gradient = 0.0, np.zeros(scores.shape)
    for q, j in pairs:
        gap = margin - (float(scores[q, q]) - float(scores[q, j]))
        if gap > 0:
            value += gap / len(pairs)
            gradient[q, j] += 1 / len(pairs)
            gradient[q, q] -= 1 / len(pairs)
    check_loss(hinge(scores, negative, margin), scores, value, gradient)


@pytest.mark.parametrize("seed", CASES)
def test_hardest_is_one_negative_of_the_highest_score(seed: int) -> None:
    scores, negative = random_case(seed)
    hardest = hardest_negatives(scores, negative)
    for q in range(len(scores)):
        slots = [j for j in range(scores.shape[1]) if negative[q, j]]
        chosen = [j for j in range(scores.shape[1]) if hardest[q, j]]
        assert len(chosen) == min(1, len(slots))
        if slots:
            assert chosen[0] in slots
            assert float(scores[q, chosen[0]]) == max(float(scores[q, j]) for j in slots)
    value = sum(
        math.log1p(
            math.exp(max((float(scores[q, j]) for j in range(scores.shape[1]) if negative[q, j]), default=-math.inf) - float(scores[q, q]))
        )
        for q in range(len(scores))
    ) / len(scores)
    assert float(nll(scores, hardest)) == pytest.approx(value)


@pytest.mark.parametrize("seed", CASES)
def test_margin_mse_and_its_gradient(seed: int) -> None:
    student, teacher, valid = group_case(seed)
    pairs = [(q, j) for q, row in enumerate(valid.tolist()) for j, is_valid in enumerate(row) if j and is_valid and row[0]]
    value, gradient = 0.0, np.zeros(student.shape)
    for q, j in pairs:
        gap = float(student[q, 0]) - float(student[q, j]) - float(teacher[q, 0]) + float(teacher[q, j])
        value += gap**2 / len(pairs)
        gradient[q, 0] += 2 * gap / len(pairs)
        gradient[q, j] -= 2 * gap / len(pairs)
    check_loss(margin_mse(student, teacher, valid), student, value, gradient)


@pytest.mark.parametrize("seed", CASES)
def test_kl_and_its_gradient(seed: int) -> None:
    """d KL / d s_j = p_student(j) - p_teacher(j), over the slots that count."""
    student, teacher, valid = group_case(seed)
    groups = {q: [j for j, is_valid in enumerate(row) if is_valid] for q, row in enumerate(valid.tolist()) if row[0] and any(row[1:])}
    value, gradient = 0.0, np.zeros(student.shape)
    for q, slots in groups.items():
        s = {j: math.exp(float(student[q, j])) for j in slots}
        t = {j: math.exp(float(teacher[q, j])) for j in slots}
        for j in slots:
            p, r = s[j] / sum(s.values()), t[j] / sum(t.values())
            value += r * math.log(r / p) / len(groups)
            gradient[q, j] = (p - r) / len(groups)
    check_loss(kl(student, teacher, valid), student, value, gradient)


def test_by_hand() -> None:
    """Student 2, 1 and teacher 3, 0: margins 1 and 3, so (1 - 3)^2 = 4; with the margin met, hinge is 0, short of it 0.5."""
    student, teacher, valid = torch.tensor([[2.0, 1.0]]), torch.tensor([[3.0, 0.0]]), torch.ones(1, 2).bool()
    assert float(margin_mse(student, teacher, valid)) == pytest.approx(4)
    p, r = math.e / (1 + math.e), math.e**3 / (1 + math.e**3)
    assert float(kl(student, teacher, valid)) == pytest.approx(r * math.log(r / p) + (1 - r) * math.log((1 - r) / (1 - p)), abs=1e-6)
    negative = torch.tensor([[False, True]])
    assert float(hinge(student, negative, 1.0)) == 0
    assert float(hinge(student, negative, 1.5)) == pytest.approx(0.5)


def round_of(**values: object) -> Round:
    return Round.model_validate({"init": "base", "negatives": "t", "hard_negatives": 2, "temperature": 0.5, **values})


def batch_of(scores: list[list[float]]) -> Batch:
    """Two queries, documents 0 to 3: positives 0 and 1; query 0 has 2 and 3, query 1 has 0 (a positive of it) and 2."""
    slots = np.array([0, 1, 2, 3, 0, 2])
    positive = np.array([[True, False, False, False, True, False], [True, True, False, False, True, False]])
    own = np.array([[False, False, True, True, False, False], [False, False, False, False, True, True]])
    return Batch(np.arange(2), np.arange(4), slots, positive, own, np.array(scores, dtype=np.float32))


@pytest.mark.parametrize("loss", ["kl", "margin_mse"])
def test_a_step_to_a_teacher(loss: str) -> None:
    """Scores over temperature; known positives and documents without a teacher's score are excluded; nll is added with its weight."""
    draw = torch.Generator().manual_seed(3)
    queries, documents = torch.randn(2, 4, generator=draw), torch.randn(4, 4, generator=draw)
    batch = batch_of([[2.0, 1.0, math.nan], [1.0, 0.5, -1.0]])
    s = (queries @ documents.T / 0.5).tolist()
    groups = [([s[0][0], s[0][2]], [2.0, 1.0]), ([s[1][1], s[1][2]], [1.0, -1.0])]  # query 0: 3 has no score; query 1: 0 is its positive
    if loss == "margin_mse":
        value = sum((a[0] - a[1] - (b[0] - b[1]) / 4) ** 2 for a, b in groups) / 2
    else:
        value = 0.0
        for a, b in groups:
            p = [math.exp(x) / sum(map(math.exp, a)) for x in a]
            r = [math.exp(x / 4) / sum(math.exp(y / 4) for y in b) for x in b]
            value += sum(y * math.log(y / x) for x, y in zip(p, r, strict=True)) / 2
    distilled, _ = batch_loss(queries @ documents.T, batch, round_of(loss=loss, teacher_temperature=4.0))
    assert float(distilled) == pytest.approx(value, abs=1e-5)
    mixed, _ = batch_loss(queries @ documents.T, batch, round_of(loss=loss, teacher_temperature=4.0, nll_weight=0.2))
    plain_nll, _ = batch_loss(queries @ documents.T, batch, round_of(loss="nll"))
    assert float(mixed) == pytest.approx(value + 0.2 * float(plain_nll), abs=1e-5)


def test_a_step_of_each_other_loss() -> None:
    draw = torch.Generator().manual_seed(4)
    queries, documents = torch.randn(2, 4, generator=draw), torch.randn(4, 4, generator=draw)
    batch = batch_of([[0.0] * 3] * 2)
    scores = (queries @ documents.T)[:, batch.slots] / 0.5
    negative = torch.from_numpy(~batch.positive)
    own = negative & torch.from_numpy(batch.own)

    def step(**values: object) -> float:
        return float(batch_loss(queries @ documents.T, batch, round_of(**values))[0])

    assert step(loss="pairwise", in_batch=False) == pytest.approx(float(ranknet(scores, own)))
    assert step(loss="hinge", margin=2.0) == pytest.approx(float(hinge(scores, negative, 2.0)))
    assert step(loss="nll", hardest=True) == pytest.approx(float(nll(scores, hardest_negatives(scores, negative))))
    assert step(loss="nll", negatives="bm25", in_batch=False) == pytest.approx(float(nll(scores, own)))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"hard_negatives": 5, "window": [3, 6]}, "window .3, 6. has only 4"),
        ({"negatives": "none", "in_batch": False}, "so there are no negatives"),
        ({"negatives": "none", "loss": "kl"}, "requires hard_negatives"),
        ({"loss": "kl", "hardest": True}, "choose one"),
        ({"loss": "kl", "distill": True}, "distill is for a loss of your own"),
        ({"optimizer_from": "continue"}, "requires schedule_steps"),
        ({"optimizer_from": "moments", "lora": {}}, "moments has no state for lora's adapters"),
        ({"start_share": 0.3, "projector": "linear"}, "start_share has nothing to average"),
        ({"steps": 10, "schedule_steps": 9}, "steps 10 exceeds schedule_steps 9"),
    ],
)
def test_inconsistent_rounds_are_refused(values: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        round_of(**values)


@pytest.fixture
def own_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], str]]:
    """`own_loss(body)` is the name of a function of a project's own."""

    def write(body: str, parameters: str = "scores_BS, negative_BS, own_BS, weight_B") -> str:
        (tmp_path / "mine.py").write_text(f"def loss({parameters}):\n    {body}\n")
        return "tasks.train.mine:loss@0123456789abcdef"

    monkeypatch.setattr(tasks.train, "__path__", [*tasks.train.__path__, str(tmp_path)])
    yield write
    sys.modules.pop("tasks.train.mine", None)


def test_a_step_of_a_loss_of_ones_own(own_loss: Callable[[str], str]) -> None:
    """It gets scores over temperature, the negatives, which of them are the query's own hard ones, and the weights."""
    draw = torch.Generator().manual_seed(5)
    scores = torch.randn(2, 4, generator=draw)
    batch = replace(batch_of([[0.0] * 3] * 2), weights=np.array([1.0, 3.0], dtype=np.float32))
    name = own_loss("return (scores_BS * negative_BS * own_BS * weight_B[:, None]).sum()")
    scaled = scores[:, batch.slots] / 0.5
    negative = ~batch.positive & batch.own
    expected = sum(float(scaled[q, s]) * (1.0, 3.0)[q] for q in range(2) for s in range(6) if negative[q, s])
    assert float(batch_loss(scores, batch, round_of(loss=name))[0]) == pytest.approx(expected, abs=1e-5)


def test_a_step_to_a_teacher_with_a_loss_of_ones_own(own_loss: Callable[[str, str], str]) -> None:
    """It gets the scores of each query's own documents, the teacher's over its temperature, which of them count, and the weights."""
    scores = torch.randn(2, 4, generator=torch.Generator().manual_seed(5))
    batch = replace(batch_of([[2.0, 1.0, math.nan], [1.0, 0.5, -1.0]]), weights=np.array([1.0, 3.0], dtype=np.float32))
    name = own_loss("return (group_BG * teacher_BG * valid_BG * weight_B[:, None]).sum()", "group_BG, teacher_BG, valid_BG, weight_B")
    params = round_of(loss=name, negatives="ce", distill=True, teacher_temperature=4.0, nll_weight=0.2)
    s = (scores / 0.5).tolist()
    expected = s[0][0] * 2 / 4 + s[0][2] * 1 / 4 + 3 * (s[1][1] * 1 / 4 + s[1][2] * -1 / 4)
    plain_nll = batch_loss(scores, batch, round_of(loss="nll"))[0]
    assert float(batch_loss(scores, batch, params)[0]) == pytest.approx(expected + 0.2 * float(plain_nll), abs=1e-5)
    with pytest.raises(ValueError, match="choose one"):
        round_of(loss=name, negatives="ce", distill=True, hardest=True)


@pytest.mark.parametrize(("body", "words"), [("return scores_BS.sum(1)", r"shape \[2\]"), ("return 1.0", "a float")])
def test_what_a_loss_of_ones_own_must_return(own_loss: Callable[[str], str], body: str, words: str) -> None:
    with pytest.raises(UserError, match=f"returned {words}, expected a tensor of no dimensions"):
        batch_loss(torch.zeros(2, 4), batch_of([[0.0] * 3] * 2), round_of(loss=own_loss(body)))


@pytest.mark.parametrize(
    "value", ["scores_BS.new_zeros(())", "scores_BS.detach().sum()", "scores_BS.new_zeros((), requires_grad=True)", "negative_BS.sum()"]
)
def test_a_constant_loss_of_ones_own_is_refused(own_loss: Callable[..., str], value: str) -> None:
    """Else torch ends in a traceback, at whatever step has such a batch."""
    scores = torch.zeros(2, 4, requires_grad=True)
    message = (
        r"^tasks.train.mine:loss: returned a constant, expected a loss that depends on the scores; where no pair counts, return 0 times"
    )
    with pytest.raises(UserError, match=message):
        batch_loss(scores, batch_of([[0.0] * 3] * 2), round_of(loss=own_loss(f"return {value}")))


def test_a_constant_distillation_of_ones_own(own_loss: Callable[..., str]) -> None:
    """Beside an nll it may be a constant."""
    name = own_loss("return group_BG.new_zeros(())", "group_BG, teacher_BG, valid_BG, weight_B")
    scores, batch = torch.zeros(2, 4, requires_grad=True), batch_of([[0.0] * 3] * 2)
    with pytest.raises(UserError, match="returned a constant"):
        batch_loss(scores, batch, round_of(loss=name, negatives="ce", distill=True))
    batch_loss(scores, batch, round_of(loss=name, negatives="ce", distill=True, nll_weight=0.5))[0].backward()
    assert scores.grad is not None
