"""Published models: our vectors equal those of sentence-transformers, for what they save and for what we save."""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import T5Config, T5EncoderModel, T5Model

from tasks.core.encoding.encode import encode, encode_texts
from tasks.core.encoding.packed import Packed
from tasks.core.errors import UserError
from tasks.core.files import folder_digest
from tasks.core.models.bi_encoder import Encoder, Towers, interpolate_weights, load_towers, save_towers, truncate
from tasks.core.models.folder import Shape, read_prompts, read_shape
from tasks.core.tokens.folder import open_tokens
from tasks.core.tokens.params import Cut
from tasks.core.tokens.store import write_tokens
from tasks.core.tokens.tokenizer import load_tokenizer
from tasks.search.bert import query_vector
from tests.starts import DECODERS, EOS, LENGTH, PROMPTS, STARTS, Start

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
TEXTS = ["a", "Chancellor of West Germany", "ünïcödé 東京 \U0001f642", "word " * 50, "the cat sat on the mat", "x y"]
WIDTHS = {"qwen3": 32, "llama": 20, "gpt2": 48, "gemma": 24, "t5": 40, "bert_max": 128, "bert_sqrt": 40, "bert_weighted": 128} | {
    "bert_two": 256,
    "bert_three": 40,
    "bert_residual": 40,
}


def reference_vectors(folder: Path, kind: str = "document", batch: int = 1) -> np.ndarray:
    """Vectors of TEXTS by sentence-transformers; by default one at a time, so that nothing is padded."""
    model = SentenceTransformer(str(folder), device="cpu")
    return getattr(model, f"encode_{kind}")(TEXTS, batch_size=batch, show_progress_bar=False)


def vectors_of(folder: Path, prompt: str = PROMPTS["document"], towers: Towers | None = None) -> np.ndarray:
    tower = (towers or load_towers(folder)).document
    return encode_texts(tower, load_tokenizer(folder), [prompt + text for text in TEXTS], LENGTH, CPU)


def save_model(towers: Towers, source: Path, folder: Path) -> Path:
    folder.mkdir()
    save_towers(towers, load_tokenizer(source), folder, max_length=LENGTH)
    return folder


@pytest.mark.parametrize("name", STARTS)
def test_vectors_are_those_of_sentence_transformers(name: str, start: Start, tmp_path: Path) -> None:
    folder = start(name)
    towers = load_towers(folder)
    vectors = vectors_of(folder)
    assert vectors.shape == (len(TEXTS), towers.document.width) == (len(TEXTS), WIDTHS[name])
    assert towers.document.causal == (name in DECODERS)
    np.testing.assert_allclose(vectors, reference_vectors(folder), atol=1e-5)
    np.testing.assert_allclose(vectors_of(folder, PROMPTS["query"]), reference_vectors(folder, "query"), atol=1e-5)
    again = save_model(towers, folder, tmp_path / "again")
    np.testing.assert_allclose(vectors, reference_vectors(again), atol=1e-5)
    if name != "gpt2":  # where theirs moves with the padding: positions are absolute, and they count it
        np.testing.assert_allclose(vectors, reference_vectors(again, batch=len(TEXTS)), atol=1e-5)
    assert read_shape(again) == replace(read_shape(folder), max_length=LENGTH)
    assert folder_digest(save_model(load_towers(again), again, tmp_path / "third")) == folder_digest(again)


