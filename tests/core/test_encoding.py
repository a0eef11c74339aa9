"""Vectors of tokens: the same whatever stands beside them, equal to one text at a time."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tasks.core.encoder import Encoder, Shape, load_towers
from tasks.core.encoding import encode, encode_texts
from tasks.core.tokenizers import load_tokenizer
from tasks.core.tokens import Tokens

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _one_thread(_same_torch_everywhere: None) -> None:
    torch.set_num_threads(1)  # these tensors are too small to share


def tokens_of(rows: list[list[int]]) -> Tokens:
    offsets = np.cumsum([0, *map(len, rows)])
    flat = np.array([token for row in rows for token in row], dtype=np.uint16)
    return Tokens(flat, offsets, np.arange(len(rows), dtype=np.int32), Path(), 0, 64, "", "")


def random_rows(seed: int, count: int) -> list[list[int]]:
    draw = np.random.default_rng(seed)
    return [draw.integers(1000, 30000, size=length).tolist() for length in draw.integers(1, 40, size=count)]


@pytest.fixture(scope="module")
def tower(tiny_encoder: Path) -> Encoder:
    return load_towers(tiny_encoder, Shape(similarity="cosine")).document


@pytest.mark.parametrize("budget", [1, 64, 500, 10**6])
def test_batches_change_no_vector_and_rows_keep_their_order(budget: int, tower: Encoder) -> None:
    rows = random_rows(0, 40)
    asked = np.random.default_rng(1).permutation(40)[:30]
    heard: list[int] = []
    found = encode(tower, tokens_of(rows), asked, budget, CPU, heard.append)
    assert found.dtype == np.float32 and found.shape == (30, 128) and sum(heard) == 30
    with torch.no_grad():
        alone = [tower(torch.tensor([rows[n]]), torch.ones(1, len(rows[n]), dtype=torch.int64))[0].numpy() for n in asked]
    np.testing.assert_allclose(found, alone, atol=1e-5)


def test_the_same_rows_give_the_same_bits_wherever_they_stand(tower: Encoder) -> None:
    rows = random_rows(2, 30)
    first = encode(tower, tokens_of([*random_rows(3, 17), *rows, *random_rows(4, 5)]), np.arange(17, 47), 256, CPU)
    second = encode(tower, tokens_of(rows), np.arange(30), 256, CPU)
    np.testing.assert_array_equal(first, second)


def test_no_row(tower: Encoder) -> None:
    assert encode(tower, tokens_of([]), np.arange(0), 256, CPU).shape == (0, 128)


def test_texts_equal_their_tokens(tower: Encoder, tiny_encoder: Path) -> None:
    tokenizer = load_tokenizer(tiny_encoder)
    texts = ["one", "two words", "a text that is longer than the twelve tokens which are let through here"]
    rows = [tokenizer(text, truncation=True, max_length=12)["input_ids"] for text in texts]
    found = encode_texts(tower, tokenizer, texts, 12, CPU)
    np.testing.assert_allclose(found, encode(tower, tokens_of(rows), np.arange(3), 256, CPU), atol=1e-5)
