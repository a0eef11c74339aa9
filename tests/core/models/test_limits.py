"""The longest text of a model folder, found without weights, is what stage base finds with them."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import BertConfig

from tasks.base.shape import fitted_tokenizer
from tasks.core.errors import UserError
from tasks.core.models.bi_encoder import Towers, load_towers, save_towers
from tasks.core.models.limits import most_tokens, transformer_errors
from tasks.core.tokens.tokenizer import load_tokenizer


def test_the_limit_is_the_one_of_stage_base(tiny_encoder: Path, minilm: Path, tmp_path: Path) -> None:
    unlimited = tmp_path / "unlimited"
    shutil.copytree(tiny_encoder, unlimited)
    config = json.loads((unlimited / "tokenizer_config.json").read_text())
    for key in ("model_max_length", "max_length"):
        config.pop(key, None)
    (unlimited / "tokenizer_config.json").write_text(json.dumps(config))
    for folder in (tiny_encoder, minilm, unlimited):
        assert most_tokens(folder) == fitted_tokenizer(folder, load_towers(folder)).model_max_length
    towers = Towers(load_towers(tiny_encoder).query, load_towers(tiny_encoder).document)
    (tmp_path / "two").mkdir()
    save_towers(towers, load_tokenizer(tiny_encoder), tmp_path / "two")
    assert most_tokens(tmp_path / "two") == most_tokens(tiny_encoder)


def test_a_folder_that_is_no_model_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "nobody_knows"}')
    with pytest.raises(UserError, match="cannot be loaded") as error:
        most_tokens(tmp_path)
    assert "\n" not in str(error.value)


def test_an_operation_without_a_reproducible_form_is_one_line() -> None:
    """As torch words it on CUDA."""
    text = (
        "cumsum_cuda_kernel does not have a deterministic implementation, but you set 'torch.use_deterministic_algorithms(True)'. You can"
    )
    line = (
        r"^found a transformer \(bert\) that is not reproducible on a GPU \(cumsum_cuda_kernel does not have a deterministic "
        r"implementation\); set device: cpu in runtime.yaml$"
    )
    with pytest.raises(UserError, match=line), transformer_errors(BertConfig()):
        raise RuntimeError(text)
    with pytest.raises(RuntimeError, match="mat1 and mat2"), transformer_errors(BertConfig()):
        torch.ones(2, 3) @ torch.ones(2, 3)