def test_of_a_model_with_a_decoder_the_encoder_is_read(tmp_path: Path) -> None:
    """As T5 itself is published."""
    model = T5Model(T5Config(vocab_size=258, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2, pad_token_id=257, eos_token_id=256))
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["is_encoder_decoder"]
    ids = torch.randint(0, 256, (3, 9), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        vectors = load_towers(tmp_path).document(ids, torch.ones_like(ids))
        hidden = model.eval().encoder(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
    torch.testing.assert_close(vectors, hidden.mean(1))


def test_weights_with_two_names_are_averaged_once() -> None:
    """T5's word embeddings are `shared` and `encoder.embed_tokens`."""
    config = T5Config(vocab_size=20, d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2)
    trained, start = (Encoder(T5EncoderModel(config), Shape("mean")) for _ in range(2))
    before = {key: weight.clone() for key, weight in trained.state_dict().items()}
    assert len(before) > len(list(trained.parameters()))
    interpolate_weights(Towers(trained, trained), Towers(start, start), 0.3)
    for key, weight in trained.state_dict().items():
        torch.testing.assert_close(weight, 0.7 * before[key] + 0.3 * start.state_dict()[key])


@pytest.mark.parametrize("name", STARTS)
def test_token_folders_give_the_same_vectors(name: str, start: Start, tmp_path: Path) -> None:
    """As the pipeline has them: padded for a batch, and the end kept where a text is cut."""
    folder = start(name)
    tokenizer = load_tokenizer(folder)
    write_tokens(
        tmp_path / "t",
        [([str(n) for n in range(len(TEXTS))], TEXTS)],
        tokenizer,
        Cut(LENGTH, PROMPTS["document"]),
        digest="",
        total=len(TEXTS),
    )
    tokens = open_tokens(tmp_path / "t")
    if STARTS[name][2]:
        end = tokenizer.sep_token_id or tokenizer.eos_token_id
        assert [int(tokens.flat[last - 1]) for last in tokens.offsets[1:]] == [end] * len(TEXTS)
    tower = load_towers(folder).document
    assert (Packed.of(tower, CPU) is not None) == (name == "bert_residual")  # of mean or CLS over BERT, whatever the head is
    np.testing.assert_allclose(encode(tower, tokens, np.arange(len(TEXTS)), 100, CPU), reference_vectors(folder), atol=1e-5)


@pytest.mark.parametrize("pooling", ["mean", "last", "max", "weightedmean"])
@pytest.mark.parametrize("name", DECODERS)
def test_padding_moves_no_vector_of_a_decoder(name: str, pooling: str, start: Start) -> None:
    source = load_towers(start(name)).document
    source.shape = Shape(pooling, source.shape.head, source.shape.similarity)
    generator = torch.Generator().manual_seed(2)
    rows = [torch.randint(0, 256, (length,), generator=generator) for length in (3, 11, 1, 7)]
    with torch.no_grad():
        alone = torch.cat([source(row[None], torch.ones_like(row)[None]) for row in rows])
        for side in ("left", "right"):
            ids, mask = torch.full((len(rows), 16), 257), torch.zeros(len(rows), 16, dtype=torch.int64)
            for number, row in enumerate(rows):
                columns = slice(16 - len(row), 16) if side == "left" else slice(0, len(row))
                ids[number, columns], mask[number, columns] = row, 1
            torch.testing.assert_close(source(ids, mask), alone, rtol=1e-4, atol=1e-5)
    assert (alone[0] - alone[1]).abs().max() > 1e-2


@pytest.mark.parametrize("name", ["qwen3", "gemma", "bert_sqrt"])
def test_a_narrower_model_is_the_first_numbers(name: str, start: Start, tmp_path: Path) -> None:
    folder = start(name)
    towers, full = load_towers(folder), vectors_of(folder)
    truncate(towers, 8, "base.width")
    expected = full[:, :8]
    if towers.document.shape.similarity == "cosine":
        expected = expected / np.sqrt((expected**2).sum(1, keepdims=True))
    assert towers.document.width == 8 and towers.document.full_width == WIDTHS[name]
    narrow = save_model(towers, folder, tmp_path / "narrow")
    np.testing.assert_allclose(vectors_of(narrow), expected, atol=1e-5)
    np.testing.assert_allclose(reference_vectors(narrow), expected, atol=1e-5)
    model = SentenceTransformer(str(folder), device="cpu", truncate_dim=8)
    truncated = model.encode_document(TEXTS, batch_size=1, normalize_embeddings=towers.document.shape.similarity == "cosine")
    np.testing.assert_allclose(vectors_of(narrow), truncated, atol=1e-5)
    assert read_shape(narrow).width == 8 and read_shape(narrow).head == read_shape(folder).head
    assert folder_digest(save_model(load_towers(narrow), narrow, tmp_path / "again")) == folder_digest(narrow)
    shutil.copytree(folder, tmp_path / "named")
    config = json.loads((folder / "config_sentence_transformers.json").read_text()) | {"truncate_dim": 8}
    (tmp_path / "named/config_sentence_transformers.json").write_text(json.dumps(config))
    np.testing.assert_array_equal(vectors_of(tmp_path / "named"), vectors_of(narrow))
    with pytest.raises(UserError, match=f"^base.width: found 200, expected at most {WIDTHS[name]}, the vector's width; decrease it$"):
        truncate(towers, 200, "base.width")
    truncate(towers, WIDTHS[name], "base.width")
    np.testing.assert_array_equal(vectors_of(folder, towers=towers), full)


def test_a_narrower_bert_is_the_same_without_torch(minilm: Path, tmp_path: Path) -> None:
    towers = load_towers(minilm)
    truncate(towers, 100, "base.width")
    narrow = save_model(towers, minilm, tmp_path / "narrow")
    vector = query_vector(narrow, "what is ADORE?", LENGTH)
    assert vector is not None
    np.testing.assert_allclose(vector, encode_texts(towers.query, load_tokenizer(minilm), ["what is ADORE?"], LENGTH, CPU), atol=1e-5)


def test_numpy_leaves_other_models_to_torch(start: Start) -> None:
    assert all(query_vector(start(name), "x", LENGTH) is None for name in STARTS)


def test_two_towers_of_a_decoder(start: Start, tmp_path: Path) -> None:
    """As ADORE saves them, with Dense layers and a width."""
    folder = start("gemma")
    towers = Towers(load_towers(folder).query, load_towers(folder).document)
    with torch.no_grad():
        for weight in towers.query.parameters():
            weight.add_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(3)) * 0.05)
    truncate(towers, 16, "base.width")
    saved_folder = save_model(towers, folder, tmp_path / "both")
    loaded = load_towers(saved_folder)
    assert not loaded.shared and loaded.query.width == 16
    for kind, tower in (("query", loaded.query), ("document", loaded.document)):
        np.testing.assert_allclose(
            vectors_of(saved_folder, PROMPTS[kind], Towers(tower, tower)), reference_vectors(saved_folder, kind), atol=1e-5
        )
    assert np.abs(reference_vectors(saved_folder, "query") - reference_vectors(saved_folder)).max() > 0.05


