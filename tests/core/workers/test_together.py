"""A gang on this machine: two ranks compute what one process does, and a lost one costs only time."""

import ast
import math
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tasks.core.errors import UserError
from tasks.core.files import folder_digest
from tasks.core.params.runtime import Runtime
from tasks.core.training import ranks
from tasks.core.training.checkpoints import CHECKPOINT, checkpoint_step
from tasks.core.workers import each
from tasks.core.workers.gang import deal_pieces
from tasks.core.workers.together import RankFailed, together
from tests import gangs

ROOT = Path(__file__).resolve().parents[3]
CPU = torch.device("cpu")
RUNTIME = Runtime(device="cpu", threads=1)


def test_chunks_are_dealt_out_by_size() -> None:
    """By hand: 9 to the first, 7 and 5 to the second (0 < 9, 7 < 9), 4 to the first (9 < 12), 1 to the second (12 < 13)."""
    assert deal_pieces([4, 9, 1, 7, 5], 2) == [[0, 1], [2, 3, 4]]
    assert deal_pieces([3, 3, 3], 2) == [[0, 2], [1]], "the first of equals"
    assert deal_pieces([5], 3) == [[0], [], []]
    assert deal_pieces([], 2) == [[], []]


def test_one_worker_imports_nothing_of_a_gang() -> None:
    """At module level, only modules of this room and type checkers do."""
    rooms = [file for file in sorted((ROOT / "tasks").rglob("*.py")) if file.parent != ROOT / "tasks/core/workers"]
    assert len(rooms) > 100
    for file in rooms:
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                match = re.search(r"workers\.(gang|together)|workers import .*(gang|together)", ast.unparse(node))
                assert not match, f"{file.relative_to(ROOT)}: {ast.unparse(node)}"


def test_a_small_training_with_a_lost_rank_has_the_bits_of_an_undisturbed_one(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    torch.set_num_threads(1)
    (tmp_path / "alone").mkdir()
    expected = gangs.small_training(tmp_path / "alone", tmp_path / "alone", {}, CPU)
    scratch, curves = tmp_path / "scratch", tmp_path / "curves"
    scratch.mkdir()
    curves.mkdir()
    function = partial(gangs.small_training, scratch, curves, {"kill": 7})
    together(function, RUNTIME, 2, scratch=scratch, outs=[curves], what="small")
    captured = capfd.readouterr()
    assert (
        "small: worker 2 of 2 was lost (SIGKILL, most likely for lack of memory); all 2 start again (restart 1 of 3 allowed)"
        in captured.err
    )
    assert "resuming from step 7" in captured.out
    for rank in (0, 1):
        weights = load_file(scratch / f"weights-{rank}.safetensors")
        assert all(torch.equal(weights[name], weight) for name, weight in expected.items()), rank
    assert "small: 12/12 steps" in captured.err, "the first rank's progress"
    assert "small: 12/12 steps" in (scratch / "worker-2.log").read_text()
    assert sorted(path.name for path in scratch.iterdir() if "weights" not in path.name) == [
        "checkpoint.safetensors",
        "happened-kill",
        "worker-2.log",
    ]
    assert folder_digest(curves / "plots") == folder_digest(tmp_path / "alone/plots"), "one writes the curves"


@pytest.mark.heavy
def test_two_ranks_compute_the_step_of_one(tmp_path: Path, tiny_encoder: Path) -> None:
    """With dropout in float32: the same chunks to the bit, shared out, and gradients to rounding. In float64: a plain backward's."""
    torch.set_num_threads(1)
    for folder in ("alone/rounded", "alone/exact", "gang/rounded", "gang/exact"):
        (tmp_path / folder).mkdir(parents=True)
    gangs.save_steps(tiny_encoder, tmp_path / "alone", CPU)
    together(partial(gangs.save_steps, tiny_encoder, tmp_path / "gang"), RUNTIME, 2, scratch=tmp_path, outs=[], what="steps")
    for kind in ("rounded", "exact"):
        chunks = load_file(tmp_path / f"alone/{kind}/chunks-0.safetensors")
        parts = [load_file(tmp_path / f"gang/{kind}/chunks-{rank}.safetensors") for rank in (0, 1)]
        assert len(chunks) == 5 and sorted(map(len, parts)) == [2, 3], "each chunk is encoded by one rank"
        assert set(parts[0]) | set(parts[1]) == set(chunks), "the same chunks"
        assert all(torch.equal(vectors, chunks[name]) for part in parts for name, vectors in part.items())
        alone = load_file(tmp_path / f"alone/{kind}/step-0.safetensors")
        steps = [load_file(tmp_path / f"gang/{kind}/step-{rank}.safetensors") for rank in (0, 1)]
        assert steps[0].keys() == steps[1].keys() == alone.keys(), "weights without a gradient have none"
        assert all(torch.equal(steps[0][name], steps[1][name]) for name in alone), "every rank has the same bits"
        assert torch.equal(steps[0]["loss"], alone["loss"])
        assert 0 < relative_distance(steps[0], alone) <= (1e-6 if kind == "rounded" else 1e-14), "summed in another order"
    direct = reference_gradients(tiny_encoder)
    steps = load_file(tmp_path / "gang/exact/step-0.safetensors")
    assert direct.keys() == steps.keys() - {"loss"}
    assert relative_distance(steps, direct) <= 1e-10


def reference_gradients(model: Path) -> dict[str, torch.Tensor]:
    """By one forward and one backward pass of all texts in float64."""
    torch.set_default_dtype(torch.float64)
    tower, (queries, documents) = gangs.tower_and_sides(model, exact=True)
    loss, _ = gangs.contrast(tower(*queries.tokens.padded(queries.rows)), tower(*documents.tokens.padded(documents.rows)))
    loss.backward()
    torch.set_default_dtype(torch.float32)
    return {name: p.grad for name, p in tower.named_parameters() if p.grad is not None}


def relative_distance(actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    """The distance of two gradients over the length of the second, over all weights: a key's bias has none but rounding."""
    squared_error = sum(float((actual[name] - gradient).double().square().sum()) for name, gradient in expected.items())
    return math.sqrt(squared_error / sum(float(gradient.double().square().sum()) for gradient in expected.values()))


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("trouble", "restarts", "error", "words"),
    [
        (
            {"always": 3},
            1,
            UserError,
            r"small: worker 2 of 2 was lost \(SIGKILL, .*\), and restarts: 1 of runtime.yaml are used up; the last",
        ),
        ({"first": 3}, 0, UserError, r"small: worker 1 of 2 was lost \(SIGKILL, .*\), and restarts: 0"),
        ({"user": 3}, 3, UserError, r"^a.tsv:7: found 2 columns, expected 3$"),
        ({"bug": 3}, 3, RankFailed, r"worker 2 of 2:\nTraceback[\s\S]*ZeroDivisionError: a bug"),
    ],
)
def test_what_ends_a_gang(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], *, trouble: dict[str, int], restarts: int, error: type[Exception], words: str
) -> None:
    """A user's error and a bug are not tried again: they would come again. The last checkpoint is there in any case."""
    scratch, curves = tmp_path / "scratch", tmp_path / "curves"
    scratch.mkdir()
    curves.mkdir()
    runtime = RUNTIME.model_copy(update={"restarts": restarts})
    with pytest.raises(error, match=words) as raised:
        together(partial(gangs.small_training, scratch, curves, trouble), runtime, 2, scratch=scratch, outs=[curves], what="small")
    if error is UserError:
        assert "\n" not in str(raised.value)
    assert capfd.readouterr().err.count("start again") == (restarts if "always" in trouble else 0)
    assert checkpoint_step(scratch / CHECKPOINT) == 3


