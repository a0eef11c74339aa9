"""A mask of four dimensions where transformers would make one itself, else the mask as it is."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModel

from tasks.core.models.bi_encoder import load_towers
from tasks.core.models.cross_encoder import PROBES, load_cross_encoder
from tasks.core.models.folder import Shape
from tasks.core.models.hidden_states.masks import BROADCAST, attention_mask
from tasks.core.models.limits import most_tokens
from tests.fake_gpu import GPU, fake_gpu

SMALL = {"vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
MASK_BL = torch.tensor([[1, 1, 1, 0], [0, 1, 1, 1], [1, 0, 0, 0]])
FOREIGN = [{"attn_implementation": "eager"}, {"_attn_implementation": "eager"}, {"attn_implementation": "flash_attention_2"}]


@pytest.mark.parametrize("kind", BROADCAST)
def test_outputs_are_those_under_transformers_own_mask(kind: str) -> None:
    """The mask for another device than the CPU, in a model on the CPU."""
    torch.manual_seed(0)
    model = AutoModel.from_config(AutoConfig.for_model(kind, initializer_range=0.3, **SMALL)).eval().double()
    meta_mask = attention_mask(MASK_BL.to("meta"), model.config)
    assert meta_mask.shape == (3, 1, 1, 4) and meta_mask.dtype == torch.bool
    ids_BL = torch.randint(5, 60, (3, 4), generator=torch.Generator().manual_seed(1))
    positions = {"position_ids": torch.arange(4)[None]}
    with torch.no_grad():
        expected = model(input_ids=ids_BL, attention_mask=MASK_BL, **positions).last_hidden_state
        actual = model(input_ids=ids_BL, attention_mask=MASK_BL.bool().view(meta_mask.shape), **positions).last_hidden_state
    real = MASK_BL.bool()
    torch.testing.assert_close(actual[real], expected[real])


def test_a_mask_is_left_alone_where_tokens_do_not_see_all_others_and_on_a_cpu() -> None:
    far_BL = MASK_BL.to("meta")
    for kind, settings in (("bert", {"is_decoder": True}), ("gpt2", {}), ("modernbert", {"pad_token_id": 1})):
        assert attention_mask(far_BL, AutoConfig.for_model(kind, **settings)) is far_BL, kind
    assert attention_mask(MASK_BL, AutoConfig.for_model("bert")) is MASK_BL
    config = AutoConfig.for_model("roberta")
    if hasattr(config, "is_decoder"):
        del config.is_decoder
    assert attention_mask(far_BL, config).shape == (3, 1, 1, 4), "a configuration that does not say"


def changed_copy(source: Path, folder: Path, settings: dict[str, str]) -> Path:
    """A copy of a model folder with other `settings` in config.json."""
    shutil.copytree(source, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | settings))
    return folder


@pytest.mark.parametrize("settings", FOREIGN)
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_padding_is_masked_whatever_attention_config_json_names(
    pooling: str, settings: dict[str, str], tiny_encoder: Path, tmp_path: Path
) -> None:
    tower = load_towers(changed_copy(tiny_encoder, tmp_path / "m", settings), Shape(pooling=pooling)).document
    mask_BL = MASK_BL[[0, 2]]  # padded on the right
    ids_BL = torch.randint(5, 60, mask_BL.shape, generator=torch.Generator().manual_seed(1)) * mask_BL
    with torch.no_grad():
        alone = torch.cat([tower(ids_BL[n : n + 1, :length], mask_BL[n : n + 1, :length]) for n, length in enumerate((3, 1))])
        torch.testing.assert_close(tower(ids_BL, mask_BL), alone)
        with fake_gpu():
            on_gpu = tower.to(GPU)(ids_BL.to(GPU), mask_BL.to(GPU)).cpu()
    torch.testing.assert_close(on_gpu, alone)
    assert most_tokens(tmp_path / "m") == most_tokens(tiny_encoder)


@pytest.mark.parametrize("settings", FOREIGN)
def test_a_reranker_masks_padding_whatever_attention_config_json_names(
    settings: dict[str, str], tiny_reranker: Path, tmp_path: Path
) -> None:
    folders, settled = [tiny_reranker, changed_copy(tiny_reranker, tmp_path / "m", settings)], (torch.device("cpu"), torch.float32)
    expected, actual = (load_cross_encoder(folder, 64, 200, *settled).scores(PROBES) for folder in folders)
    np.testing.assert_allclose(actual, expected, rtol=1e-5)
    assert np.std(expected) > 0.01
