"""A training that was interrupted under the code of version 0.1.0 resumes under today's.

checkpoints/NAME.safetensors: what `fit` of 0.1.0 (commit 5e31370) left of test_loop's training after five of twelve steps. How a
processor rounds is no matter: both trainings that are compared run here, from the same numbers.
"""

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tasks.core.files import folder_digest
from tasks.core.training.checkpoints import CHECKPOINT, checkpoint_step, read_checkpoint, save_checkpoint
from tasks.core.training.optimizers import make_optimizer
from tests.core.training.test_loop import make_model, train

BEFORE = Path(__file__).parent / "checkpoints"
OPTIMIZERS = ("adamw", "lamb")


def read_safetensors(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Tensors and metadata of a safetensors file, by its specification: a length, a JSON header, the bytes."""
    content = path.read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + size])
    metadata = header.pop("__metadata__")
    tensors = {}
    for name, entry in header.items():
        assert entry["dtype"] == "F32", name
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        tensors[name] = np.frombuffer(content[begin:end], np.float32).reshape(entry["shape"]).copy()
    return tensors, metadata


def restore_by_hand(name: Any) -> tuple[nn.Module, torch.optim.Optimizer, list[dict[str, float]]]:
    """Module, optimizer and curve with the numbers of a former checkpoint, set one by one."""
    tensors, metadata = read_safetensors(BEFORE / f"{name}.safetensors")
    module = make_model()
    optimizer = make_optimizer(name, module, 0.05, 0.01)
    for parameter, weight in module.named_parameters():
        weight.data = torch.from_numpy(tensors.pop(f"weights.{parameter}"))
    for key, value in tensors.items():
        parameter, _, kind = key.removeprefix("state.").rpartition(".")
        optimizer.state[dict(module.named_parameters())[parameter]][kind] = torch.from_numpy(value)
    return module, optimizer, json.loads(metadata["history"])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_resumes_with_the_same_bits_as_from_a_fresh_checkpoint(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    module, optimizer, history = restore_by_hand(name)
    for kind in ("former", "fresh"):
        (tmp_path / kind / "scratch").mkdir(parents=True)
    shutil.copy(BEFORE / f"{name}.safetensors", tmp_path / "former/scratch" / CHECKPOINT)
    save_checkpoint(tmp_path / "fresh/scratch" / CHECKPOINT, 5, history, module, optimizer)
    modules = {kind: train(tmp_path / kind, name) for kind in ("former", "fresh")}
    assert capsys.readouterr().out.count("resuming from step 5") == 2
    for parameter, weight in modules["former"].state_dict().items():
        assert torch.equal(weight, modules["fresh"].state_dict()[parameter]), parameter
    assert (tmp_path / "former/optimizer").read_text() == (tmp_path / "fresh/optimizer").read_text()
    assert folder_digest((tmp_path / "former/curves").resolve()) == folder_digest((tmp_path / "fresh/curves").resolve())


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_state_of_the_optimizer_is_used(tmp_path: Path, name: str) -> None:
    """Without the optimizer's state a training ends elsewhere."""
    (tmp_path / "former/scratch").mkdir(parents=True)
    shutil.copy(BEFORE / f"{name}.safetensors", tmp_path / "former/scratch" / CHECKPOINT)
    module, optimizer, history = restore_by_hand(name)
    optimizer.state.clear()
    (tmp_path / "bare/scratch").mkdir(parents=True)
    save_checkpoint(tmp_path / "bare/scratch" / CHECKPOINT, 5, history, module, optimizer)
    former, bare = (train(tmp_path / place, name) for place in ("former", "bare"))
    assert not torch.equal(former[0].weight, bare[0].weight)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_today_writes_the_same_file(tmp_path: Path, name: str) -> None:
    """Names, numbers, checksum: a team that goes back to 0.1.0 resumes too. A new format must read this one; then this test may go."""
    module, optimizer, history = restore_by_hand(name)
    save_checkpoint(tmp_path / CHECKPOINT, 5, history, module, optimizer)
    assert read_safetensors(tmp_path / CHECKPOINT)[1] == read_safetensors(BEFORE / f"{name}.safetensors")[1]
    assert checkpoint_step(BEFORE / f"{name}.safetensors") == 5
    former, fresh = read_safetensors(BEFORE / f"{name}.safetensors")[0], read_safetensors(tmp_path / CHECKPOINT)[0]
    assert former.keys() == fresh.keys()
    assert all(np.array_equal(former[key], fresh[key]) for key in former)
    checkpoint = read_checkpoint(BEFORE / f"{name}.safetensors")
    assert checkpoint and all(np.array_equal(tensor.numpy(), former[key]) for key, tensor in checkpoint[0].items())