def test_ranks_and_their_threads_are_those_of_other_workers(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """`threads` is per rank; without it, ranks share the cores. On GPUs, at most one rank each."""
    monkeypatch.setattr(ranks, "available_cores", lambda: 8)
    monkeypatch.setattr(ranks, "machine", lambda *_, **__: each.Machine("cpu", "any", "torch.float32"))
    monkeypatch.setattr(each, "available_cores", lambda: 8)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(each, "usable_gpus", lambda: 0)

    def ranks_and_threads(**settings: Any) -> tuple[int, int | None]:
        with ranks.open_ranks(Runtime(**settings), "fp32") as opened_ranks:
            assert (opened_ranks.together is None) == (opened_ranks.count == 1)
            assert opened_ranks.counted == ([] if opened_ranks.count == 1 else [{"ranks": opened_ranks.count}])
            return opened_ranks.count, opened_ranks.runtime.threads

    assert ranks_and_threads(workers=3) == (3, 2)
    assert ranks_and_threads(workers=9) == (9, 1)
    assert ranks_and_threads(workers=3, threads=5) == (3, 5)
    assert ranks_and_threads(workers="all") == (1, None)
    assert ranks_and_threads(workers="all", threads=3) == (2, 3)
    monkeypatch.setattr(each, "usable_gpus", lambda: 4)
    assert ranks_and_threads(workers="all") == (4, 2)
    assert ranks_and_threads(workers=2, device="cuda", threads=1) == (2, 1)
    assert ranks_and_threads(workers=5) == (4, 2)
    assert ranks_and_threads(workers=9, device="cpu") == (9, 1)
    with pytest.raises(UserError, match=r"runtime.yaml: device: found cuda:1 with workers: 2, expected auto, cuda, or cpu"):
        ranks_and_threads(workers=2, device="cuda:1")
    assert ranks_and_threads(workers=1, engine="ray") == (1, None), "one trains here"
    assert ranks_and_threads() == (1, None)
    monkeypatch.setattr(each, "usable_gpus", lambda: 1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-a,MIG-b,MIG-c")
    capsys.readouterr()
    assert ranks_and_threads(workers="all") == (1, None), "NCCL connects no two slices of one GPU"
    assert capsys.readouterr().out == "runtime.yaml: workers: all: a training takes one MIG slice, so 2 of 3 are idle\n"