def test_a_text_without_tokens_has_the_vector_of_padding(start: Start, tmp_path: Path) -> None:
    folder = start("llama")
    tower, tokenizer = load_towers(folder).document, load_tokenizer(folder)
    assert tokenizer("")["input_ids"] == []
    write_tokens(tmp_path / "t", [(["a", "b"], ["", "some text"])], tokenizer, Cut(LENGTH), digest="", total=2)
    vectors = encode(tower, open_tokens(tmp_path / "t"), np.arange(2), 100, CPU)
    np.testing.assert_allclose(encode_texts(tower, tokenizer, ["", "some text"], LENGTH, CPU), vectors, atol=1e-6)
    assert np.isfinite(vectors).all()


def test_a_decoders_tokenizer_may_have_no_padding(start: Start, tmp_path: Path) -> None:
    shutil.copytree(start("qwen3"), tmp_path / "m")
    config = json.loads((tmp_path / "m/tokenizer_config.json").read_text())
    (tmp_path / "m/tokenizer_config.json").write_text(json.dumps({key: value for key, value in config.items() if key != "pad_token"}))
    tokenizer = load_tokenizer(tmp_path / "m")
    assert tokenizer.pad_token == EOS
    again = save_model(load_towers(tmp_path / "m"), tmp_path / "m", tmp_path / "again")
    np.testing.assert_allclose(vectors_of(start("qwen3")), reference_vectors(again, batch=len(TEXTS)), atol=1e-5)


