"""Shapes from the source or the parameters, heads drawn from the seed, and the stage's entry point."""

import json
import shutil
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModel

from tasks.base.params import Base
from tasks.base.shape import fitted_tokenizer, refuse_unusable, requested_shape, shaped_towers
from tasks.core.errors import UserError
from tasks.core.files import folder_digest
from tasks.core.models.bi_encoder import Encoder, Towers, load_towers
from tasks.core.models.folder import Shape, read_shape
from tasks.core.tokens.tokenizer import load_tokenizer
from tests.starts import byte_tokenizer

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(
    ("params", "bare", "default"),
    [
        ({}, Shape("mean", "none", "dot"), Shape("mean", "none", "cosine", 256)),
        ({"pooling": "cls"}, Shape("cls", "none", "dot"), Shape("cls", "none", "cosine", 256)),
        ({"similarity": "dot"}, Shape("mean", "none", "dot"), Shape("mean", "none", "dot", 256)),
        (
            {"head": "linear_norm", "similarity": "cosine"},
            Shape("mean", "linear_norm", "cosine"),
            Shape("mean", "linear_norm", "cosine", 256),
        ),
    ],
)
def test_parameters_override_the_sources_shape(
    params: dict[str, str], bare: Shape, default: Shape, tiny_encoder: Path, minilm: Path
) -> None:
    assert requested_shape(tiny_encoder, Base(**params)) == bare
    assert requested_shape(minilm, Base(**params)) == default


def test_a_new_head_depends_only_on_the_seed(tiny_encoder: Path) -> None:
    heads = []
    for number, seed in enumerate((1, 1, 2)):
        torch.manual_seed(number)
        head = shaped_towers(tiny_encoder, Base(head="linear_norm", seed=seed)).document.head
        assert head is not None
        heads.append(head)
    weights = [head.linear.weight for head in heads]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])
    assert weights[0].std().item() == pytest.approx(0.02, rel=0.05) and abs(weights[0].mean().item()) < 1e-3
    for head in heads:
        assert not head.linear.bias.any() and (head.norm.weight == 1).all() and not head.norm.bias.any()


def run(folder: Path, source: Path, monkeypatch: pytest.MonkeyPatch, base: str = "{}") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "params.yaml").write_text(f"base: {base}\nencoder: {{source: '{source}'}}\n")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["base", "--encoder", "base", "--state", "state", "--tokenizer", "tokenizer"])
    import_module("tasks.base.__main__").main()
    return folder / "base"


