"""The query vector by numpy: transformers' own, without importing it."""

import json
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, DistilBertConfig, DistilBertModel, RobertaConfig, RobertaModel, XLMRobertaConfig, XLMRobertaModel

from tasks.core.encoding.encode import encode_texts
from tasks.core.models.bi_encoder import Encoder, Towers, load_towers, save_towers
from tasks.core.models.folder import Shape
from tasks.core.tokens.tokenizer import load_tokenizer
from tasks.search.bert import query_vector, resident_vector

CPU = torch.device("cpu")
TEXTS = [
    "what is ADORE?",
    "Çà et là, ÉCOLE naïve",
    "東京 is big \U0001f600 \u200b x",
    "a" * 300,
    "",
    "many words " * 40,
    "[MASK] [SEP] <s>",
    "[PAD] stands [PAD] [PAD] for padding",
]
SHAPES = {
    "mean, cosine": Shape("mean", "none", "cosine"),
    "cls, dot": Shape("cls", "none", "dot"),
    "linear_norm": Shape("cls", "linear_norm", "dot"),
    "linear": Shape("mean", "linear", "cosine"),
    "tanh": Shape("mean", "tanh", "dot"),
}


def randomize_weights(transformer: torch.nn.Module) -> torch.nn.Module:
    """Weights large enough that every part of the model moves its vectors."""
    generator = torch.Generator().manual_seed(0)
    for weight in transformer.parameters():
        weight.data.add_(torch.randn(weight.shape, generator=generator) * 0.1)
    return transformer


def save_model(transformer: torch.nn.Module, shape: Shape, tokenizer_of: Path, folder: Path) -> Path:
    encoder = Encoder(transformer, shape).eval()
    if encoder.head is not None:
        encoder.head.draw(torch.Generator().manual_seed(1))
        randomize_weights(encoder.head)
    folder.mkdir()
    save_towers(Towers(encoder, encoder), load_tokenizer(tokenizer_of), folder, max_length=32)
    return folder


def assert_same_vectors(folder: Path, max_length: int = 16) -> None:
    tower, tokenizer = load_towers(folder).query, load_tokenizer(folder)
    resident = resident_vector(folder, max_length)
    assert resident is not None
    with ThreadPoolExecutor(4) as pool:
        concurrent = list(pool.map(resident, TEXTS * 3))
    for number, text in enumerate(TEXTS * 3):
        alone = query_vector(folder, text, max_length)
        assert alone is not None and concurrent[number].tobytes() == alone.tobytes(), "the same bits, whatever is beside it"
    for text in TEXTS:
        expected = encode_texts(tower, tokenizer, [text], max_length, CPU)
        vector = query_vector(folder, text, max_length)
        assert vector is not None and vector.dtype == np.float32 and vector.shape == expected.shape
        np.testing.assert_allclose(vector, expected, rtol=1e-4, atol=2e-5 * np.abs(expected).max(), err_msg=text)


@pytest.mark.parametrize("name", SHAPES)
def test_vectors_are_those_of_transformers(name: str, tiny_encoder: Path, tmp_path: Path) -> None:
    transformer = randomize_weights(load_towers(tiny_encoder).query.transformer)
    assert_same_vectors(save_model(transformer, SHAPES[name], tiny_encoder, tmp_path / "m"))


def test_the_default_encoder_is_read(minilm: Path) -> None:
    assert_same_vectors(minilm, 64)


@pytest.mark.parametrize(
    ("model", "config"), [(RobertaModel, RobertaConfig), (XLMRobertaModel, XLMRobertaConfig)], ids=["roberta", "xlm-roberta"]
)
def test_positions_begin_behind_the_padding_of_roberta(model: type, config: type, tiny_encoder: Path, tmp_path: Path) -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": 40_000}
    torch.manual_seed(0)
    transformer = model(config(**sizes, max_position_embeddings=40, pad_token_id=0))
    assert_same_vectors(save_model(randomize_weights(transformer), SHAPES["cls, dot"], tiny_encoder, tmp_path / "m"))


def test_a_tokenizer_that_may_find_no_token_is_left_to_torch(tiny_encoder: Path, tmp_path: Path) -> None:
    folder = save_model(load_towers(tiny_encoder).query.transformer, Shape("cls"), tiny_encoder, tmp_path / "m")
    config = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(config | {"post_processor": None}))
    assert query_vector(folder, "\u200b", 16) is None
    assert resident_vector(folder, 16) is None


