"""The loop: exact resume, bad numbers, clipping, curves."""

import json
import math
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tasks.core.errors import UserError
from tasks.core.files import folder_digest
from tasks.core.stage import draws
from tasks.core.stage.draws import batch_places, draw_seed
from tasks.core.training import loop
from tasks.core.training.checkpoints import (
    CHECKPOINT,
    checkpoint_step,
    load_state,
    read_checkpoint,
    read_state,
    save_checkpoint,
    save_state,
    state_tensors,
    written_step,
)
from tasks.core.training.figures import read_figures
from tasks.core.training.loop import Journal, Schedule, Steps, Validation, fit, is_plotted
from tasks.core.training.optimizers import linear_schedule, make_optimizer

STEPS = 12


class Killed(Exception):
    pass


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.5), nn.Linear(5, 1))


def make_steps(module: nn.Sequential, dies_at: int | None = None, bad_at: int | None = None) -> Steps[int]:
    def backward(step: int) -> dict[str, float]:
        if step == dies_at:
            raise Killed
        torch.manual_seed(draw_seed(7, step))
        loss = module(torch.randn(8, 6)).pow(2).mean() * (float("nan") if step == bad_at else 1.0)
        loss.backward()
        return {"loss": float(loss.detach())}

    return Steps.undrawn(backward)


def train(folder: Path, optimizer: str = "adamw", seconds: float = 0.0, clip: float = 1.0, **trouble: int) -> nn.Sequential:
    module = make_model()
    (folder / "scratch").mkdir(parents=True, exist_ok=True)
    curves = folder / f"curves{len(list(folder.iterdir()))}"
    curves.mkdir()
    chosen = make_optimizer(optimizer, module, 0.05, 0.01)  # type: ignore[arg-type]
    fit(module, chosen, make_steps(module, **trouble), Schedule(STEPS, 0.2, clip), Journal("test", folder / "scratch", curves, seconds))
    folder.joinpath("curves").symlink_to(curves)
    folder.joinpath("optimizer").write_text(str({n: t.tolist() for n, t in sorted(state_tensors(module, chosen).items())}))
    return module


@pytest.mark.parametrize("optimizer", ["adamw", "lamb"])
@pytest.mark.parametrize("dies_at", [1, 5, 11])
def test_resumed_equals_undisturbed(tmp_path: Path, optimizer: str, dies_at: int, capsys: pytest.CaptureFixture[str]) -> None:
    undisturbed = train(tmp_path / "whole", optimizer, seconds=1e9)
    with pytest.raises(Killed):
        train(tmp_path / "killed", optimizer, dies_at=dies_at)
    assert (tmp_path / "killed" / "scratch" / CHECKPOINT).exists()
    resumed = train(tmp_path / "killed", optimizer)
    assert f"resuming from step {dies_at}" in capsys.readouterr().out
    for name, weight in undisturbed.state_dict().items():
        assert torch.equal(weight, resumed.state_dict()[name]), name
    assert (tmp_path / "whole" / "optimizer").read_text() == (tmp_path / "killed" / "optimizer").read_text()
    assert folder_digest((tmp_path / "whole" / "curves").resolve()) == folder_digest((tmp_path / "killed" / "curves").resolve())


@pytest.mark.parametrize(
    "harm", ["cut in the header", "cut in the weights", "empty", "zeros", "one bit of a weight", "one digit of the step"]
)
def test_corrupt_checkpoint_is_reported_and_training_starts_again(tmp_path: Path, harm: str, capsys: pytest.CaptureFixture[str]) -> None:
    undisturbed = train(tmp_path / "whole", seconds=1e9)
    with pytest.raises(Killed):
        train(tmp_path / "killed", dies_at=6)
    path = tmp_path / "killed" / "scratch" / CHECKPOINT
    assert checkpoint_step(path) == written_step(path) == 6
    assert written_step(tmp_path / "none") == 0
    content = path.read_bytes()
    corrupt = {
        "cut in the header": content[:50],
        "cut in the weights": content[:-20],
        "empty": b"",
        "zeros": content[:-64] + bytes(64),
        "one bit of a weight": content[:-5] + bytes([content[-5] ^ 1]) + content[-4:],
        "one digit of the step": content.replace(b'"step":"6"', b'"step":"4"'),
    }[harm]
    assert corrupt != content
    path.write_bytes(corrupt)
    restarted = train(tmp_path / "killed")
    assert "corrupt" in capsys.readouterr().out
    for name, weight in undisturbed.state_dict().items():
        assert torch.equal(weight, restarted.state_dict()[name]), name
    assert folder_digest((tmp_path / "whole" / "curves").resolve()) == folder_digest((tmp_path / "killed" / "curves").resolve())


