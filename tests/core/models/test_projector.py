"""A round's projector is the pre-training's if that is of the same kind, else new; it is exported with the encoder."""

from pathlib import Path

import pytest
import torch
from torch import nn

from tasks.core.errors import UserError
from tasks.core.models.bi_encoder import Towers, load_towers, save_towers
from tasks.core.models.folder import read_shape
from tasks.core.models.head import Head
from tasks.core.models.projector import add_projector, make_projector, save_projector
from tasks.core.tokens.tokenizer import load_tokenizer


def save_with_projector(source: Path, folder: Path, kind: str) -> Head:
    """The projector beside a copy of `source` in `folder`, as a pre-training leaves it."""
    folder.mkdir()
    save_towers(load_towers(source), load_tokenizer(source), folder)
    projector = make_projector(kind, 128, 99)
    assert projector is not None
    save_projector(projector, folder)
    return projector


def test_projector_of_a_pretraining_is_not_part_of_its_encoder(tiny_encoder: Path, tmp_path: Path) -> None:
    save_with_projector(tiny_encoder, tmp_path / "p", "nonlinear")
    assert read_shape(tmp_path / "p").head == "none"
    assert load_towers(tmp_path / "p").document.head is None


@pytest.mark.parametrize(("kind", "activation"), [("linear", torch.nn.Identity()), ("nonlinear", torch.nn.Tanh())])
def test_pretrained_projector_is_reused_and_exported(tiny_encoder: Path, tmp_path: Path, kind: str, activation: nn.Module) -> None:
    linear = save_with_projector(tiny_encoder, tmp_path / "p", kind).linear
    towers = load_towers(tmp_path / "p")
    assert add_projector(towers, kind, tmp_path / "p", 1) == "of the pre-training"
    (tmp_path / "round").mkdir()
    save_towers(towers, load_tokenizer(tiny_encoder), tmp_path / "round")
    ids, mask = torch.tensor([[101, 2000, 3000, 102]]), torch.ones(1, 4, dtype=torch.int64)
    with torch.no_grad():
        plain = load_towers(tiny_encoder).document(ids, mask)
        vectors = load_towers(tmp_path / "round").document(ids, mask)
        torch.testing.assert_close(vectors, activation(linear(plain)))
    with pytest.raises(UserError, match=r"already has a head \((linear|tanh)\); set projector: none to keep it$"):
        add_projector(load_towers(tmp_path / "round"), kind, tmp_path / "round", 1)


def test_projector_of_another_kind_is_drawn_by_seed(tiny_encoder: Path, tmp_path: Path) -> None:
    save_with_projector(tiny_encoder, tmp_path / "p", "nonlinear")
    weights = []
    for number, seed in enumerate((1, 1, 2)):
        torch.manual_seed(number)
        towers = load_towers(tmp_path / "p")
        assert add_projector(towers, "linear", tmp_path / "p", seed) == "new"
        assert towers.query is towers.document and towers.document.head is not None
        weights.append(towers.document.head.linear.weight)
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])


def test_two_towers_get_a_projector_each(tiny_encoder: Path, tmp_path: Path) -> None:
    linear = save_with_projector(tiny_encoder, tmp_path / "p", "linear").linear
    for init, source in ((tmp_path / "p", "of the pre-training"), (tiny_encoder, "new")):
        towers = Towers(load_towers(init).query, load_towers(init).document)
        assert add_projector(towers, "linear", init, 5) == source
        heads = [towers.query.head, towers.document.head]
        assert heads[0] is not None and heads[1] is not None and heads[0] is not heads[1]
        assert [tower.shape.head for tower in (towers.query, towers.document)] == ["linear", "linear"]
        assert torch.equal(heads[0].linear.weight, heads[1].linear.weight)
        assert torch.equal(heads[0].linear.weight, linear.weight) == (source != "new")


def test_a_new_projector_is_small_and_kind_none_is_no_projector() -> None:
    head = make_projector("nonlinear", 128, 3)
    assert head is not None and head.kind == "tanh" and not head.linear.bias.any()
    weights = head.linear.weight.detach()
    assert float(weights.std()) == pytest.approx(0.02, rel=0.03) and abs(float(weights.mean())) < 0.001
    assert make_projector("none", 128, 3) is None


@pytest.mark.parametrize("harm", ["another width", "half a file"])
def test_a_projector_that_does_not_match_its_encoder_is_one_line(harm: str, tiny_encoder: Path, tmp_path: Path) -> None:
    save_with_projector(tiny_encoder, tmp_path / "p", "linear")
    path = tmp_path / "p/projector/linear.safetensors"
    if harm == "half a file":
        path.write_bytes(path.read_bytes()[:1000])
    else:
        other = make_projector("linear", 64, 1)
        assert other is not None
        (tmp_path / "other").mkdir()
        save_projector(other, tmp_path / "other")
        path.write_bytes((tmp_path / "other/projector/linear.safetensors").read_bytes())
    with pytest.raises(UserError, match=r"linear\.safetensors: does not match its encoder \(") as error:
        add_projector(load_towers(tmp_path / "p"), "linear", tmp_path / "p", 1)
    assert "\n" not in str(error.value)