def test_two_towers_answer_with_the_query_tower(tiny_encoder: Path, tmp_path: Path) -> None:
    first, second = (load_towers(tiny_encoder, Shape("mean", "none", "dot")).query for _ in range(2))
    randomize_weights(first.transformer)
    save_towers(Towers(first, second), load_tokenizer(tiny_encoder), tmp_path, 6, max_length=20)
    assert_same_vectors(tmp_path)


def test_the_side_that_is_cut_is_the_tokenizers(tiny_encoder: Path, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_encoder, truncation_side="left")
    tokenizer.save_pretrained(tmp_path / "t")
    assert_same_vectors(save_model(load_towers(tiny_encoder).query.transformer, Shape(), tmp_path / "t", tmp_path / "m"), 8)


def change_config(**changed: object) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changed))

    return change


@pytest.mark.parametrize(
    "change",
    [
        change_config(hidden_act="relu"),
        change_config(model_type="distilbert"),
        change_config(is_decoder=True),
        change_config(position_embedding_type="relative_key"),
        lambda folder: (folder / "model.safetensors").write_bytes(b"no weights"),
        lambda folder: (folder / "model.safetensors").unlink(),
        lambda folder: (folder / "tokenizer.json").unlink(),
        lambda folder: (folder / "tokenizer.json").write_text("{}"),
    ],
    ids=["activation", "family", "decoder", "positions", "corrupt", "no weights", "no tokenizer", "corrupt tokenizer"],
)
def test_what_is_not_such_a_model_is_left_to_torch(change: Callable[[Path], object], tiny_encoder: Path, tmp_path: Path) -> None:
    folder = save_model(load_towers(tiny_encoder).query.transformer, Shape(), tiny_encoder, tmp_path / "m")
    assert query_vector(folder, "text", 16) is not None
    change(folder)
    assert query_vector(folder, "text", 16) is None
    assert resident_vector(folder, 16) is None


def test_prompts_that_are_not_pooled_are_left_to_torch(tiny_encoder: Path, tmp_path: Path) -> None:
    from tasks.search.lists import resident_tower

    transformer = load_towers(tiny_encoder).query.transformer
    pooled, unpooled = (save_model(transformer, Shape(pools_prompt=pools), tiny_encoder, tmp_path / str(pools)) for pools in (True, False))
    assert query_vector(unpooled, "query: text", 16) is None
    assert resident_vector(unpooled, 16) is None
    vector, with_prompt = (resident_tower(folder, 16, "query: ")("text") for folder in (unpooled, pooled))
    np.testing.assert_allclose(with_prompt, query_vector(pooled, "query: text", 16), atol=1e-5)
    assert np.abs(vector - with_prompt).max() > 1e-3


def test_weights_that_are_not_finite_are_left_to_torch(tiny_encoder: Path, tmp_path: Path) -> None:
    transformer = load_towers(tiny_encoder).query.transformer
    transformer.encoder.layer[0].output.dense.bias.data[0] = torch.nan
    assert query_vector(save_model(transformer, Shape(), tiny_encoder, tmp_path / "m"), "text", 16) is None


def test_another_architecture_is_searched_with_by_torch(tiny_encoder: Path, tmp_path: Path) -> None:
    from tasks.search.lists import resident_tower

    config = DistilBertConfig(dim=32, n_layers=1, n_heads=2, hidden_dim=48, vocab_size=40_000)
    folder = save_model(DistilBertModel(config), SHAPES["cls, dot"], tiny_encoder, tmp_path / "m")
    assert query_vector(folder, "text", 16) is None
    assert resident_tower(folder, 16, "")("text").shape == (1, 32)


def test_neither_torch_nor_transformers_is_imported(tiny_encoder: Path, tmp_path: Path) -> None:
    """They would take most of a search's time."""
    folder = save_model(load_towers(tiny_encoder).query.transformer, Shape(), tiny_encoder, tmp_path / "m")
    code = (
        "import sys; from pathlib import Path; import tasks.search.__main__; from tasks.search.bert import query_vector; "
        f"assert query_vector(Path({str(folder)!r}), 'text', 16) is not None; "
        "print(*({'torch', 'transformers', 'pandas', 'sympy'} & set(sys.modules)))"
    )
    root = Path(__file__).resolve().parents[2]
    process = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert (process.returncode, process.stdout.strip()) == (0, ""), process
