"""Rows laid end to end, filled up to a size that many batches share."""

from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModel
from transformers.models.roberta.modeling_roberta import RobertaEmbeddings

from tasks.core.models.hidden_states.unpadded_rows import (
    first_places,
    first_position,
    ids_and_positions,
    positions,
    round_up,
    with_filler_rows,
)
from tasks.core.tokens.folder import Tokens


@pytest.mark.parametrize(("lengths", "size", "expected"), [
    ([5, 3, 3], 11, [5, 3, 3]),
    ([5, 3, 3], 12, [5, 3, 3, 1]),
    ([5, 3, 3], 16, [5, 3, 3, 5]),
    ([5, 3, 3], 23, [5, 3, 3, 5, 5, 2]),
    ([1], 4, [1, 1, 1, 1]),
])  # fmt: skip
def test_further_rows_fill_a_batch_up(lengths: list[int], size: int, expected: list[int]) -> None:
    rows = with_filler_rows(np.array(lengths), size)
    assert rows.tolist() == expected and rows.dtype == np.int64


def test_few_sizes_of_which_none_is_much_larger() -> None:
    sizes = [round_up(tokens) for tokens in range(1, 70000)]
    assert len(set(sizes)) < 200
    assert all(tokens <= size < tokens + 64 + tokens / 7 for tokens, size in enumerate(sizes, start=1))
    assert all(size % 64 == 0 for size in sizes)


@pytest.mark.parametrize("pad", [0, 1, 5])
@pytest.mark.parametrize("kind", ["bert", "roberta", "xlm-roberta", "distilbert"])
def test_the_first_position_is_that_of_transformers(kind: str, pad: int) -> None:
    """The row of the table of positions that a text's first token gets; None where rows are not concatenated."""
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8, "vocab_size": 9}
    config = AutoConfig.for_model(kind, pad_token_id=pad, **sizes)
    if kind == "distilbert":
        assert first_position(config) is None
        return
    first_positions = list[int]()
    model = AutoModel.from_config(config)
    model.embeddings.position_embeddings.register_forward_pre_hook(lambda _, inputs: first_positions.append(int(inputs[0][0, 0])))
    model(input_ids=torch.tensor([[7, 8]]))
    assert [first_position(config)] == first_positions


def test_rows_begin_where_those_before_them_end() -> None:
    assert first_places(np.array([5, 3, 3, 1]), 6).tolist() == [0, 5, 8, 11, 0, 0]
    assert first_places(np.array([4]), 1).tolist() == [0]


def test_tokens_are_placed_and_filled_up() -> None:
    tokens = Tokens(np.arange(10, 20), np.array([0, 4, 4, 10]), np.arange(3, dtype=np.int32), Path(), 9, 8, "", "")
    ids_T, positions_T = ids_and_positions(tokens, np.array([2, 0]), np.array([6, 4]), 2, 13)
    assert ids_T.tolist() == [14, 15, 16, 17, 18, 19, 10, 11, 12, 13, 9, 9, 9]
    assert positions_T.tolist() == [2, 3, 4, 5, 6, 7, 2, 3, 4, 5, 2, 2, 2]


def test_padding_within_a_text_has_no_place_of_its_own_in_roberta() -> None:
    rows = [[5, 1, 6, 1, 1, 7], [1], [8, 9], [1, 4], [3]]
    expected = [RobertaEmbeddings.create_position_ids_from_input_ids(torch.tensor([row]), 1)[0].tolist() for row in rows]
    flat, lengths = np.array([*chain(*rows)]), np.array([*map(len, rows)])
    assert positions(flat, lengths, 2).tolist() == [*chain(*expected)]
    assert positions(flat, lengths, 0).tolist() == [0, 1, 2, 3, 4, 5, 0, 0, 1, 0, 1, 0]
    tokens = Tokens(flat, np.cumsum([0, *lengths]), np.arange(5, dtype=np.int32), Path(), 1, 8, "", "")
    assert ids_and_positions(tokens, np.array([3, 0]), np.array([2, 6]), 2, 10)[1].tolist() == [*expected[3], *expected[0], 2, 2]
