"""Models as people publish them: each written by sentence-transformers itself, tiny and drawn at random."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

Start = Callable[[str], Path]  # a model folder by name
WIDTH, LENGTH = 32, 24  # of hidden states; most tokens of a text
EOS = "<|endoftext|>"
PROMPTS = {"query": "Instruct: find it\nQuery: ", "document": "text: "}


def byte_tokenizer(side: str, *, ends: bool) -> Any:
    """A byte-level BPE without merges, as decoders have: no first token, padding on `side`, an end token if `ends`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={piece: number for number, piece in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([EOS, "<|pad|>"])
    if ends:
        tokenizer.post_processor = processors.TemplateProcessing("$A " + EOS, special_tokens=[(EOS, tokenizer.token_to_id(EOS))])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=EOS, pad_token="<|pad|>", padding_side=side, model_max_length=512)


def random_transformer(kind: str) -> Any:
    """A transformer of two layers, its weights large enough that every part moves its vectors."""
    from transformers import AutoConfig

    from tasks.core.models.limits import model_class

    sizes = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48}
    extra = {"gemma3_text": {"use_bidirectional_attention": True, "sliding_window": 512}, "gpt2": {"n_positions": 128}}.get(kind, {})
    sizes |= {"head_dim": 8} if kind in ("qwen3", "gemma3_text") else {}
    if kind == "gpt2":
        sizes = {"n_embd": WIDTH, "n_layer": 2, "n_head": 4}
    if kind == "t5":
        sizes = {"d_model": WIDTH, "num_layers": 2, "num_heads": 4, "d_kv": 8, "d_ff": 48, "feed_forward_proj": "gated-gelu"}
    config = AutoConfig.for_model(kind, vocab_size=258, pad_token_id=257, bos_token_id=None, eos_token_id=256, **sizes, **extra)
    torch.manual_seed(0)
    transformer = model_class(config).from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for weight in transformer.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    return transformer


STARTS: dict[str, tuple[str, str, bool, str | tuple[str, ...], list[tuple[int, int, bool, str] | float], bool]] = {
    # transformer, padding side, whether a text gets an end, pooling, Dense layers (a number: Dropout), Normalize
    "qwen3": ("qwen3", "left", True, "lasttoken", [], True),
    "llama": ("llama", "right", False, "mean", [(WIDTH, 20, True, "Tanh")], False),
    "gpt2": ("gpt2", "left", True, "lasttoken", [(WIDTH, 48, True, "ReLU")], True),
    "gemma": ("gemma3_text", "right", True, "mean", [(WIDTH, 96, False, "Identity"), (96, 24, False, "GELU")], True),
    "t5": ("t5", "right", True, "mean", [(WIDTH, 40, False, "Identity")], True),  # as GTR
    "bert_max": ("tiny", "right", True, "max", [(128, 128, False, "Identity")], True),
    "bert_sqrt": ("tiny", "right", True, "mean_sqrt_len_tokens", [(128, 40, True, "SiLU")], False),
    "bert_weighted": ("tiny", "right", True, "weightedmean", [], False),
    "bert_two": ("tiny", "right", True, ("cls", "max"), [], False),
    "bert_three": ("tiny", "right", True, ("mean", "cls", "lasttoken"), [(384, 40, True, "Tanh")], True),  # old keys have another order
    "bert_residual": ("tiny", "right", True, "mean", [(128, 128, True, "Mish"), 0.3, (128, 40, False, "Tanh")], True),
}
RESIDUAL = ("bert_residual",)
DECODERS = ("qwen3", "llama", "gpt2")


def make_start(name: str, folder: Path, tiny_encoder: Path) -> Path:
    """One of STARTS as a new folder."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Dense, Dropout, Normalize, Pooling, Transformer

    kind, side, ends, pooling, layers, normalize = STARTS[name]
    bare = tiny_encoder
    if kind != "tiny":
        bare = folder.with_name(f"{name}_bare")
        random_transformer(kind).save_pretrained(bare)
        byte_tokenizer(side, ends=ends).save_pretrained(bare)
    transformer = Transformer(str(bare), max_seq_length=LENGTH)
    torch.manual_seed(1)
    modules = [transformer, Pooling(transformer.get_embedding_dimension(), pooling)]
    for layer in layers:
        if isinstance(layer, float):
            modules.append(Dropout(layer))
        else:
            a, b, bias, activation = layer
            modules.append(Dense(a, b, bias, getattr(torch.nn, activation)(), use_residual=name in RESIDUAL))
    modules += [Normalize()] if normalize else []
    similarity = "cosine" if normalize else "dot"
    SentenceTransformer(modules=modules, prompts=PROMPTS, similarity_fn_name=similarity, device="cpu").save(str(folder))
    return folder
