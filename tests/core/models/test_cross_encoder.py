"""Scores equal those of the plain model, a pair at a time; what cannot score pairs is refused in one line."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    RobertaConfig,
    RobertaForSequenceClassification,
)

from tasks.core.errors import UserError
from tasks.core.models import cross_encoder
from tasks.core.models.cross_encoder import CrossEncoder, load_classifier, load_cross_encoder, padded
from tasks.core.tokens.folder import cut_by_budget
from tests.fake_gpu import GPU, fake_gpu
from tests.starts import byte_tokenizer

CPU, FP32 = torch.device("cpu"), torch.float32
WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "while", "seven", "wizards", "watch", "from", "the", "hill"]
DECODER = {"num_key_value_heads": 4, "bos_token_id": None, "eos_token_id": 256}


def random_pairs() -> list[tuple[str, str]]:
    rng = np.random.default_rng(0)
    return [(" ".join(rng.choice(WORDS, rng.integers(1, 6))), " ".join(rng.choice(WORDS, rng.integers(1, 60)))) for _ in range(23)]


@pytest.mark.parametrize("max_length", [16, 40, 512])
def test_scores_are_those_of_one_pair_at_a_time(tiny_reranker: Path, max_length: int) -> None:
    scores = load_cross_encoder(tiny_reranker, max_length, 200, CPU, FP32).scores(random_pairs())
    model, tokenizer = (
        AutoModelForSequenceClassification.from_pretrained(tiny_reranker).eval(),
        AutoTokenizer.from_pretrained(tiny_reranker),
    )
    with torch.no_grad():
        expected = [
            float(model(**tokenizer(q, d, truncation=True, max_length=max_length, return_tensors="pt")).logits) for q, d in random_pairs()
        ]
    np.testing.assert_allclose(scores, expected, atol=1e-4)
    assert scores.dtype == np.float32
    assert np.std(scores) > 0.1
    assert len(load_cross_encoder(tiny_reranker, 16, 200, CPU, FP32).scores([])) == 0


def save_reranker(kind: str, folder: Path, side: str = "right", **settings: int | None) -> Path:
    """A reranker of `kind`, drawn at random, over a `byte_tokenizer` that pads on `side` with token 257."""
    shutil.rmtree(folder, ignore_errors=True)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": 258}
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **sizes, **{"num_labels": 1, "pad_token_id": 257, **settings})
    model = AutoModelForSequenceClassification.from_config(config)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    model.save_pretrained(folder)
    byte_tokenizer(side, ends=True).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("kind", "settings"), [("bloom", {"n_head": 4}), ("jamba", {"num_experts": 2}), ("xlnet", {"d_inner": 48, "d_head": 8})]
)
def test_scores_of_decoders_are_those_of_one_pair_at_a_time(kind: str, settings: dict[str, int], tmp_path: Path) -> None:
    """Of Jamba's first layers, which have no attention, too; XLNet says that it has -1 positions."""
    encoder = load_cross_encoder(save_reranker(kind, tmp_path / "m", **settings), 64, 200, CPU, FP32)
    plain = AutoModelForSequenceClassification.from_pretrained(tmp_path / "m").eval()
    plain.config.use_cache = False
    with torch.no_grad():
        inputs = [encoder.tokenizer(q, d, truncation=True, max_length=64, return_tensors="pt") for q, d in random_pairs()]
        expected = [float(plain(**tensors).logits) for tensors in inputs]
    np.testing.assert_allclose(encoder.scores(random_pairs()), expected, rtol=1e-4, atol=1e-5)
    assert np.std(expected) > 0.001


@pytest.mark.parametrize("kind", ["convbert", "fnet", "bloom"])
def test_scores_that_depend_on_padding_are_refused(kind: str, tmp_path: Path) -> None:
    """Bloom, where config.json names another padding token: it scores by the last token that is not that one."""
    settings = {"n_head": 4, "pad_token_id": 7} if kind == "bloom" else {}
    with pytest.raises(UserError, match=rf"m: found a reranker \({kind}\) whose scores depend on padding; expected one that masks it"):
        load_cross_encoder(save_reranker(kind, tmp_path / "m", **settings), 64, 200, CPU, FP32)


def test_a_reranker_that_reads_no_pairs_is_refused(tiny_reranker: Path) -> None:
    model = load_classifier(tiny_reranker)
    model.classifier = torch.nn.Linear(3, 1)
    with pytest.raises(UserError, match=r"found a reranker \(bert\) that fails on a pair \(mat1 and mat2 .*\); expected one such as BERT$"):
        cross_encoder.pair_tokenizer(model, tiny_reranker)


