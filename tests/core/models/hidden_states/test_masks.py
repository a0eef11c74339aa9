"""A mask of four dimensions where transformers would make one itself, else the mask as it is."""

import pytest
import torch
from transformers import AutoConfig, AutoModel

from tasks.core.models.hidden_states.masks import BROADCAST, attention_mask

SMALL = {"vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
MASK_BL = torch.tensor([[1, 1, 1, 0], [0, 1, 1, 1], [1, 0, 0, 0]])


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
