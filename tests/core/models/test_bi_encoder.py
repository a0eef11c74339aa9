"""One model folder, three ways in: ours, sentence-transformers, and AutoModel with pooling written by hand."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoTokenizer, BartConfig, BartModel

from tasks.core.encoding.encode import encode_texts
from tasks.core.errors import UserError
from tasks.core.files import folder_digest
from tasks.core.models.bi_encoder import Towers, interpolate_weights, load_towers, load_transformer, save_towers, temperature_warning
from tasks.core.models.folder import TOWERS, Shape, read_shape
from tasks.core.tokens.tokenizer import load_tokenizer

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
MAX_LENGTH = 12
TEXTS = [
    "a",
    "Chancellor of West Germany",
    "ünïcödé 東京 🙂",
    "word " * 50,
    "",
    "the cat sat on the mat, and then it went off into the night again",
]
SHAPES = {
    "mean_cosine": Shape("mean", "none", "cosine"),
    "cls_dot": Shape("cls", "none", "dot"),
    "cls_dot_head": Shape("cls", "linear_norm", "dot"),
    "mean_dot": Shape("mean", "none", "dot"),
    "mean_cosine_head": Shape("mean", "linear_norm", "cosine"),
    "mean_dot_tanh": Shape("mean", "tanh", "dot"),
    "cls_cosine_linear": Shape("cls", "linear", "cosine"),
}


def save_model(source: Path, folder: Path, shape: Shape) -> Path:
    """`source` with `shape` on top as a model folder; a head gets weights other than its initial ones."""
    towers = load_towers(source, shape)
    if towers.document.head is not None:
        for parameter in towers.document.head.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
    folder.mkdir()
    save_towers(towers, load_tokenizer(source), folder, max_length=MAX_LENGTH, query_prefix="query: ", document_prefix="passage: ")
    return folder


@pytest.fixture(scope="module")
def models(tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {name: save_model(tiny_encoder, folder / name, shape) for name, shape in SHAPES.items()}


@pytest.fixture(params=SHAPES)
def model(request: pytest.FixtureRequest, models: dict[str, Path]) -> tuple[Path, Shape]:
    return models[request.param], SHAPES[request.param]


def vectors_of(folder: Path, texts: list[str], max_length: int = MAX_LENGTH) -> np.ndarray:
    return encode_texts(load_towers(folder).document, load_tokenizer(folder), texts, max_length, CPU)


THEIRS = """
import json, os, sys, warnings
import numpy as np, torch
from sentence_transformers import SentenceTransformer
from transformers import AutoModel
warnings.simplefilter("error")
torch.set_num_threads(1)
out, texts = sys.argv[1], json.loads(sys.argv[2])
for number, folder in enumerate(sys.argv[3:]):
    model = SentenceTransformer(folder, device="cpu")
    AutoModel.from_pretrained(folder + "/document" if os.path.isdir(folder + "/document") else folder)
    print(json.dumps({"length": model.max_seq_length, "similarity": model.similarity_fn_name, "prompts": model.prompts}))
    way = {"plain": model.encode, "query": model.encode_query, "document": model.encode_document}
    np.savez(f"{out}/{number}.npz", **{kind: encode(texts, show_progress_bar=False) for kind, encode in way.items()})
"""
Theirs = dict[Path, tuple[dict[str, Any], dict[str, np.ndarray]]]  # what is said of a model, and its vectors of TEXTS by kind
PROMPTS = {"query": "query: ", "document": "passage: "}


@pytest.fixture(scope="module")
def two_towers(tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of models whose query tower differs from the document tower."""
    folders = {}
    for name in ("mean_cosine", "cls_dot_head"):
        query, document = (load_towers(tiny_encoder, SHAPES[name]).document for _ in range(2))
        torch.manual_seed(3)
        with torch.no_grad():
            for parameter in query.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.02)
        folders[name] = tmp_path_factory.mktemp("two") / name
        folders[name].mkdir()
        texts = {"max_length": MAX_LENGTH, "query_prefix": PROMPTS["query"], "document_prefix": PROMPTS["document"]}
        save_towers(Towers(query, document), load_tokenizer(tiny_encoder), folders[name], **texts)
    return folders


