"""The description of a model in its folder: the module files of sentence-transformers, read without torch.

Two towers with different weights are two such folders, `query` and `document`, in one folder whose module is sentence-transformers' Router:
`encode_query` and `encode_document` go to the right one.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.core.errors import UserError
from tasks.core.files import read_json
from tasks.core.models.layers import KINDS, Layer, name_of, read_layer

PACKAGE = "sentence_transformers."
MODULE = f"{PACKAGE}models."
GENERAL = "config_sentence_transformers.json"  # prompts, similarity, truncate_dim
ROUTER = "router_config.json"  # present in a folder of two towers
TOWERS = ("query", "document")  # its subfolders, and sentence-transformers' names of its routes
POOLINGS = {  # sentence-transformers' current names, in the order in which several named by old keys are joined; and ours
    "cls": "cls",
    "max": "max",
    "mean": "mean",
    "mean_sqrt_len_tokens": "mean_sqrt_len",
    "weightedmean": "weightedmean",
    "lasttoken": "last",
}
OLD_POOLINGS = {  # a Pooling's keys until sentence-transformers 5, which all of its versions read; and ours
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "last",
}
TRUNCATE = "_Truncate"  # ends the folder of a Dense that only keeps the first numbers of a vector


@dataclass(frozen=True)
class Shape:
    """The layers on top of the transformer, and the form in which it gets texts."""

    pooling: str = "mean"  # a value of POOLINGS, or several joined by +
    head: str = "none"  # linear_norm | linear | tanh | none | layers: any others
    similarity: str = "dot"  # dot | cosine
    max_length: int | None = None  # tokens of a document
    query_prefix: str = ""
    document_prefix: str = ""
    layers: tuple[Layer, ...] = ()  # of head: layers
    width: int | None = None  # how many of a vector's first numbers are kept (Matryoshka, arXiv:2205.13147); None: all
    pools_prompt: bool = True  # whether a prefix's tokens are pooled (include_prompt)


def refuse_adapters(folder: Path) -> None:
    """UserError if a model folder has weights of adapters (of peft): transformers loads them only where peft is installed."""
    if (folder / "adapter_config.json").exists():
        raise UserError(
            f"{folder / 'adapter_config.json'}: found adapters, expected a model with merged adapters; merge them "
            "(peft's merge_and_unload) and save the result"
        )


def refuse_other_towers(folder: Path) -> None:
    """UserError if a Router's folder has no folder for each tower: sentence-transformers saves one for each module of a tower."""
    if missing := next((name for name in TOWERS if not (folder / name / "config.json").exists()), None):
        raise UserError(
            f"{folder / ROUTER}: found no {missing}/config.json beside it, expected two towers as Retemper saves them; save each as its "
            f"own SentenceTransformer, in {' and '.join(TOWERS)}"
        )


def read_prompts(settings: Mapping[str, Any]) -> tuple[str, str]:
    """The prompts of queries and documents in a config_sentence_transformers.json, in the order that encode_document tries them.

    If it has neither, both are the prompt that default_prompt_name names. An empty prompt counts as a prompt.
    """
    prompts = {name: prompt for name, prompt in (settings.get("prompts") or {}).items() if prompt is not None}
    document = next((prompts[name] for name in ("document", "passage", "corpus") if name in prompts), None)
    query = prompts.get("query")
    if query is None and document is None:
        query = document = prompts.get(settings.get("default_prompt_name") or "")
    return str(query or ""), str(document or "")


