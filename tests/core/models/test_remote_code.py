"""A model folder that names code of its own: what is saved of it names none."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from tasks.core.models.bi_encoder import load_towers, save_towers
from tasks.core.models.cross_encoder import load_cross_encoder
from tasks.core.tokens.tokenizer import load_tokenizer

CODE = {
    "auto_map": {
        "AutoConfig": "modeling_hostile.Config",
        "AutoModel": "somebody/modeling_hostile--modeling.Model",
        "AutoTokenizer": [None, "modeling_hostile.Tokenizer"],
    },
    "custom_pipelines": {"modeling_hostile": {"impl": "modeling_hostile.Pipeline", "pt": ["AutoModel"]}},
    "trust_remote_code": True,
}


def copy_with_code(model: Path, folder: Path) -> Path:
    shutil.copytree(model, folder)
    for name in ("config.json", "tokenizer_config.json"):
        path = folder / name
        path.write_text(json.dumps((json.loads(path.read_text()) if path.exists() else {}) | CODE), encoding="utf-8")
    return folder


def assert_no_code(folder: Path) -> None:
    files = [path for path in folder.rglob("*") if path.suffix in (".json", ".py")]
    assert {"config.json", "tokenizer_config.json"} <= {path.name for path in files}
    for path in files:
        assert not any(word in path.read_text(encoding="utf-8") for word in ("modeling_hostile", *CODE)), path


@pytest.mark.parametrize("two", [False, True])
def test_an_encoder(two: bool, tiny_encoder: Path, tmp_path: Path) -> None:
    source = copy_with_code(tiny_encoder, tmp_path / "source")
    towers, tokenizer = load_towers(source), load_tokenizer(source)
    (tmp_path / "out").mkdir()
    if two:
        towers = type(towers)(load_towers(source).document, towers.document)
    save_towers(towers, tokenizer, tmp_path / "out")
    assert_no_code(tmp_path / "out")


def test_a_reranker(tiny_reranker: Path, tmp_path: Path) -> None:
    encoder = load_cross_encoder(copy_with_code(tiny_reranker, tmp_path / "source"), 16, 200, torch.device("cpu"), torch.float32)
    encoder.model.save_pretrained(tmp_path / "out")
    encoder.tokenizer.save_pretrained(tmp_path / "out")
    assert_no_code(tmp_path / "out")
