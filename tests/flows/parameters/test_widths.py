"""Widths of vectors before anything is trained, against encoders that are loaded, and what they refuse."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from flows.parameters.sources import KEEP_SOURCE
from flows.parameters.widths import hidden_width, refuse_unfit, shaped_width, width_of
from tasks.base.params import Base
from tasks.base.shape import shaped_towers
from tasks.core.errors import UserError
from tasks.core.models.bi_encoder import load_towers, save_towers, truncate
from tasks.core.models.folder import read_shape
from tasks.core.models.projector import add_projector
from tasks.core.params.sections import read_yaml, validate
from tasks.core.tokens.tokenizer import load_tokenizer
from tasks.params import Parameters
from tests.starts import STARTS

SHAPES: tuple[dict[str, Any], ...] = (
    {},
    {"pooling": "mean"},
    {"head": "none"},
    {"head": "linear_norm"},
    {"width": 8},
    {"pooling": "last", "head": "none", "width": 16},
)


@pytest.mark.parametrize("name", STARTS)
def test_widths_are_those_of_encoders_that_are_loaded(start: Callable[[str], Path], name: str) -> None:
    own_pooling = read_shape(start(name)).pooling
    for shape in SHAPES:
        if "+" in own_pooling and "pooling" in shape and shape.get("head") != "none":
            continue  # the head does not take one pooling: stage base refuses it
        params = Base(**shape)
        tower = shaped_towers(start(name), params).document
        width = shaped_width(start(name), pooling=params.pooling, head=params.head, width=params.width)
        assert width is not None
        assert (width.pooled, width.full, width.kept) == (tower.pooled, tower.full_width, tower.width), shape
    assert shaped_width(start(name), pooling="source", head="source", width=4097) is None, "stage base refuses it"


@pytest.fixture
def write_params(checkout: Path, tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Parameters]:
    """Writes params.yaml with some sections exchanged, in the current folder, and reads it."""
    monkeypatch.chdir(tmp_path)
    sections = read_yaml(checkout / "params.yaml") | {"encoder": {"source": str(tiny_encoder)}, "adore": {}, "fuse": {}, "study": {}}

    def write(**changed: Any) -> Parameters:
        Path("params.yaml").write_text(json.dumps(sections | changed))
        return validate(Parameters, read_yaml(Path("params.yaml")), "params.yaml")

    return write


def round_of(init: str, **fields: Any) -> dict[str, Any]:
    return {"init": init, "negatives": "none", **fields}


def test_each_round_has_the_width_that_its_training_saves(
    write_params: Callable[..., Parameters], tiny_encoder: Path, tmp_path: Path
) -> None:
    """Against the same steps on encoders, saved and loaded in between, as rounds do."""
    rounds = {
        "narrow": round_of("base", width=48),
        "same": round_of("narrow"),
        "head": round_of("narrow", projector="linear"),
        "wider": round_of("same", width=100),
    }
    parameters = write_params(rounds=rounds)
    folders = {"base": tiny_encoder}
    for name, entry in rounds.items():
        towers = load_towers(folders[entry["init"]])
        if "width" in entry:
            truncate(towers, entry["width"], "here")
        if "projector" in entry:
            add_projector(towers, entry["projector"], folders[entry["init"]], 1)
        folders[name] = tmp_path / name
        folders[name].mkdir()
        save_towers(towers, load_tokenizer(tiny_encoder), folders[name])
        tower, width = load_towers(folders[name]).document, width_of(name, parameters)
        assert width is not None
        assert (width.full, width.kept) == (tower.full_width, tower.width), name
        with torch.inference_mode():
            assert tower(torch.tensor([[2, 5, 3]]), torch.ones(1, 3)).shape == (1, width.kept)
    assert [width_of(name, parameters).key for name in rounds] == [  # type: ignore[union-attr]
        *("rounds.narrow.width",) * 3,
        "rounds.wider.width",
    ]


def test_other_entries_hand_a_width_on(write_params: Callable[..., Parameters], start: Callable[[str], Path]) -> None:
    scratch = {"layers": 1, "width": 24, "heads": 2}
    parameters = write_params(
        base={"width": 60},
        encoders={"other": {"source": str(start("gemma")), "width": 12}, "away": {"source": "no/where"}},
        pretrain={"new": {"init": "base", "scratch": scratch}, "more": {"init": "base"}},
        rounds={
            "a": round_of("base"),
            "b": round_of("other"),
            "c": round_of("new"),
            "d": round_of("more"),
            "e": round_of("tower", width=30),
            "f": round_of("away"),
            "g": round_of("away", width=16),
        },
        adore={"tower": {"round": "b", "negatives": "none"}},
    )
    widths = {name: width_of(name, parameters) for name in parameters.rounds}
    assert {name: width and (width.kept, width.key) for name, width in widths.items()} == {
        "a": (60, "base.width"),
        "b": (12, "encoders.other.width"),
        "c": (24, "pretrain.new.scratch.width"),
        "d": (60, "base.width"),
        "e": None,  # b has 24 numbers, of which 12 are kept
        "f": None,
        "g": None,
    }


def test_what_does_not_suit_a_round_that_will_run_is_refused(
    write_params: Callable[..., Parameters], monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = {"wide": round_of("base"), "narrow": round_of("wide", width=100)}
    adore = {"tower": {"round": "narrow", "negatives": "none", "index": "PQ8"}}
    write_params(
        index={"factory": "PQ64"}, rounds=rounds, adore=adore, study={"s": {"round": "narrow", "factories": ["Flat", "PCA128,SQ8"]}}
    )
    refuse_unfit(["prepare", "train@wide", "train@narrow", "index@wide", "encode@narrow", "report"])
    with pytest.raises(UserError, match=r"^params\.yaml: index\.factory: found PQ64 for vectors of width 100 \(round narrow: rounds"):
        refuse_unfit(["index@wide", "index@narrow"])
    with pytest.raises(UserError, match=r"; expected one that suits this width, such as PQ4$"):  # of 128 and 100
        refuse_unfit(["index@wide", "index@narrow"])
    with pytest.raises(UserError, match=r"adore\.tower\.index: found PQ8 for vectors of width 100 .*, such as PQ10$"):
        refuse_unfit(["adore@tower"])
    with pytest.raises(UserError, match=r"study\.s\.factories: found PCA128,SQ8 .*, a PCA keeps 100 numbers .* such as PCA100,SQ8$"):
        refuse_unfit(["study@s"])
    monkeypatch.setenv(KEEP_SOURCE, "1")
    refuse_unfit(["index@narrow"])


def test_a_width_beyond_that_of_the_encoder_is_refused(write_params: Callable[..., Parameters]) -> None:
    write_params(rounds={"a": round_of("base", width=64), "b": round_of("a", width=128), "c": round_of("b", width=129)})
    refuse_unfit(["train@a", "train@b", "index@c"])
    with pytest.raises(UserError, match=r"^params\.yaml: rounds\.c\.width: found 129, expected at most 128, the vector's width"):
        refuse_unfit(["train@a", "train@c"])


def test_a_width_in_the_file_needs_no_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 24}))
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    assert hidden_width(tmp_path) == 24