def test_a_reranker_that_fails_in_bf16_is_one_line(tmp_path: Path) -> None:
    """DeBERTa's first version, under autocast."""
    encoder = load_cross_encoder(save_reranker("deberta", tmp_path / "m"), 64, 200, CPU, FP32)
    with (
        pytest.raises(UserError, match=r"^found a transformer \(deberta\) that fails in bf16 \(value .*\); set precision: fp32$"),
        torch.autocast("cpu", torch.bfloat16),
    ):
        encoder.scores(random_pairs())


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_batch_is_what_the_tokenizer_pads(side: str, tiny_reranker: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_reranker)
    tokenizer.padding_side, tokenizer.pad_token, tokenizer._pad_token_type_id = side, "[MASK]", 7
    rows = dict(tokenizer(*map(list, zip(*random_pairs(), strict=True))))
    actual, expected = padded(rows, tokenizer), tokenizer.pad(rows, return_tensors="pt")
    assert list(actual) == list(expected) and set(actual) == {"input_ids", "token_type_ids", "attention_mask"}
    assert all(torch.equal(actual[name], tensor) and actual[name].dtype == tensor.dtype for name, tensor in expected.items())


def test_scores_are_those_of_what_the_tokenizer_pads(tiny_reranker: Path) -> None:
    """Bit for bit, on a CPU."""
    encoder = load_cross_encoder(tiny_reranker, 64, 200, CPU, FP32)
    encoded = encoder.tokenizer(*map(list, zip(*random_pairs(), strict=True)), truncation=True, max_length=64)
    expected = np.empty(23, dtype=np.float32)
    batches = cut_by_budget(np.array(list(map(len, encoded["input_ids"]))), 200)
    for batch in batches:
        tensors = encoder.tokenizer.pad({name: [rows[n] for n in batch] for name, rows in encoded.items()}, return_tensors="pt")
        with torch.inference_mode():
            expected[batch] = encoder.logits(tensors)[:, 0].numpy()
    assert len(batches) > 3 and np.array_equal(encoder.scores(random_pairs()), expected)


@pytest.mark.parametrize("part", [7, 100])
def test_a_gpu_has_the_next_batch_before_scores_are_waited_for(part: int, tiny_reranker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pairs are tokenized a part at a time."""
    monkeypatch.setattr(cross_encoder, "PART", part)
    expected = load_cross_encoder(tiny_reranker, 64, 200, CPU, FP32).scores(random_pairs())
    with fake_gpu() as gpu:
        encoder = load_cross_encoder(tiny_reranker, 64, 200, GPU, FP32)
        waits = list[int]()  # before each batch
        logits = CrossEncoder.logits
        monkeypatch.setattr(CrossEncoder, "logits", lambda model, tensors: (waits.append(len(gpu.waited)), logits(model, tensors))[1])
        gpu.waited.clear()
        scores = encoder.scores(random_pairs())
        assert encoder.scores([]).shape == (0,)
    assert [wait.split()[0] for wait in gpu.waited] == ["event"] * len(waits), "for nothing but scores"
    assert waits == [0, *range(len(waits) - 1)] and len(waits) > 3
    np.testing.assert_allclose(scores, expected, atol=1e-5)


def test_bf16_scores_are_not_rounded_to_bf16(tiny_reranker: Path) -> None:
    """The last layer gives the score: in bf16 it would have eight bits, and a list's documents would tie."""
    exact = load_cross_encoder(tiny_reranker, 64, 200, CPU, FP32).scores(random_pairs())
    scores = load_cross_encoder(tiny_reranker, 64, 200, CPU, torch.bfloat16).scores(random_pairs())
    np.testing.assert_allclose(scores, exact, atol=0.1 * np.abs(exact).max())
    rounded = torch.from_numpy(scores).bfloat16().float().numpy()
    assert np.mean(scores != rounded) > 0.8


def test_another_number_of_labels(tiny_reranker: Path, tiny_encoder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"config.json: found 2 labels, expected 1"):
        load_classifier(tiny_encoder)
    shutil.copytree(tiny_reranker, tmp_path / "three")
    config = json.loads((tmp_path / "three" / "config.json").read_text())
    config["id2label"] = {str(n): f"LABEL_{n}" for n in range(3)}
    config["label2id"] = {f"LABEL_{n}": n for n in range(3)}
    (tmp_path / "three" / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="found 3 labels, expected 1") as error:
        load_cross_encoder(tmp_path / "three", 64, 512, CPU, FP32)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("config", [[], {"id2label": 1}, {"num_labels": "two"}])
def test_a_configuration_of_another_form_is_refused(tmp_path: Path, config: Any) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"config\.json: not the configuration of a model \(.*\); choose another model$"):
        load_classifier(tmp_path)


