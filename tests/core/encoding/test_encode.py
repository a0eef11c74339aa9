"""Vectors of tokens: independent of the batch, equal to one text at a time."""

from copy import deepcopy
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch

from tasks.core.encoding import packed, varlen
from tasks.core.encoding.encode import encode, encode_texts
from tasks.core.encoding.int8 import has_int8_layers
from tasks.core.encoding.packed import Packed, has_fused_layers
from tasks.core.models.bi_encoder import Encoder, load_towers
from tasks.core.models.folder import Shape
from tasks.core.tokens.folder import Tokens
from tasks.core.tokens.tokenizer import load_tokenizer
from tests.fake_gpu import GPU, fake_gpu

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")


def tokens_of(rows: list[list[int]]) -> Tokens:
    offsets = np.cumsum([0, *map(len, rows)])
    flat = np.array([token for row in rows for token in row], dtype=np.uint16)
    return Tokens(flat, offsets, np.arange(len(rows), dtype=np.int32), Path(), 0, 64, "", "")


def random_rows(seed: int, count: int) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(1000, 30000, size=length).tolist() for length in rng.integers(1, 40, size=count)]


@pytest.fixture(scope="module")
def tower(tiny_encoder: Path) -> Encoder:
    return load_towers(tiny_encoder, Shape(similarity="cosine")).document


@pytest.mark.parametrize("budget", [1, 64, 500, 10**6])
def test_batches_change_no_vector_and_rows_keep_their_order(budget: int, tower: Encoder) -> None:
    rows = random_rows(0, 40)
    order = np.random.default_rng(1).permutation(40)[:30]
    counts: list[int] = []
    vectors = encode(tower, tokens_of(rows), order, budget, CPU, counts.append)
    assert vectors.dtype == np.float32 and vectors.shape == (30, 128) and sum(counts) == 30
    with torch.no_grad():
        alone = [tower(torch.tensor([rows[n]]), torch.ones(1, len(rows[n]), dtype=torch.int64))[0].numpy() for n in order]
    np.testing.assert_allclose(vectors, alone, atol=1e-5)


def test_rows_have_the_same_bits_at_any_position(tower: Encoder) -> None:
    rows = random_rows(2, 30)
    first = encode(tower, tokens_of([*random_rows(3, 17), *rows, *random_rows(4, 5)]), np.arange(17, 47), 256, CPU)
    second = encode(tower, tokens_of(rows), np.arange(30), 256, CPU)
    np.testing.assert_array_equal(first, second)


@pytest.fixture(scope="module", params=["bert", "bert with a head", "roberta", "xlm-roberta", "distilbert"])
def random_tower(request: pytest.FixtureRequest, tower: Encoder) -> Encoder:
    """Architectures at random, three of them packed; weights large enough that every part shows in the vector."""
    from transformers import AutoConfig, AutoModel

    kind, _, head = str(request.param).partition(" ")
    if head:
        transformer, shape = tower.transformer, Shape(pooling="cls", head="linear_norm")
    else:
        small = {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64} if kind == "distilbert" else {
            "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64, "max_position_embeddings": 66
        }  # fmt: skip
        torch.manual_seed(3)
        transformer = AutoModel.from_config(AutoConfig.for_model(kind, vocab_size=30000, initializer_range=0.3, **small))
        shape = Shape(pooling="mean" if kind == "roberta" else "cls", similarity="dot")
    encoder = Encoder(transformer, shape).eval()
    with torch.no_grad():
        for name, weight in encoder.named_parameters():
            if "bias" in name or "norm" in name.lower():
                weight.add_(torch.randn_like(weight) * 0.2)
    return encoder