@pytest.mark.parametrize(("total", "size"), [(10, 4), (10, 10), (7, 3), (1, 1), (5, 4)])
def test_the_order_of_an_epoch(total: int, size: int) -> None:
    """Batches laid end to end are one permutation after the other; the formula is that of earlier versions, digit for digit."""
    rows = np.concatenate([batch_places(total, size, 3, step) for step in range(3 * total)])
    for epoch in range(3 * size):
        order = rows[epoch * total : (epoch + 1) * total].tolist()
        assert order == np.random.default_rng(draw_seed(3, 1, epoch)).permutation(total).tolist()


def test_a_loss_that_is_not_finite_is_one_line_and_keeps_the_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"test: step 6: loss nan.*the last checkpoint, for a closer look: "):
        train(tmp_path, bad_at=6)
    assert (tmp_path / "scratch" / CHECKPOINT).exists()


def test_gradients_are_clipped_before_the_step(tmp_path: Path) -> None:
    """With Lamb's first step w -= lr (...) a clip changes nothing visible; with plain SGD it bounds the step exactly."""
    module = make_model()
    before = torch.cat([p.detach().flatten() for p in module.parameters()])
    curves = tmp_path / "curves"
    curves.mkdir()
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    fit(module, optimizer, make_steps(module), Schedule(1, 0.0, 1e-3), Journal("test", tmp_path, curves, 1e9))
    change = (torch.cat([p.detach().flatten() for p in module.parameters()]) - before).norm()
    assert float(change) == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.parametrize("first", [0, 2])
