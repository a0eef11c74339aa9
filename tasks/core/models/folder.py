"""What a model folder says of itself: the module files of sentence-transformers, read without torch.

Two towers of different weights are two such folders, `query` and `document`, in one folder whose module is sentence-transformers'
Router: `encode_query` and `encode_document` go to the right one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.core.stage.errors import UserError
from tasks.core.stage.files import read_json

PACKAGE = "sentence_transformers."
MODULE = f"{PACKAGE}models."
ROUTER = "router_config.json"  # present in a folder of two towers
TOWERS = ("query", "document")  # its subfolders, and sentence-transformers' names of its routes
ACTIVATIONS = {  # of a Dense, by the head it belongs to
    "linear_norm": "torch.nn.modules.linear.Identity",
    "linear": "torch.nn.modules.linear.Identity",
    "tanh": "torch.nn.modules.activation.Tanh",
}
CHAINS = [  # of modules.json: the values of a Shape
    ["Transformer", "Pooling", *head, *normalize] for head in ([], ["Dense"], ["Dense", "LayerNorm"]) for normalize in ([], ["Normalize"])
]


@dataclass(frozen=True)
class Shape:
    """What is on top of the transformer, and how texts are presented to it."""

    pooling: str = "mean"  # cls | mean
    head: str = "none"  # linear_norm | linear | tanh | none
    similarity: str = "dot"  # dot | cosine
    max_length: int | None = None  # tokens of a document
    query_prefix: str = ""
    document_prefix: str = ""


def refuse_adapters(folder: Path) -> None:
    """UserError if a model folder has weights of adapters (of peft): transformers loads them only where peft is installed."""
    if (folder / "adapter_config.json").exists():
        raise UserError(
            f"{folder / 'adapter_config.json'}: found adapters, expected a model that has them merged; merge them "
            "(merge_and_unload of peft) and save that"
        )


def read_prompts(described: Mapping[str, Any]) -> tuple[str, str]:
    """The prompts of queries and documents in a config_sentence_transformers.json, in the order that encode_document tries them."""
    prompts = described.get("prompts") or {}
    document = next((prompts[name] for name in ("document", "passage", "corpus") if name in prompts), "")
    return str(prompts.get("query") or ""), str(document or "")


def read_shape(folder: Path) -> Shape:
    """Pooling, head and similarity of a model folder (of two towers: the document's); mean, none and dot for a bare transformer."""
    if (folder / ROUTER).exists():
        return read_shape(folder / "document")
    if not (folder / "modules.json").exists():
        return Shape()
    modules = read_json(folder / "modules.json")
    if foreign := next((module["type"] for module in modules if not module["type"].startswith(PACKAGE)), None):
        raise UserError(f"{folder / 'modules.json'}: found {foreign}, expected modules of sentence-transformers: no other code is run")
    chain = [module["type"].rsplit(".", 1)[-1] for module in modules]
    if chain not in CHAINS:
        raise UserError(f"{folder / 'modules.json'}: found {', '.join(chain)}; expected one of " + " | ".join(", ".join(c) for c in CHAINS))
    texts = folder / "sentence_bert_config.json"
    max_length = read_json(texts).get("max_seq_length") if texts.exists() else None
    general = folder / "config_sentence_transformers.json"
    described = read_json(general) if general.exists() else {}
    if described.get("truncate_dim"):
        raise UserError(f"{general}: found truncate_dim {described['truncate_dim']}, expected none: vectors keep their width; remove it")
    query_prefix, document_prefix = read_prompts(described)
    pooling = folder / modules[1]["path"] / "config.json"
    if (query_prefix or document_prefix) and not read_json(pooling).get("include_prompt", True):
        raise UserError(f"{pooling}: found include_prompt false, expected true: vectors are pooled over the prompt's tokens too")
    return Shape(
        pooling=_pooling(pooling),
        head=_head(folder, modules, chain),
        similarity="cosine" if "Normalize" in chain or described.get("similarity_fn_name") == "cosine" else "dot",
        max_length=max_length,
        query_prefix=query_prefix,
        document_prefix=document_prefix,
    )


def _head(folder: Path, modules: list[dict[str, str]], chain: list[str]) -> str:
    """The kind of head that the modules after the pooling are; UserError for an unsupported activation."""
    if "Dense" not in chain:
        return "none"
    if "LayerNorm" in chain:
        return "linear_norm"
    path = folder / modules[chain.index("Dense")]["path"] / "config.json"
    activation = str(read_json(path).get("activation_function", ""))
    kinds = [kind for kind in ("linear", "tanh") if activation.endswith(ACTIVATIONS[kind].rpartition(".")[2])]
    if not kinds:
        raise UserError(f"{path}: found activation {activation}; expected Identity or Tanh")
    return kinds[0]


def _pooling(path: Path) -> str:
    """cls or mean, of a Pooling module's configuration; UserError for any other mode."""
    config = read_json(path)
    old = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean"}  # written until sentence-transformers 5
    named = [old.get(key, key) for key, value in config.items() if key.startswith("pooling_mode_") and value]
    modes = config.get("pooling_mode", named or ["mean"])
    pooling: str = modes if isinstance(modes, str) else modes[0] if len(modes) == 1 else "+".join(modes)
    if pooling not in ("cls", "mean"):
        raise UserError(f"{path}: found pooling {pooling}; expected cls or mean")
    return pooling