def test_an_encoder_without_a_trained_head(tiny_encoder: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_encoder, tmp_path / "m")
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    (tmp_path / "m" / "config.json").write_text(json.dumps({**config, "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}))
    with pytest.raises(UserError, match=r"has no bert.pooler.dense.bias, expected a trained one-label classifier"):
        load_classifier(tmp_path / "m")
    heads = [load_classifier(tiny_encoder, seed).classifier.weight.detach() for seed in (1, 1, 2)]
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])
    assert heads[0].shape[0] == 1


def test_unmerged_adapters_are_refused(tiny_reranker: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_reranker, tmp_path / "m")
    (tmp_path / "m" / "adapter_config.json").write_text("{}")
    with pytest.raises(UserError, match=r"adapter_config.json: found adapters, expected a model with merged adapters"):
        load_classifier(tmp_path / "m")


def test_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"config.json: not found"):
        load_classifier(tmp_path)


def test_a_pair_is_cut_to_the_positions_of_a_model_of_robertas_kind(tiny_encoder: Path, tmp_path: Path) -> None:
    """It numbers positions from its padding token's id + 1, so that 20 of them hold 19 tokens or fewer."""
    config = RobertaConfig(
        vocab_size=31000, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, num_labels=1,
        max_position_embeddings=20, pad_token_id=0,
    )  # fmt: skip
    RobertaForSequenceClassification(config).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(tiny_encoder, model_max_length=10**9).save_pretrained(tmp_path)
    encoder = load_cross_encoder(tmp_path, 256, 512, CPU, FP32)
    assert encoder.max_length == 19
    assert np.isfinite(encoder.scores([("some words " * 30, "other words " * 30)])).all()


@pytest.mark.parametrize("kind", ["bert", "gpt2", "qwen2"])
def test_a_tokenizer_that_pads_on_the_left_moves_no_score(kind: str, tmp_path: Path) -> None:
    encoder = load_cross_encoder(save_reranker(kind, tmp_path / "m", "left", **DECODER), 64, 10_000, CPU, FP32)
    scores, alone = encoder.scores(random_pairs()), [encoder.scores([pair])[0] for pair in random_pairs()]
    np.testing.assert_allclose(scores, alone, atol=1e-4)
    assert np.std(scores) > 0.02


@pytest.mark.parametrize("kind", ["gpt2", "qwen3"])
def test_an_empty_pair_has_a_score_where_no_special_tokens_are_added(kind: str, tmp_path: Path) -> None:
    """Stage rerank begins with an empty pair. The tokenizer of Qwen3's rerankers adds no special tokens."""
    folder = save_reranker(kind, tmp_path / "m", "right", **DECODER)
    byte_tokenizer("right", ends=False).save_pretrained(folder)
    encoder = load_cross_encoder(folder, 64, 200, CPU, FP32)
    sample = [("", ""), *random_pairs()[:5]]
    scores = encoder.scores(sample)
    assert np.isfinite(encoder.scores(sample[:1])).all()
    np.testing.assert_allclose(scores, [encoder.scores([pair])[0] for pair in sample], atol=1e-4)
    with torch.no_grad():
        inputs = [encoder.tokenizer(q, d, truncation=True, max_length=64, return_tensors="pt") for q, d in sample[1:]]
        expected = [float(encoder.model(**tensors).logits) for tensors in inputs]
    np.testing.assert_allclose(scores[1:], expected, atol=1e-4)


@pytest.mark.parametrize("pad", [None, 256])
def test_a_decoder_that_takes_another_token_for_padding_is_refused(pad: int | None, tmp_path: Path) -> None:
    message = rf"config\.json: found pad_token_id {pad}, expected 257 as in the tokenizer, since this model scores by the last token before"
    with pytest.raises(UserError, match=message):
        load_cross_encoder(save_reranker("qwen2", tmp_path / "m", "left", **DECODER | {"pad_token_id": pad}), 64, 200, CPU, FP32)


def test_a_new_head_does_not_bring_a_new_decoder(tiny_encoder: Path, tmp_path: Path) -> None:
    from transformers import T5Config, T5EncoderModel

    T5EncoderModel(T5Config(vocab_size=90, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)).save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"has no transformer.decoder.* expected all weights of T5ForSequence\w+ except its head"):
        load_classifier(tmp_path, 1)
    assert load_classifier(tiny_encoder, 1).classifier.weight.shape[0] == 1
