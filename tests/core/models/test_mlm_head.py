"""MLM heads of transformers' models: read from their folders, with the same logits."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForMaskedLM

from tasks.core.models.bi_encoder import load_transformer
from tasks.core.models.mlm_head import MLMHead, find_head, is_head_missing, load_head, save_head
from tasks.pretrain.model import initial_head
from tasks.pretrain.params import Pretrain

SMALL = {
    "vocab_size": 90,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
    "pad_token_id": 1,
}
PARAMS = Pretrain.model_validate({"init": "base", "objective": "mlm", "batch_texts": 2})
MODERN = dict.fromkeys(("cls_token_id", "sep_token_id", "bos_token_id", "eos_token_id"), 1)
DISTIL = {"vocab_size": 90, "dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 48, "max_position_embeddings": 40, "pad_token_id": 1}


def save_model(kind: str, settings: dict[str, Any], folder: Path) -> tuple[Path, Any]:
    """A masked language model whose every weight, biases and norms included, shows in its logits; float64."""
    torch.manual_seed(2)
    defaults = DISTIL if kind == "distilbert" else SMALL
    model = AutoModelForMaskedLM.from_config(AutoConfig.for_model(kind, **defaults | settings)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.2)
    model.save_pretrained(folder)
    return folder, model.double()


@pytest.mark.parametrize(("kind", "settings"), [
    ("bert", {}),
    ("bert", {"hidden_act": "relu"}),
    ("distilbert", {"activation": "relu"}),
    ("albert", {"embedding_size": 16, "hidden_act": "gelu_new"}),
    ("albert", {"embedding_size": 32}),
    ("electra", {"embedding_size": 16, "hidden_act": "relu"}),
    ("modernbert", MODERN),
    ("modernbert", MODERN | {"classifier_bias": True, "norm_bias": True, "classifier_activation": "silu", "norm_eps": 1e-2}),
    *((kind, {"hidden_act": "relu"}) for kind in ("roberta", "xlm-roberta", "camembert", "mpnet", "data2vec-text", "xlm-roberta-xl")),
    ("roberta-prelayernorm", {"hidden_act": "relu"}),
    ("xmod", {"hidden_act": "relu", "languages": ["en"], "default_language": "en"}),
    ("deberta", {}),
    ("deberta-v2", {}),
    ("deberta-v2", {"legacy": False}),
    ("convbert", {"hidden_act": "gelu"}),
])  # fmt: skip
def test_logits_are_those_of_transformers(kind: str, settings: dict[str, Any], tmp_path: Path) -> None:
    source, model = save_model(kind, settings, tmp_path / "source")
    source_head, transformer = find_head(source), load_transformer(source)
    assert source_head and not is_head_missing(source)
    (tmp_path / "base").mkdir()
    save_head(source_head, tmp_path / "base")
    head, new = initial_head(tmp_path / "base", transformer, PARAMS)
    assert not new
    ids = torch.randint(5, 90, (3, 12), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = model(input_ids=ids).logits
        states = transformer.eval().double()(input_ids=ids).last_hidden_state
        logits = head.double()(states, transformer.get_input_embeddings().weight)
    assert float(expected.std()) > 0.1
    torch.testing.assert_close(logits, expected, rtol=1e-9, atol=1e-9)


def test_a_head_that_is_not_read_is_known(tmp_path: Path) -> None:
    for kind, settings in (("bert", {"tie_word_embeddings": False}), ("fnet", {}), ("modernbert", MODERN | {"decoder_bias": False})):
        source, _ = save_model(kind, settings, tmp_path / kind)
        assert is_head_missing(source) == (not find_head(source)) == (kind != "fnet")
    assert not is_head_missing(tmp_path), "two towers have no such file"


def test_widths_that_differ(tmp_path: Path) -> None:
    config = AutoConfig.for_model("albert", **SMALL | {"embedding_size": 16})
    (tmp_path / "other").mkdir()
    save_head(MLMHead(config, 16).state_dict(), tmp_path / "other")
    assert load_head(MLMHead(config, 16), tmp_path / "other")
    assert MLMHead(config).norm.weight.shape == (32,)