def test_packed_and_padded_vectors_equal_those_of_the_text_alone(random_tower: Encoder) -> None:
    kind = random_tower.transformer.config.model_type
    assert (Packed.of(random_tower, CPU) is None) == (kind == "distilbert")
    pad = random_tower.transformer.config.pad_token_id  # a text may contain the padding's own name
    rows = [[2, *row, *row[:2], pad, 2000] for row in random_rows(5, 40)]
    with torch.no_grad():
        alone = [random_tower(torch.tensor([row]), torch.ones(1, len(row), dtype=torch.int64))[0].numpy() for row in rows]
    np.testing.assert_allclose(encode(random_tower, tokens_of(rows), np.arange(40), 300, CPU), alone, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("kind", ["albert", "mpnet", "deberta", "deberta-v2"])
def test_encoders_whose_settings_do_not_speak_of_decoders(kind: str) -> None:
    from transformers import AutoConfig, AutoModel

    small = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64, "pad_token_id": 0}
    torch.manual_seed(3)
    other = Encoder(AutoModel.from_config(AutoConfig.for_model(kind, vocab_size=30000, **small)), Shape()).eval()
    rows = random_rows(5, 12)
    with torch.no_grad():
        alone = [other(torch.tensor([row]), torch.ones(1, len(row), dtype=torch.int64))[0].numpy() for row in rows]
    np.testing.assert_allclose(encode(other, tokens_of(rows), np.arange(12), 300, CPU), alone, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_the_last_layer_computes_first_tokens_alone(dtype: torch.dtype, tiny_encoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if dtype == torch.bfloat16 and not has_fused_layers():
        pytest.skip("this CPU has no bfloat16 for oneDNN")
    if dtype == torch.int8 and not has_int8_layers():
        pytest.skip("this CPU has no AVX2, or torch no oneDNN")
    lengths = list[int]()  # queries of a row
    attend = torch.nn.functional.scaled_dot_product_attention
    listening = lambda q, *args, **kwargs: (lengths.append(q.shape[2]), attend(q, *args, **kwargs))[1]  # noqa: E731
    monkeypatch.setattr(packed.F, "scaled_dot_product_attention", listening)
    for pooling, last in (("cls", 1), ("mean", 30)):
        tower = load_towers(tiny_encoder, Shape(pooling=pooling)).document
        layers = packed.int8_layers(tower.transformer, pooling == "cls") if dtype == torch.int8 else None
        tower = tower if layers else tower.to(dtype)
        lengths.clear()
        encode(tower, tokens_of([[2] * 30] * 40), np.arange(40), 2000, CPU, layers=layers)
        count = len(tower.transformer.encoder.layer)
        assert lengths == [30] * (count - 1) + [last]


@pytest.mark.parametrize("threads", [1, 2])
def test_row_has_the_same_bits_in_any_batch(threads: int, random_tower: Encoder) -> None:
    """tasks.encode.reuse rests on it. Lengths from 1 up, alone and among others, short batches and long ones."""
    torch.set_num_threads(threads)
    tokens = tokens_of([[2] * length for length in range(1, 20)] + random_rows(6, 60))
    expected = encode(random_tower, tokens, np.arange(len(tokens)), 512, CPU)
    rng = np.random.default_rng(7)
    for order in (np.arange(1), np.arange(3, 5), rng.permutation(len(tokens)), *(rng.choice(len(tokens), 20) for _ in range(3))):
        for budget in (1, 90, 10**5):
            np.testing.assert_array_equal(encode(random_tower, tokens, order, budget, CPU), expected[order])


def test_the_number_of_threads_changes_no_bit_and_stays(tower: Encoder) -> None:
    """On a CPU each batch has one thread, and may end before or after those beside it."""
    tokens, order = tokens_of(random_rows(8, 300)), np.random.default_rng(9).permutation(300)
    counts: dict[int, list[int]] = {1: [], 3: []}
    vectors = []
    for threads, rows in counts.items():
        torch.set_num_threads(threads)
        vectors.append(encode(tower, tokens, order, 200, CPU, rows.append))
        assert torch.get_num_threads() == threads
    np.testing.assert_array_equal(*vectors)
    assert counts[1] == counts[3] and sum(counts[1]) == 300, "in the order of the batches"

    def stop(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        encode(tower, tokens, order, 200, CPU, stop)
    assert torch.get_num_threads() == 3


fused = pytest.mark.skipif(not has_fused_layers(), reason="this CPU has no bfloat16 for oneDNN")


@fused
@pytest.mark.parametrize(("budget", "threads"), [(1, 1), (300, 2), (10**5, 1)])
def test_in_bf16_packed_vectors_are_as_near_to_float32_as_padded_ones(budget: int, threads: int, random_tower: Encoder) -> None:
    torch.set_num_threads(threads)
    low = deepcopy(random_tower).to(torch.bfloat16)
    assert (Packed.of(low, CPU) is None) == (random_tower.transformer.config.model_type == "distilbert")
    rows = [[2, *row] for row in random_rows(5, 40)]
    exact = encode(random_tower, tokens_of(rows), np.arange(40), 300, CPU)
    with torch.no_grad():
        padded = np.stack([low(torch.tensor([row]), torch.ones(1, len(row), dtype=torch.int64))[0].float().numpy() for row in rows])
    packed_vectors = encode(low, tokens_of(rows), np.arange(40), budget, CPU)
    error, padded_error = (np.linalg.norm(vectors - exact, axis=1) / np.linalg.norm(exact, axis=1) for vectors in (packed_vectors, padded))
    assert error.mean() < 1.25 * padded_error.mean() and error.max() < 0.1
    np.testing.assert_array_equal(encode(low, tokens_of(rows), np.arange(40), budget, CPU), packed_vectors)


@fused
def test_in_bf16_an_activation_that_onednn_does_not_fuse_is_kept() -> None:
    from transformers import BertConfig, BertModel

    torch.manual_seed(5)
    config = BertConfig(
        vocab_size=30000, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, hidden_act="relu",
        initializer_range=0.3,
    )  # fmt: skip
    relu = Encoder(BertModel(config), Shape(similarity="dot")).eval()
    exact = encode(relu, tokens_of(random_rows(6, 20)), np.arange(20), 300, CPU)
    vectors = encode(deepcopy(relu).to(torch.bfloat16), tokens_of(random_rows(6, 20)), np.arange(20), 300, CPU)
    assert (np.linalg.norm(vectors - exact, axis=1) < 0.05 * np.linalg.norm(exact, axis=1)).all()


@pytest.mark.parametrize("budget", [1, 300, 10**5])
def test_on_a_gpu_packed_vectors_are_as_near_to_float32_as_padded_ones(
    budget: int, random_tower: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [[2, *row] for row in random_rows(5, 40)]
    exact = encode(random_tower, tokens_of(rows), np.arange(40), 300, CPU)
    vectors = {}
    with fake_gpu() as gpu:
        low = deepcopy(random_tower).to(torch.bfloat16).to(GPU)
        for packs in (True, False):
            monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_, packs=packs: (8, 0) if packs else (7, 5))
            assert (Packed.of(low, GPU) is not None) == (packs and random_tower.transformer.config.model_type != "distilbert")
            gpu.waited.clear()
            batches: list[int] = []
            vectors[packs] = encode(low, tokens_of(rows), np.arange(40), budget, GPU, batches.append)
            if random_tower.transformer.config.model_type != "distilbert":
                assert len(gpu.waited) == len(batches), gpu.waited
        assert Packed.of(deepcopy(random_tower).to(GPU), GPU) is None, "flash attention has no float32"
    error, padded_error = (np.linalg.norm(vectors[packs] - exact, axis=1) / np.linalg.norm(exact, axis=1) for packs in (True, False))
    assert error.mean() < 1.25 * padded_error.mean() and error.max() < 0.1


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_on_a_gpu_products_have_few_sizes(pooling: Literal["mean", "cls"], tiny_encoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, a new size costs more than the product itself. Filler tokens change no vector."""
    rows, vectors = random_rows(7, 200), {}
    sizes: dict[bool, set[int]] = {True: set(), False: set()}
    with fake_gpu():
        low = load_towers(tiny_encoder, Shape(pooling=pooling, similarity="cosine")).document.to(torch.bfloat16).to(GPU)
        for whole in (True, False):
            counts = sizes[whole]
            if not whole:
                for module in (packed, varlen):
                    monkeypatch.setattr(module, "round_up", lambda count: count)
            hooks = [
                layer.output.dense.register_forward_pre_hook(lambda _, inputs, counts=counts: counts.add(len(inputs[0])))
                for layer in low.transformer.encoder.layer
            ]
            vectors[whole] = encode(low, tokens_of(rows), np.arange(200), 300, GPU)
            for hook in hooks:
                hook.remove()
    assert len(sizes[True]) < len(sizes[False]) / 3 and all(size % 64 == 0 for size in sizes[True])
    np.testing.assert_array_equal(vectors[True], vectors[False])


def test_encoders_in_training_are_not_packed(tower: Encoder) -> None:
    assert Packed.of(tower, CPU) is not None
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert Packed.of(tower, CPU) is None
    low = deepcopy(tower).to(torch.bfloat16)
    assert (Packed.of(low, CPU) is not None) == has_fused_layers()
    assert Packed.of(deepcopy(tower).to(torch.float16), CPU) is None and Packed.of(deepcopy(tower).train(), CPU) is None


def test_no_row(tower: Encoder) -> None:
    assert encode(tower, tokens_of([]), np.arange(0), 256, CPU).shape == (0, 128)


def test_texts_equal_their_tokens(tower: Encoder, tiny_encoder: Path) -> None:
    tokenizer = load_tokenizer(tiny_encoder)
    texts = ["one", "two words", "a text that is longer than the twelve tokens which are let through here"]
    rows = [tokenizer(text, truncation=True, max_length=12)["input_ids"] for text in texts]
    vectors = encode_texts(tower, tokenizer, texts, 12, CPU)
    np.testing.assert_allclose(vectors, encode(tower, tokens_of(rows), np.arange(3), 256, CPU), atol=1e-5)