@pytest.fixture(scope="module")
def oracle(models: dict[str, Path], two_towers: dict[str, Path], minilm: Path, tmp_path_factory: pytest.TempPathFactory) -> Theirs:
    """What sentence-transformers says of each model, and its vectors of TEXTS, from one process that may print nothing else."""
    folders, out = [*models.values(), minilm, *two_towers.values()], tmp_path_factory.mktemp("theirs")
    command = [sys.executable, "-c", THEIRS, str(out), json.dumps(TEXTS), *map(str, folders)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line for line in process.stderr.splitlines() if line and not line.startswith("Loading weights: ")]  # a bar
    assert (process.returncode, lines) == (0, [])
    records = [json.loads(line) for line in process.stdout.splitlines()]
    return {folder: (line, dict(np.load(out / f"{n}.npz"))) for n, (folder, line) in enumerate(zip(folders, records, strict=True))}


def test_sentence_transformers_gives_the_same_vectors_without_warnings(models: dict[str, Path], minilm: Path, oracle: Theirs) -> None:
    for folder in (*models.values(), minilm):
        length = 256 if folder == minilm else MAX_LENGTH  # one text is longer, and cut alike
        np.testing.assert_allclose(oracle[folder][1]["plain"], vectors_of(folder, TEXTS, length), atol=1e-5)
    for name, folder in models.items():
        record, vectors = oracle[folder]
        assert record == {"length": MAX_LENGTH, "similarity": SHAPES[name].similarity, "prompts": PROMPTS}
        for kind, prefix in PROMPTS.items():
            np.testing.assert_allclose(vectors[kind], vectors_of(folder, [prefix + text for text in TEXTS]), atol=1e-5)


def test_auto_model_and_pooling_by_hand_give_the_same_vectors(model: tuple[Path, Shape]) -> None:
    folder, shape = model
    transformer, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    vectors = []
    for text in TEXTS:  # one by one: no padding
        batch = tokenizer(text, truncation=True, max_length=MAX_LENGTH, return_tensors="pt")
        with torch.no_grad():
            hidden = transformer(**batch).last_hidden_state[0].numpy().astype(np.float64)
        vector = hidden[0] if shape.pooling == "cls" else sum(hidden) / len(hidden)
        if shape.head != "none":
            dense = load_file(folder / "2_Dense" / "model.safetensors")
            vector = dense["linear.weight"].numpy() @ vector + dense["linear.bias"].numpy()
        if shape.head == "tanh":
            vector = np.tanh(vector)
        if shape.head == "linear_norm":
            norm = load_file(folder / "3_LayerNorm" / "model.safetensors")
            vector = (vector - vector.mean()) / np.sqrt(vector.var() + 1e-5)
            vector = vector * norm["norm.weight"].numpy() + norm["norm.bias"].numpy()
        vectors.append(vector / np.sqrt((vector**2).sum()) if shape.similarity == "cosine" else vector)
    np.testing.assert_allclose(vectors_of(folder, TEXTS), np.array(vectors), atol=1e-5)


def test_saving_again_is_bit_identical(model: tuple[Path, Shape], tmp_path: Path) -> None:
    folder, shape = model
    towers = load_towers(folder)
    assert towers.shared and not towers.document.training
    assert (
        read_shape(folder)
        == towers.document.shape
        == Shape(shape.pooling, shape.head, shape.similarity, MAX_LENGTH, "query: ", "passage: ")
    )
    (tmp_path / "again").mkdir()
    save_towers(towers, load_tokenizer(folder), tmp_path / "again")
    assert folder_digest(tmp_path / "again") == folder_digest(folder)
    np.testing.assert_array_equal(vectors_of(tmp_path / "again", TEXTS), vectors_of(folder, TEXTS))