def test_a_step_is_drawn_while_a_gpu_computes_the_one_before(first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After its work was sent, and before its figures are read, which waits for it; nothing is drawn that is not trained on."""
    module, events = make_model(), list[str]()
    optimizer = make_optimizer("adamw", module, 0.05, 0.01)

    def draw(step: int) -> str:
        events.append(f"draw {step}")
        return f"batch {step}"

    def backward(step: int, batch: str) -> dict[str, float]:
        assert batch == f"batch {step}"
        events.append(f"work {step}")
        return make_steps(module)(step)

    def record_read(figures: dict[str, float]) -> dict[str, float]:
        events.append("read")
        return read_figures(figures)

    if first:
        make_steps(module)(0)
        optimizer.step()
        save_checkpoint(tmp_path / CHECKPOINT, first, [], module, optimizer)
    monkeypatch.setattr(loop, "read_figures", record_read)
    (tmp_path / "curves").mkdir()
    fit(module, optimizer, Steps(draw, backward), Schedule(4, 0.0, 1.0), Journal("test", tmp_path, tmp_path / "curves", 1e9))
    expected = [f"draw {first}"]
    for step in range(first, 4):
        expected += [f"work {step}", *([f"draw {step + 1}"] if step < 3 else []), "read"]
    assert events == expected


def test_checkpoints_leave_most_of_the_time_to_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next is due 10 s after one that took nothing, 20 times as long as it took after one that took 3 s; with 0 s, always."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(loop.time, "monotonic", lambda: clock.now)

    def is_due(pace: loop.Pace, now: float) -> bool:
        clock.now = now
        return pace.due()

    pace, always = loop.Pace(10), loop.Pace(0)
    assert [is_due(pace, now) for now in (100.0, 109.9, 110.0)] == [False, False, True]
    for context in (pace, always):
        clock.now = 110.0
        with context:
            clock.now = 113.0
    assert [is_due(pace, now) for now in (123.0, 172.9, 173.0)] == [False, False, True]
    assert is_due(always, 113.0)


def test_curves_hold_every_step(tmp_path: Path) -> None:
    train(tmp_path)
    lines = (tmp_path / "curves" / "plots" / "metrics" / "train" / "loss.tsv").read_text().splitlines()
    assert lines[0] == "step\tloss"
    assert [int(line.split("\t")[0]) for line in lines[1:]] == list(range(STEPS))


def test_optimizer_state_is_restored() -> None:
    module = make_model()
    optimizer = make_optimizer("adamw", module, 0.05, 0.01)
    make_steps(module)(0)
    optimizer.step()
    restored = make_optimizer("adamw", module, 0.05, 0.01)
    load_state(state_tensors(module, optimizer), module, restored)
    for name, tensor in state_tensors(module, optimizer).items():
        assert torch.equal(tensor, state_tensors(module, restored)[name]), name


@pytest.mark.parametrize("optimizer", ["adamw", "lamb"])
def test_continued_chain_equals_one_long_training(tmp_path: Path, optimizer: str) -> None:
    """Five steps and seven, state and weights through their files, one schedule over both: the twelve steps at once, bit for bit."""
    long_training = train(tmp_path / "whole", optimizer, seconds=1e9)
    module, steps_before = make_model(), 0
    for steps in (5, 7):
        folder = tmp_path / str(steps)
        (folder / "curves").mkdir(parents=True)
        (folder / "state").mkdir()
        chosen = make_optimizer(optimizer, module, 0.05, 0.01)  # type: ignore[arg-type]
        if steps_before:
            tensors, steps_read = read_state(tmp_path / str(steps_before) / "state")
            assert steps_read == steps_before
            load_state(tensors, module, chosen)
        one_step = make_steps(module)
        fit(
            module,
            chosen,
            Steps.undrawn(lambda step, one_step=one_step, steps_before=steps_before: one_step(steps_before + step)),
            Schedule(steps, 0.2, 1.0, steps_before, STEPS),
            Journal("test", folder, folder / "curves", 1e9),
        )
        steps_before += steps
        save_state(folder / "state", steps_before, module, chosen)
    for name, weight in long_training.state_dict().items():
        assert torch.equal(weight, module.state_dict()[name]), name


def test_seeds_of_nearby_keys_differ() -> None:
    seeds = {draw_seed(a, b, c) for a in range(20) for b in range(20) for c in range(20)}
    assert len(seeds) == 8000
    assert all(0 <= s < 2**63 for s in seeds)


def test_no_two_draws_of_a_training_share_a_stream() -> None:
    """A pre-training has an order, too, and none of a round's other draws."""
    streams = {name: value for name, value in vars(draws).items() if name.isupper()}
    names = ["ORDER", "SPANS", "CLOZE", "MASKS", "CHUNK_DROPOUT", "WEIGHTS", "HEAD", "PROJECTOR", "DECODED", "DECODER"]
    of_rounds = streams.keys() - {*names[1:]}
    for used in (names, of_rounds):
        assert len({streams[name] for name in used}) == len(used)
    assert {"SAMPLING", "DROPOUT", "REPLAYED"} < of_rounds


class Slope(nn.Module):
    """Two weights, each of which a step of SGD with lr 1 moves by its slope."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
        for layer in (self.left, self.right):
            layer.weight.data.zero_()

    def places(self) -> tuple[float, float]:
        return float(self.left.weight.detach()), float(self.right.weight.detach())


def train_slope(folder: Path, steps: int, schedule: Schedule | None = None, clipped: bool = False, **trouble: Any) -> Slope:
    """Train with gradients of -3 and -4, but for `trouble`: what is raised, or the gradient or the loss, at a step."""
    module = Slope()
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    folder.mkdir(exist_ok=True)
    curves = folder / f"curves{len(list(folder.iterdir()))}"
    curves.mkdir()

    def backward(step: int) -> dict[str, float]:
        if step == trouble.get("dies_at"):
            raise Killed
        module.left.weight.grad, module.right.weight.grad = torch.tensor([[-3.0]]), torch.tensor([[-4.0]])
        if step in trouble.get("gradient", {}):
            module.right.weight.grad.fill_(trouble["gradient"][step])
        return {"loss": trouble.get("loss", {}).get(step, 1.0)}

    journal = Journal("slide", folder, curves, trouble.get("seconds", 0.0))
    clipped_part = module.left if clipped else None
    fit(
        module,
        optimizer,
        Steps.undrawn(backward),
        schedule or Schedule(steps, 0.0, 1e9, 0, 10**9),
        journal,
        clipped_part,
        trouble.get("validation", lambda _: None)(module),
    )
    return module


def test_only_the_chosen_part_is_clipped(tmp_path: Path) -> None:
    assert train_slope(tmp_path / "whole", 1, Schedule(1, 0.0, 1.0)).places() == pytest.approx((0.6, 0.8), rel=1e-5)
    assert train_slope(tmp_path / "part", 1, Schedule(1, 0.0, 1.0), clipped=True).places() == pytest.approx((1, 4), rel=1e-5)
    assert train_slope(tmp_path / "large", 1, Schedule(1, 0.0, 5.1)).places() == pytest.approx((3, 4))
    lines = (tmp_path / "whole/curves0/plots/metrics/train/gradient_norm.tsv").read_text().splitlines()
    assert float(lines[1].split("\t")[1]) == pytest.approx(5), "as it was before"


def test_the_learning_rate_of_each_step_is_plotted_and_used(tmp_path: Path) -> None:
    """Steps 2 to 5 of ten, two of them warm-up: 1, 7/8, 6/8, 5/8."""
    module = train_slope(tmp_path, 4, Schedule(4, 0.2, 1e9, 2, 10))
    lines = (tmp_path / "curves0/plots/metrics/train/lr.tsv").read_text().splitlines()[1:]
    rates = {int(step): float(rate) for step, rate in (line.split("\t") for line in lines)}
    factor = linear_schedule(10, 0.2)
    assert rates == {step: pytest.approx(factor(2 + step)) for step in range(4)}
    assert module.places()[0] == pytest.approx(3 * sum(rates.values()))


@pytest.mark.parametrize(
    ("steps", "count"), [(1, 1), (499, 499), (500, 500), (999, 999), (1000, 501), (1001, 501), (2500, 501), (2501, 501)]
)
def test_long_trainings_plot_some_500_steps_and_the_last(steps: int, count: int) -> None:
    plotted = [step for step in range(steps) if is_plotted(step, steps)]
    assert len(plotted) == count and plotted[0] == 0 and plotted[-1] == steps - 1
    assert {after - before for before, after in pairwise(plotted[:-1])} <= {max(1, steps // 500)}


@pytest.mark.parametrize(
    "trouble", [{"loss": {3: math.inf}}, {"loss": {3: math.nan}}, {"gradient": {3: math.inf}}, {"gradient": {3: math.nan}}]
)
def test_numbers_that_are_not_finite_leave_the_weights_of_the_step_before(trouble: dict[str, Any], tmp_path: Path) -> None:
    """Although no checkpoint was due."""
    with pytest.raises(UserError, match=r"^slide: step 3: loss .*, gradient norm .*, expected finite values; decrease lr"):
        train_slope(tmp_path, 6, seconds=1e9, **trouble)
    assert checkpoint_step(tmp_path / CHECKPOINT) == 3
    checkpoint = read_checkpoint(tmp_path / CHECKPOINT)
    assert checkpoint is not None and checkpoint[0]["weights.left.weight"].item() == pytest.approx(9)
    assert [point["step"] for point in json.loads(checkpoint[1]["history"])] == [0, 1, 2]
    assert train_slope(tmp_path, 6).places() == pytest.approx((18, 24), rel=1e-5), "a resumed training goes on from there"


def test_weights_that_are_not_finite_are_not_kept(tmp_path: Path) -> None:
    def spoil_weights(module: Slope) -> Validation:
        def measure() -> float:
            module.right.weight.data.fill_(math.nan)
            return 0.0

        return Validation("validation/x", measure, 2, keep_best=False)

    with pytest.raises(UserError, match="step 2: loss nan"):
        train_slope(tmp_path, 6, seconds=1e9, loss={2: math.nan}, validation=spoil_weights)
    assert not (tmp_path / CHECKPOINT).exists()


def test_weights_that_were_measured_before_a_bad_loss_are_not_measured_again(tmp_path: Path) -> None:
    steps_measured = list[int]()

    def validation(module: Slope) -> Validation:
        return Validation("validation/x", lambda: steps_measured.append(round(module.places()[0] / 3)) or 0.5, 1, keep_best=False)

    with pytest.raises(UserError, match="step 3: loss nan"):
        train_slope(tmp_path, 6, loss={3: math.nan}, validation=validation)
    train_slope(tmp_path, 6, validation=validation)
    assert steps_measured == [0, 1, 2, 3, 4, 5, 6]
    lines = (sorted(tmp_path.glob("curves*"))[-1] / "plots/metrics/validation/x.tsv").read_text().splitlines()
    assert len(lines) == 1 + 7


def test_no_checkpoint_is_written_after_the_last_step(tmp_path: Path) -> None:
    train_slope(tmp_path / "several", 4)
    assert checkpoint_step(tmp_path / "several" / CHECKPOINT) == 3
    train_slope(tmp_path / "one", 1)
    assert not (tmp_path / "one" / CHECKPOINT).exists()


@pytest.mark.parametrize("patience", [None, 2])
@pytest.mark.parametrize("dies_at", range(6))
def test_a_killed_training_with_a_validation_ends_as_an_undisturbed_one(
    dies_at: int, patience: int | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The best weights, where they are measured, and the curves; whether the kill came before or after the best."""
    values = [0.1, 0.3, 0.5, 0.2, 0.4, 0.9 if patience is None else 0.1, 0.2]

    def validation(module: Slope) -> Validation:
        return Validation("validation/x", lambda: values[round(module.places()[0] / 3)], 1, patience=patience)

    undisturbed = train_slope(tmp_path / "whole", 6, validation=validation)
    assert undisturbed.places() == pytest.approx((15, 20) if patience is None else (6, 8))
    line = capsys.readouterr().out.splitlines()[-1]
    best, value, last = (5, 0.9, 0.2) if patience is None else (2, 0.5, 0.4)
    assert line == f"slide: best validation/x {value:.4f} after {best} steps, last {last:.4f}; the weights after {best} steps are kept"
    if dies_at < (6 if patience is None else 4):
        with pytest.raises(Killed):
            train_slope(tmp_path / "killed", 6, validation=validation, dies_at=dies_at)
    assert train_slope(tmp_path / "killed", 6, validation=validation).places() == undisturbed.places()
    assert capsys.readouterr().out.splitlines()[-1] == line
    last_curves = sorted((tmp_path / "killed").glob("curves*"))[-1]
    assert folder_digest(last_curves) == folder_digest(tmp_path / "whole/curves0")