def read_shape(folder: Path) -> Shape:
    """The `Shape` of a model folder; of two towers, the document tower's. UserError for modules that we cannot read.

    A bare transformer has no head, dot products, and as in sentence-transformers, pooling by the last token of a ...ForCausalLM, else the
    mean.
    """
    if (folder / ROUTER).exists():
        refuse_other_towers(folder)
        return read_shape(folder / "document")
    if not (folder / "modules.json").exists():
        return Shape(pooling="last" if _generates(folder / "config.json") else "mean")
    modules = read_json(folder / "modules.json")
    if foreign := next((module["type"] for module in modules if not module["type"].startswith(PACKAGE)), None):
        raise UserError(f"{folder / 'modules.json'}: found {foreign}, expected modules of sentence-transformers: no other code is run")
    chain = [_kind(module) for module in modules]
    if chain[:2] != ["Transformer", "Pooling"] or not {*chain[2:]} <= {*KINDS}:
        expected = "Transformer, Pooling, and any number of " + " | ".join(KINDS)
        raise UserError(f"{folder / 'modules.json'}: found {', '.join(chain)}; expected {expected}")
    texts = folder / "sentence_bert_config.json"
    settings = read_json(texts) if texts.exists() else {}
    output = ((settings.get("modality_config") or {}).get("text") or {}).get("method_output_name", "last_hidden_state")
    if output not in ("last_hidden_state", ["last_hidden_state"]):
        raise UserError(f"{texts}: found text's method_output_name {output}, expected last_hidden_state")
    max_length = settings.get("max_seq_length")
    general = folder / GENERAL
    general_settings = read_json(general) if general.exists() else {}
    query_prefix, document_prefix = read_prompts(general_settings)
    path = folder / modules[1]["path"] / "config.json"
    pooling = _pooling(path)
    truncate = modules[-2:] if chain[-1] == "Normalize" else modules[-1:]
    width = general_settings.get("truncate_dim")
    if truncate[0]["path"].endswith(TRUNCATE):
        width = read_layer(folder / truncate[0]["path"], "Dense").outputs
    layers = tuple(layer for _, layer in read_head(folder))
    head = name_of(layers)
    return Shape(
        pooling=pooling,
        head=head,
        similarity="cosine" if chain[-1] == "Normalize" or general_settings.get("similarity_fn_name") == "cosine" else "dot",
        max_length=max_length,
        query_prefix=query_prefix,
        document_prefix=document_prefix,
        layers=layers if head == "layers" else (),
        width=width,
        pools_prompt=pooling == "last" or bool(read_json(path).get("include_prompt", True)),
    )


def read_head(folder: Path) -> list[tuple[Path, Layer]]:
    """The head's modules with their folders: all after the pooling, except a last Normalize and the Dense that truncates."""
    if not (folder / "modules.json").exists():
        return []
    modules = [(folder / module["path"], _kind(module)) for module in read_json(folder / "modules.json")[2:]]
    if modules and modules[-1][1] == "Normalize":
        modules.pop()
    if modules and modules[-1][0].name.endswith(TRUNCATE):
        modules.pop()
    return [(path, read_layer(path, kind)) for path, kind in modules]


def _kind(module: Mapping[str, str]) -> str:
    """The kind of a module of modules.json, whatever package it is imported from."""
    return module["type"].rsplit(".", 1)[-1]


def _generates(path: Path) -> bool:
    """Whether a bare transformer was made as a causal language model."""
    config = read_json(path) if path.exists() else {}
    if not isinstance(config, dict):
        raise UserError(f"{path}: found no JSON object; expected the settings of a Hugging Face model")
    return str((config.get("architectures") or [""])[0]).endswith("ForCausalLM") and bool(config.get("is_causal", True))


def in_order(poolings: Iterable[str]) -> list[str]:
    """Poolings, values of POOLINGS or others, in the order in which old keys join them."""
    places = {name: place for place, name in enumerate(POOLINGS.values())}
    return sorted(poolings, key=lambda name: places.get(name, len(places)))


def _pooling(path: Path) -> str:
    """Poolings of a Pooling module's configuration, in the order in which it joins them; UserError for any other mode."""
    config = read_json(path)
    old_modes = [OLD_POOLINGS.get(key, key) for key, value in config.items() if key.startswith("pooling_mode_") and value]
    modes = config.get("pooling_mode", in_order(old_modes) or ["mean"])
    poolings = [POOLINGS.get(mode, mode) for mode in ([modes] if isinstance(modes, str) else modes)]
    if not poolings or not {*poolings} <= {*POOLINGS.values()}:
        raise UserError(f"{path}: found pooling {'+'.join(poolings) or 'none'}; expected any of {', '.join(POOLINGS.values())}")
    return "+".join(poolings)
