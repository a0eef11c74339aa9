"""How long a text a transformer takes: that many tokens go through it, one more does not."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import normalizers
from transformers import AutoConfig, AutoModel
from transformers import logging as transformers_logging

from tasks.core.tokens.folder import open_tokens
from tasks.core.tokens.params import Cut
from tasks.core.tokens.store import write_tokens
from tasks.core.tokens.tokenizer import load_tokenizer, longest_text
from tests.starts import byte_tokenizer


@pytest.mark.parametrize(("kind", "longest"), [("bert", 20), ("distilbert", 20), ("roberta", 18), ("xlm-roberta", 18), ("mpnet", 18)])
def test_a_text_of_that_length_goes_through_and_a_longer_one_does_not(kind: str, longest: int) -> None:
    transformers_logging.set_verbosity_error()
    config = AutoConfig.for_model(kind)
    sizes = {
        "vocab_size": 40,
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 8,
        "max_position_embeddings": 20,
    }
    if kind == "distilbert":
        sizes |= {"dim": 8, "n_layers": 1, "n_heads": 2, "hidden_dim": 8}
    for name, value in sizes.items():
        setattr(config, name, value)
    model = AutoModel.from_config(config).eval()
    assert longest_text(model) == longest
    ids = torch.full((1, longest + 1), 7)
    assert model(input_ids=ids[:, :longest]).last_hidden_state.shape[1] == longest
    with pytest.raises((IndexError, RuntimeError)):
        model(input_ids=ids)


def test_model_without_position_limit_is_unlimited() -> None:
    assert longest_text(AutoModel.from_config(AutoConfig.for_model("xlnet", d_model=32, n_layer=1, n_head=4, d_inner=8))) is None
    config = AutoConfig.for_model("t5", vocab_size=40, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    assert longest_text(AutoModel.from_config(config)) is None


@pytest.mark.parametrize("normalizer", [None, normalizers.NFC(), normalizers.Sequence([normalizers.NFC(), normalizers.Strip()])])
def test_a_folder_may_say_that_texts_are_lowercased(normalizer: normalizers.Normalizer | None, tmp_path: Path) -> None:
    """As sentence-transformers reads do_lower_case; what is saved does it by itself."""
    from sentence_transformers.models import Transformer
    from transformers import BertConfig, BertModel

    tokenizer = byte_tokenizer("right", ends=True)
    if normalizer:
        tokenizer.backend_tokenizer.normalizer = normalizer
    tokenizer.save_pretrained(tmp_path / "m")
    small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    BertModel(BertConfig(vocab_size=258, pad_token_id=257, **small)).save_pretrained(tmp_path / "m")
    texts = ["Chancellor of WEST Germany", "ÉCOLE İstanbul ΣΑΣ", "plain"]
    ids = dict[bool, list[list[int]]]()
    for lower in (False, True):
        (tmp_path / "m" / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 64, "do_lower_case": lower}))
        ours = load_tokenizer(tmp_path / "m")
        ids[lower] = ours(texts)["input_ids"]
        assert ids[lower] == Transformer.load(str(tmp_path / "m")).tokenizer(texts)["input_ids"]
    assert ids[True][:2] != ids[False][:2] and ids[True][2] == ids[False][2]
    ours.save_pretrained(tmp_path / "saved")
    assert load_tokenizer(tmp_path / "saved")(texts)["input_ids"] == ids[True]


def test_a_tokenizer_that_lowercases_is_left_as_it_is(tiny_encoder: Path, tmp_path: Path) -> None:
    """It is asked for each different word only."""
    shutil.copytree(tiny_encoder, tmp_path / "m")
    (tmp_path / "m" / "sentence_bert_config.json").write_text(json.dumps({"do_lower_case": True}))
    assert load_tokenizer(tmp_path / "m").backend_tokenizer.to_str() == load_tokenizer(tiny_encoder).backend_tokenizer.to_str()


def test_ids_with_gaps_are_stored_as_they_are(tmp_path: Path, tiny_encoder: Path) -> None:
    shutil.copytree(tiny_encoder, tmp_path / "m")
    config = json.loads((tmp_path / "m" / "tokenizer.json").read_text())
    config["model"]["vocab"]["wizards"] = 70_000
    (tmp_path / "m" / "tokenizer.json").write_text(json.dumps(config))
    tokenizer = load_tokenizer(tmp_path / "m")
    write_tokens(tmp_path / "t", [(["a"], ["seven wizards"])], tokenizer, Cut(16), digest="", total=1)
    expected = tokenizer("seven wizards")["input_ids"]
    assert 70_000 in expected and np.asarray(open_tokens(tmp_path / "t").flat).tolist() == expected