def test_default_encoder_is_loaded_unchanged(minilm: Path) -> None:
    assert read_shape(minilm) == Shape("mean", "none", "cosine", 256)


def test_bare_transformer_is_mean_and_dot_and_loads_reproducibly(tiny_encoder: Path) -> None:
    assert read_shape(tiny_encoder) == Shape("mean", "none", "dot")
    torch.manual_seed(1)
    first = load_transformer(tiny_encoder).state_dict()
    torch.manual_seed(2)
    state = torch.get_rng_state()
    second = load_transformer(tiny_encoder).state_dict()
    assert torch.equal(torch.get_rng_state(), state)  # a load draws from nobody else's numbers
    assert "pooler.dense.weight" in first  # which the source does not bring
    assert all(torch.equal(first[name], second[name]) for name in first)


def edit_config(name: str, **changes: object) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        values = json.loads((folder / name).read_text()) | changes
        (folder / name).write_text(json.dumps(values))

    return edit


def rename(name: str, keys: Callable[[str], str]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        weights = {keys(key): value.clone() for key, value in load_file(folder / name).items()}
        save_file(weights, folder / name, {"format": "pt"})

    return edit


def remove(*names: str) -> Callable[[Path], None]:
    return lambda folder: [(folder / name).unlink() for name in names] and None


def halve(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[: (folder / name).stat().st_size // 2]) and None


def write_chain(*kinds: str) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        modules = [
            {"idx": n, "name": str(n), "path": f"{n}_{k}" if n else "", "type": f"sentence_transformers.models.{k}"}
            for n, k in enumerate(kinds)
        ]
        (folder / "modules.json").write_text(json.dumps(modules))

    return edit


MODES = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": False}


def foreign(folder: Path) -> None:
    modules = json.loads((folder / "modules.json").read_text())
    modules[1]["type"] = "elsewhere.Pooling"
    (folder / "modules.json").write_text(json.dumps(modules))


HARM = {
    "no weights": (remove("model.safetensors"), "model.safetensors"),
    "half the weights": (halve("model.safetensors"), "cannot be loaded"),
    "weights of other names": (rename("model.safetensors", lambda key: f"x.{key}"), "is missing or has another size"),
    "more layers than weights": (edit_config("config.json", num_hidden_layers=4), r"encoder.layer.2\S* is missing"),
    "another width": (edit_config("config.json", hidden_size=64), "is missing or has another size"),
    "no config": (remove("config.json"), "no config.json"),
    "adapters beside them": (
        lambda folder: (folder / "adapter_config.json").write_text("{}") and None,
        "adapter_config.json: found adapters, expected a model with merged adapters",
    ),
    "a width that is no number": (edit_config("config.json", hidden_size="wide"), "cannot be loaded .*hidden_size"),
    "a width that heads do not divide": (edit_config("config.json", num_attention_heads=3), "cannot be loaded .*attention heads"),
    "half a config": (halve("config.json"), "cannot be loaded"),
    "a kind of model that does not exist": (edit_config("config.json", model_type="zzz"), "cannot be loaded"),
    "an unknown pooling": (
        edit_config("1_Pooling/config.json", **MODES, pooling_mode_median=True),
        "pooling_mode_median; expected any of cls, max",
    ),
    "two poolings under a head for one": (
        edit_config("1_Pooling/config.json", pooling_mode_cls_token=True, pooling_mode_mean_tokens=True),
        "found a Dense with 128 inputs, expected 256",
    ),
    "an unknown pooling, the new form": (edit_config("1_Pooling/config.json", pooling_mode="median"), "found pooling median; expected"),
    "no pooling": (remove("1_Pooling/config.json"), "1_Pooling/config.json: not found"),
    "a module we have not": (
        write_chain("Transformer", "Pooling", "WeightedLayerPooling"),
        "found Transformer, Pooling, WeightedLayerPooling; expected Transformer, Pooling, and",
    ),
    "a module of another package": (foreign, "found elsewhere.Pooling, expected modules of sentence-transformers: no other code is run"),
    "no LayerNorm where one is said to be": (write_chain("Transformer", "Pooling", "LayerNorm"), "2_LayerNorm/config.json: not found"),
    "no pooling before the head": (write_chain("Transformer", "Dense"), "found Transformer, Dense; expected Transformer, Pooling, and"),
    "an activation": (
        edit_config("2_Dense/config.json", activation_function="torch.nn.modules.activation.Softmax"),
        "found activation .*Softmax",
    ),
    "code for an activation": (
        edit_config("2_Dense/config.json", activation_function="elsewhere.Tanh"),
        "found activation elsewhere.Tanh; expected",
    ),
    "a Dense over tokens": (
        edit_config("2_Dense/config.json", module_input_name="token_embeddings"),
        "found module_input_name token_embeddings",
    ),
    "a narrowing Dense": (edit_config("2_Dense/config.json", out_features=64), "found a LayerNorm with 128 inputs, expected 64"),
    "a Dense of another width": (edit_config("2_Dense/config.json", in_features=64), "found a Dense with 64 inputs, expected 128"),
    "a Dense of no width": (edit_config("2_Dense/config.json", in_features="wide"), "found in_features wide, expected a number"),
    "no weights of the head": (remove("2_Dense/model.safetensors"), "2_Dense/model.safetensors: cannot be loaded"),
    "half the head": (rename("3_LayerNorm/model.safetensors", lambda key: f"x.{key}"), "3_LayerNorm/model.safetensors: cannot be loaded"),
}


@pytest.mark.parametrize("name", HARM)
def test_unsupported_folder_is_refused_in_one_line(name: str, models: dict[str, Path], tmp_path: Path) -> None:
    harm, words = HARM[name]
    shutil.copytree(models["cls_dot_head"], tmp_path / "m")
    harm(tmp_path / "m")
    with pytest.raises(UserError, match=words) as error:
        load_towers(tmp_path / "m")
    assert "\n" not in str(error.value) and str(tmp_path / "m") in str(error.value)


def test_settings_that_are_no_object(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("4")
    with pytest.raises(UserError, match=r"config\.json: found no JSON object"):
        read_shape(tmp_path)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ({"pooling_mode": "cls"}, "cls"),
        ({"pooling_mode": "mean"}, "mean"),
        ({"pooling_mode": ["cls"]}, "cls"),
        ({}, "mean"),
        ({"pooling_mode": "lasttoken"}, "last"),
        ({"pooling_mode": ("mean_sqrt_len_tokens",)}, "mean_sqrt_len"),
        ({"pooling_mode_weightedmean_tokens": True}, "weightedmean"),
        ({"pooling_mode_lasttoken": True, "pooling_mode_cls_token": False}, "last"),
        ({"pooling_mode_cls_token": True}, "cls"),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True, "pooling_mode_lasttoken": True}, "cls+mean+last"),
        ({"pooling_mode": ["mean", "cls"]}, "mean+cls"),
        ({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": False}, "mean"),
    ],
)
def test_every_form_of_pooling_configuration(mode: dict[str, object], expected: str, tmp_path: Path) -> None:
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 8, **mode}))
    write_chain("Transformer", "Pooling")(tmp_path)
    assert read_shape(tmp_path) == Shape(pooling=expected)
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps({"similarity_fn_name": "cosine", "prompts": None}))
    assert read_shape(tmp_path).similarity == "cosine"  # without a Normalize module
    (tmp_path / "config_sentence_transformers.json").write_text(
        json.dumps({"prompts": {"query": "q: ", "corpus": "c: ", "passage": "p: "}})
    )
    assert (read_shape(tmp_path).query_prefix, read_shape(tmp_path).document_prefix) == ("q: ", "p: ")  # as encode_document takes them