def test_the_first_token_of_a_decoder_is_refused(start: Start) -> None:
    with pytest.raises(UserError, match=r"found pooling cls over a causal transformer \(qwen3\), whose first token sees no other") as error:
        load_towers(start("qwen3"), Shape("cls"))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("config", "pooling"),
    [
        ({"architectures": ["Qwen3ForCausalLM"]}, "last"),
        ({"architectures": ["Qwen3ForCausalLM"], "is_causal": False}, "mean"),
        ({"architectures": ["Qwen3Model"]}, "mean"),
        ({}, "mean"),
    ],
)
def test_a_bare_transformer_is_pooled_as_they_do(config: dict[str, Any], pooling: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_shape(tmp_path) == Shape(pooling)


def test_a_bare_causal_language_model_is_loaded(start: Start, tmp_path: Path) -> None:
    from transformers import Qwen3ForCausalLM

    model = Qwen3ForCausalLM(load_towers(start("qwen3")).document.transformer.config)
    model.save_pretrained(tmp_path / "bare")
    load_tokenizer(start("qwen3")).save_pretrained(tmp_path / "bare")
    np.testing.assert_allclose(vectors_of(tmp_path / "bare", ""), SentenceTransformer(str(tmp_path / "bare")).encode(TEXTS), atol=1e-5)


@pytest.mark.parametrize("name", STARTS)
def test_prompts_that_are_not_pooled(name: str, start: Start, tmp_path: Path) -> None:
    """include_prompt false, as in Instructor: our vectors equal theirs for a few texts, for token folders, and for what we save."""
    folder = tmp_path / "m"
    shutil.copytree(start(name), folder)
    prompts = {"query": "find: ", "document": "a text: "}  # shorter than a text: theirs gives 0 where a prompt is all that is read
    for path, change in (("1_Pooling/config.json", {"include_prompt": False}), ("config_sentence_transformers.json", {"prompts": prompts})):
        (folder / path).write_text(json.dumps(json.loads((folder / path).read_text()) | change))
    towers, tokenizer = load_towers(folder), load_tokenizer(folder)
    again = save_model(towers, folder, tmp_path / "again")
    assert read_shape(again).pools_prompt == (towers.document.shape.pooling == "last")  # the last token is no prompt's
    for kind, prompt in prompts.items():
        expected = reference_vectors(folder, kind)
        vectors = encode_texts(towers.document, tokenizer, TEXTS, LENGTH, CPU, prompt)
        np.testing.assert_allclose(vectors, expected, atol=1e-5)
        np.testing.assert_allclose(reference_vectors(again, kind), expected, atol=1e-5)
        ids = [str(number) for number in range(len(TEXTS))]
        write_tokens(tmp_path / kind, [(ids, TEXTS)], tokenizer, Cut(LENGTH, prompt), digest="", total=len(TEXTS))
        tokens = open_tokens(tmp_path / kind)
        np.testing.assert_allclose(encode(towers.document, tokens, np.arange(len(TEXTS)), 100, CPU), expected, atol=1e-5)
    if not read_shape(folder).pools_prompt:
        with_prompt = encode_texts(load_towers(start(name)).document, tokenizer, TEXTS, LENGTH, CPU, prompt)
        assert np.abs(vectors - with_prompt).max() > 1e-3


@pytest.mark.parametrize(
    ("config", "prompts"),
    [
        ({"prompts": {"query": "q", "document": ""}, "default_prompt_name": "query"}, ("q", "")),
        ({"prompts": {"retrieval": "r", "query": None, "document": None}, "default_prompt_name": "retrieval"}, ("r", "r")),
        ({"prompts": {"retrieval": "r", "query": "", "document": ""}, "default_prompt_name": "retrieval"}, ("", "")),
        ({"prompts": {"retrieval": "r"}}, ("", "")),
        ({"prompts": {"document": "", "passage": "p"}}, ("", "")),
        ({"prompts": {"document": None, "passage": "p"}}, ("", "p")),
        ({"prompts": None, "default_prompt_name": "x"}, ("", "")),
    ],
)
def test_prompts_of_a_folder(config: dict[str, Any], prompts: tuple[str, str]) -> None:
    assert read_prompts(config) == prompts


def test_nothing_of_theirs_is_imported_by_us() -> None:
    assert "sentence_transformers" in sys.modules  # by this file
    for name in ("bi_encoder", "folder", "head", "hidden_states.pooling", "layers"):
        assert "import sentence_transformers" not in Path(sys.modules[f"tasks.core.models.{name}"].__file__ or "").read_text()


def test_another_output_than_the_last_hidden_states_is_refused(start: Start, tmp_path: Path) -> None:
    folder = shutil.copytree(start("bert_max"), tmp_path / "m")
    path = folder / "sentence_bert_config.json"
    for output in ("last_hidden_state", "pooler_output"):
        text = {"method": "forward", "method_output_name": output}
        path.write_text(json.dumps(json.loads(path.read_text()) | {"modality_config": {"text": text}}))
        if output == "last_hidden_state":
            read_shape(folder)
    with pytest.raises(UserError, match=r"sentence_bert_config\.json: found text's method_output_name pooler_output, expected"):
        read_shape(folder)