def test_the_stage_gives_the_same_bits_every_time(tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    params = "{pooling: cls, head: linear_norm, similarity: dot, seed: 7}"
    digests = []
    for number in range(2):
        torch.manual_seed(number)
        out = run(tmp_path / str(number), tiny_encoder, monkeypatch, params)
        digests.append((folder_digest(out), folder_digest(out.parent / "tokenizer")))
        assert sorted(file.name for file in out.parent.iterdir()) == ["base", "params.yaml", "state", "tokenizer"]
    assert digests[0] == digests[1]
    assert read_shape(out) == Shape("cls", "linear_norm", "dot")
    theirs, ours = AutoModel.from_pretrained(tiny_encoder).state_dict(), load_towers(out).document.transformer.state_dict()
    assert all(torch.equal(ours[name], value) for name, value in theirs.items() if "pooler" not in name)
    text = "what the stage writes tokenizes like the source"
    assert load_tokenizer(tmp_path / "0" / "tokenizer")(text).input_ids == load_tokenizer(tiny_encoder)(text).input_ids


def test_a_saved_head_is_kept_or_removed(tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run(tmp_path / "first", tiny_encoder, monkeypatch, "{head: linear_norm, seed: 3}")
    second = run(tmp_path / "second", first, monkeypatch, "{head: linear_norm, seed: 4}")
    assert folder_digest(second) == folder_digest(first)  # the seed affects only a new head
    assert folder_digest(run(tmp_path / "as it is", first, monkeypatch)) == folder_digest(first)
    third = run(tmp_path / "third", first, monkeypatch, "{head: none}")
    assert read_shape(third).head == "none" and not (third / "2_Dense").exists()


def test_a_width_is_kept_and_checked(tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over a new head, too; a folder that has a head keeps it or gets another."""
    first = run(tmp_path / "first", tiny_encoder, monkeypatch, "{width: 48, head: linear_norm, similarity: cosine}")
    assert (read_shape(first).width, load_towers(first).document.width, load_towers(first).document.full_width) == (48, 48, 128)
    assert folder_digest(run(tmp_path / "second", first, monkeypatch)) == folder_digest(first)
    assert read_shape(run(tmp_path / "third", first, monkeypatch, "{width: 128}")).width is None
    with pytest.raises(UserError, match=r"^params.yaml: base.width: found 129, expected at most 128, the vector's width; decrease it$"):
        run(tmp_path / "fourth", first, monkeypatch, "{width: 129}")
    assert not (tmp_path / "fourth/base").exists()


def test_layers_of_a_source_are_kept_or_removed(start: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = run(tmp_path / "kept", start("gemma"), monkeypatch)
    assert (read_shape(encoder).head, load_towers(encoder).document.width) == ("layers", 24)
    for head, width in (("none", 32), ("linear_norm", 32)):
        other = run(tmp_path / head, start("gemma"), monkeypatch, f"{{head: {head}, pooling: last}}")
        assert (read_shape(other).head, read_shape(other).pooling, load_towers(other).document.width) == (head, "last", width)


def test_text_length_is_limited_to_the_models_positions(tiny_encoder: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_encoder, tmp_path / "m")
    config = json.loads((tmp_path / "m" / "tokenizer_config.json").read_text())
    for key in ("model_max_length", "max_length"):
        config.pop(key)
    (tmp_path / "m" / "tokenizer_config.json").write_text(json.dumps(config))
    assert load_tokenizer(tmp_path / "m").model_max_length > 10**6
    assert fitted_tokenizer(tmp_path / "m", load_towers(tmp_path / "m")).model_max_length == 512


def test_a_tokenizer_of_another_model_is_refused(tiny_encoder: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_encoder, tmp_path / "m")
    tokenizer = load_tokenizer(tiny_encoder)
    tokenizer.add_tokens(["retemper-new-word"])
    tokenizer.save_pretrained(tmp_path / "m")
    with pytest.raises(UserError, match="the tokenizer has 30523 tokens, the transformer 30522"):
        fitted_tokenizer(tmp_path / "m", load_towers(tmp_path / "m"))


def test_a_missing_encoder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="encoder") as refusal:
        run(tmp_path / "x", Path("nobody/has-such-a-model"), monkeypatch)
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "x" / "base").exists() and not (tmp_path / "x" / "tokenizer").exists()


def make_encoder(folder: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (folder / "params.yaml").write_text(f"encoders: {{other: {{source: '{source}', similarity: cosine}}}}\n")
    monkeypatch.chdir(folder)
    words = ["base", "--name", "other", "--encoder", "other", "--state", "other_state", "--tokenizer", "tokenizer"]
    monkeypatch.setattr(sys, "argv", words)
    import_module("tasks.base.__main__").main()
    return folder / "other"


def test_one_more_encoder_shares_the_tokenizer(tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(tiny_encoder, tmp_path / "source")
    run(tmp_path, tiny_encoder, monkeypatch)
    tokenizer = folder_digest(tmp_path / "tokenizer")
    encoder = make_encoder(tmp_path, tmp_path / "source", monkeypatch)
    assert read_shape(encoder).similarity == "cosine" and (tmp_path / "other_state/state.json").exists()
    assert folder_digest(tmp_path / "tokenizer") == tokenizer, "read, not written"
    described = load_tokenizer(tiny_encoder)
    described.model_max_length = 256
    described.save_pretrained(tmp_path / "source")
    with pytest.raises(
        UserError, match=r"encoders.other.source: found a limit of 256 tokens, expected at least 512, the limit of encoder.source"
    ):
        make_encoder(tmp_path, tmp_path / "source", monkeypatch)
    described = json.loads((tmp_path / "source/tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = described["model"]["vocab"]
    vocabulary["house"], vocabulary["water"] = vocabulary["water"], vocabulary["house"]
    (tmp_path / "source/tokenizer.json").write_text(json.dumps(described), encoding="utf-8")
    (tmp_path / "source/vocab.txt").unlink(missing_ok=True)
    with pytest.raises(UserError, match=r"encoders.other.source: found another tokenizer, expected the one of encoder.source"):
        make_encoder(tmp_path, tmp_path / "source", monkeypatch)


def tiny_towers(kind: str, longest: int = 512) -> Towers:
    """A transformer of `kind`, drawn at random, for the tokens of `byte_tokenizer`; its padding has an embedding."""
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4} if kind in ("gpt2", "codegen") else {
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
        "max_position_embeddings": longest,
    }  # fmt: skip
    sizes |= {"bloom": {"n_head": 4}, "codegen": {"rotary_dim": 8}, "jamba": {"num_experts": 2}, "mamba": {"state_size": 8}}.get(kind, {})
    torch.manual_seed(0)
    transformer = AutoModel.from_config(AutoConfig.for_model(kind, vocab_size=258, pad_token_id=257, **sizes))
    with torch.no_grad():
        for weight in transformer.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    tower = Encoder(transformer, Shape()).eval()
    return Towers(tower, tower)


@pytest.mark.parametrize(("kind", "longest"), [("convbert", 512), ("nystromformer", 512), ("fnet", 512), ("fnet", 12)])
def test_vectors_that_depend_on_padding_are_refused(kind: str, longest: int) -> None:
    tokenizer = byte_tokenizer("right", ends=True)
    tokenizer.model_max_length = longest
    refuse_unusable(Path("m"), tiny_towers("bert", longest), tokenizer)
    with pytest.raises(UserError, match=rf"^m: found a transformer \({kind}\) whose vectors depend on padding; expected one that masks it"):
        refuse_unusable(Path("m"), tiny_towers(kind, longest), tokenizer)


def test_token_types_that_change_vectors_are_refused() -> None:
    """GPT-2 adds the embedding of token 0 for type 0, and nothing for none."""
    tokenizer = byte_tokenizer("left", ends=True)
    tokenizer.model_max_length = int(1e30)  # what transformers gives one without a limit
    refuse_unusable(Path("m"), tiny_towers("gpt2"), tokenizer)
    tokenizer.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    refuse_unusable(Path("m"), tiny_towers("bert"), tokenizer)
    with pytest.raises(UserError, match=r"^m: found a tokenizer whose token_type_ids change the vectors of this transformer \(gpt2\)"):
        refuse_unusable(Path("m"), tiny_towers("gpt2"), tokenizer)


@pytest.mark.parametrize("kind", ["bloom", "codegen", "mamba", "jamba"])
def test_the_first_token_of_any_causal_transformer_is_refused(kind: str) -> None:
    """Even of those whose layers do not say that they are causal; those without a layer of attention keep nothing for later tokens."""
    tokenizer, towers = byte_tokenizer("right", ends=True), tiny_towers(kind)
    assert not towers.document.causal
    refuse_unusable(Path("m"), towers, tokenizer)
    for pooling in ("cls", "mean+cls"):
        tower = Encoder(towers.document.transformer, Shape(pooling)).eval()
        with pytest.raises(
            UserError, match=rf"^m: found pooling cls over a causal transformer \({kind}\), whose first token sees no other"
        ):
            refuse_unusable(Path("m"), Towers(tower, tower), tokenizer)
    encoder = tiny_towers("bert").document
    encoder.shape = Shape("cls")
    refuse_unusable(Path("m"), Towers(encoder, encoder), tokenizer)


def test_a_transformer_that_reads_no_text_is_refused(tmp_path: Path) -> None:
    tokenizer, towers = byte_tokenizer("right", ends=True), tiny_towers("bert")
    blind = towers.document.transformer
    for layer in blind.encoder.layer:
        torch.nn.init.zeros_(layer.attention.output.dense.weight)
    with pytest.raises(UserError, match=r"^m: found a transformer \(bert\) whose tokens see no others; expected one with attention"):
        refuse_unusable(Path("m"), towers, tokenizer)
    blind.encoder.layer[0].attention.output.dense = torch.nn.Linear(8, 8)
    with pytest.raises(
        UserError, match=r"^m: found a transformer \(bert\) that fails on a text \(mat1 and mat2 .*\); expected one such as"
    ):
        refuse_unusable(Path("m"), towers, tokenizer)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 48, "image_size": 32}
    AutoModel.from_config(AutoConfig.for_model("vit", **sizes)).save_pretrained(tmp_path / "vit")
    with pytest.raises(UserError, match=r"vit: found a model without a vocabulary \(vit\); expected one that reads texts$"):
        load_towers(tmp_path / "vit")


def test_the_stage_refuses_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_towers("convbert").document.transformer.save_pretrained(tmp_path / "m")
    byte_tokenizer("right", ends=True).save_pretrained(tmp_path / "m")
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text("encoder: {source: m}\nbase: {}\n")
    places = [f"--{name}={name}" for name in ("encoder", "state", "tokenizer")]
    monkeypatch.setattr(sys, "argv", ["base", *places])
    with pytest.raises(UserError, match="depend on padding"):
        import_module("tasks.base.__main__").main()
    assert not Path("encoder").exists() and not Path("tokenizer").exists()


def test_a_tokenizer_with_gaps_in_its_ids_is_measured_by_the_largest(tiny_encoder: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_encoder, tmp_path / "m")
    tokenizer = json.loads((tmp_path / "m" / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"]["wizards"] = 70_000
    (tmp_path / "m" / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(UserError, match=r"the tokenizer has 70001 tokens, the transformer"):
        fitted_tokenizer(tmp_path / "m", load_towers(tmp_path / "m"))