def test_an_encoder_with_a_decoder_is_refused(tmp_path: Path) -> None:
    sizes = {"encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    BartModel(BartConfig(vocab_size=8, d_model=8, max_position_embeddings=8, **sizes, **heads)).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="found an encoder with a decoder"):
        load_transformer(tmp_path)


def test_two_towers_are_one_folder_to_sentence_transformers_and_to_us(two_towers: dict[str, Path], oracle: Theirs, tmp_path: Path) -> None:
    for name, folder in two_towers.items():
        record, vectors = oracle[folder]
        assert record == {"length": MAX_LENGTH, "similarity": SHAPES[name].similarity, "prompts": PROMPTS}
        towers, tokenizer = load_towers(folder), load_tokenizer(folder)
        assert not towers.shared and read_shape(folder) == towers.document.shape == towers.query.shape
        for kind, tower in (("query", towers.query), ("document", towers.document)):
            expected = encode_texts(tower, tokenizer, [PROMPTS[kind] + text for text in TEXTS], MAX_LENGTH, CPU)
            np.testing.assert_allclose(vectors[kind], expected, atol=1e-5)
        assert np.abs(vectors["query"] - vectors["document"]).max() > 0.05  # they are two
        again = tmp_path / f"{name}-again"
        again.mkdir()
        save_towers(towers, load_tokenizer(folder), again)
        assert folder_digest(again) == folder_digest(folder)


@pytest.mark.parametrize(
    ("harm", "words"),
    [(remove("tokenizer.json"), "no tokenizer"), (halve("tokenizer.json"), "no tokenizer"), (shutil.rmtree, "no tokenizer")],
)
def test_a_folder_without_a_tokenizer_is_refused_in_one_line(
    harm: Callable[[Path], None], words: str, tiny_encoder: Path, tmp_path: Path
) -> None:
    shutil.copytree(tiny_encoder, tmp_path / "m")
    harm(tmp_path / "m")
    with pytest.raises(UserError, match=words) as error:
        load_tokenizer(tmp_path / "m")
    assert "\n" not in str(error.value)


def test_a_tokenizer_without_padding_is_refused(tiny_encoder: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_encoder, tmp_path / "m")
    edit_config("tokenizer_config.json", pad_token=None)(tmp_path / "m")
    with pytest.raises(UserError, match="padding token"):
        load_tokenizer(tmp_path / "m")


def test_two_towers_keep_two_lengths(tiny_encoder: Path, tmp_path: Path) -> None:
    """Queries are cut shorter than documents, by sentence-transformers too, where each has a tower of its own."""
    first, second = load_towers(tiny_encoder), load_towers(tiny_encoder)
    save_towers(Towers(first.query, second.document), load_tokenizer(tiny_encoder), tmp_path, 6, max_length=20)
    lengths = {name: json.loads((tmp_path / name / "sentence_bert_config.json").read_text())["max_seq_length"] for name in TOWERS}
    assert lengths == {"query": 6, "document": 20}


def test_a_cosines_temperature_over_dot_products_is_warned_about() -> None:
    dot, cosine = Shape(similarity="dot"), Shape(similarity="cosine")
    assert temperature_warning(dot, 0.05).startswith("temperature 0.05 multiplies dot products by 20, which suits cosines; set")
    assert [temperature_warning(dot, 1.0), temperature_warning(cosine, 0.05)] == ["", ""]


def test_averaged_weights_are_those_of_a_plain_loop(tiny_encoder: Path) -> None:
    trained, start = (
        load_towers(tiny_encoder, Shape("cls", "linear_norm", "dot")),
        load_towers(tiny_encoder, Shape("cls", "linear_norm", "dot")),
    )
    generator = torch.Generator().manual_seed(0)
    for weight in trained.document.parameters():
        weight.data = torch.randn(weight.shape, generator=generator)
    before = {key: weight.clone() for key, weight in trained.document.state_dict().items()}
    interpolate_weights(trained, start, 0.3)
    for key, weight in trained.document.state_dict().items():
        torch.testing.assert_close(weight, 0.7 * before[key] + 0.3 * start.document.state_dict()[key], rtol=1e-5, atol=1e-6)
