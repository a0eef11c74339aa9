"""The bi-encoder: a transformer, a pooling, an optional head, and the folder that holds them.

The folder is a Hugging Face model (safetensors, config, tokenizer) with the module files of
sentence-transformers beside it, so that `AutoModel` and `SentenceTransformer(path)` load it and give the
same vectors. Pooling, head, and similarity are read from those module files too (`folder`): nothing is stored twice.

Shapes: B texts, L tokens, H hidden width, D vector width.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional as F
from transformers import AutoModel
from transformers.utils import logging as transformers_logging

from tasks.core.models.folder import ACTIVATIONS, MODULE, ROUTER, TOWERS, Shape, read_shape, refuse_adapters
from tasks.core.stage.errors import UserError
from tasks.core.stage.files import read_json
from tasks.core.text.tokenizer import drop_code

transformers_logging.disable_progress_bar()  # progress bars for a load of half a second are noise in a stage's log
transformers_logging.set_verbosity_error()  # and so are its loading reports: load_transformer reads them itself

COSINE_TEMPERATURE = 0.2  # at most: SimCSE and sentence-transformers have 0.05; ANCE, STAR, and ADORE divide dot products by 1


def odd_temperature(shape: Shape, temperature: float) -> str:
    """A warning where a cosine's temperature divides dot products; else empty."""
    if shape.similarity == "cosine" or temperature > COSINE_TEMPERATURE:
        return ""
    return (
        f"temperature {temperature:g} multiplies dot products by {1 / temperature:,.0f}, which suits cosines; "
        "set temperature: 1, as the papers have it, or base.similarity: cosine"
    )


class Head(nn.Module):
    """Over the pooled vector: linear, then LayerNorm (ANCE, DRhard), tanh (COSTA (arXiv:2204.10641), Eq. 5) or nothing."""

    def __init__(self, width: int, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.linear = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width) if kind == "linear_norm" else None

    def draw(self, generator: torch.Generator) -> None:
        """New weights: N(0, 0.02), biases 0."""
        nn.init.normal_(self.linear.weight, std=0.02, generator=generator)
        nn.init.zeros_(self.linear.bias)

    def forward(self, pooled_BH: torch.Tensor) -> torch.Tensor:
        vectors_BD: torch.Tensor = self.linear(pooled_BH.to(self.linear.weight.dtype))
        if self.norm is not None:
            vectors_BD = self.norm(vectors_BD)
        return vectors_BD.tanh() if self.kind == "tanh" else vectors_BD


class Encoder(nn.Module):
    """One tower: token ids and mask [B, L] to vectors [B, D], always float32."""

    def __init__(self, transformer: Any, shape: Shape) -> None:
        super().__init__()
        self.transformer = transformer
        self.shape = shape
        self.width = int(transformer.config.hidden_size)  # D
        self.head: Head | None = None if shape.head == "none" else Head(self.width, shape.head)

    def forward(self, ids_BL: torch.Tensor, mask_BL: torch.Tensor) -> torch.Tensor:
        hidden_BLH = self.transformer(input_ids=ids_BL, attention_mask=mask_BL).last_hidden_state
        if self.shape.pooling == "cls":
            return self.finish(hidden_BLH[:, 0].float())
        weights_BL1 = mask_BL.unsqueeze(-1).float()
        return self.finish((hidden_BLH.float() * weights_BL1).sum(1) / weights_BL1.sum(1))

    def finish(self, vectors_BD: torch.Tensor) -> torch.Tensor:
        """Pooled hidden states [B, H] to vectors [B, D]: the head, and length 1 for cosine."""
        if self.head is not None:
            vectors_BD = self.head(vectors_BD).float()
        return F.normalize(vectors_BD, dim=-1) if self.shape.similarity == "cosine" else vectors_BD


@dataclass(frozen=True)
class Towers:
    """Query tower and document tower; the same object if they share weights."""

    query: Encoder
    document: Encoder

    @property
    def shared(self) -> bool:
        return self.query is self.document


def load_transformer(folder: Path) -> Any:
    """The transformer of a local folder, float32; UserError if it cannot be loaded completely.

    A pooler that the folder lacks is initialized the same way every time: it is not used, but saved with the rest.
    """
    refuse_adapters(folder)
    if not (folder / "config.json").exists():
        raise UserError(f"{folder}: no config.json; expected a Hugging Face model folder")
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            transformer, report = AutoModel.from_pretrained(
                folder,
                dtype=torch.float32,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
            )
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise UserError(
            f"{folder}: cannot be loaded ({str(error).strip().splitlines()[0]}); expected config.json and model.safetensors"
        ) from None
    drop_code(transformer.config)
    if transformer.config.is_encoder_decoder:
        raise UserError(
            f"{folder}: found an encoder with a decoder ({transformer.config.model_type}); expected an encoder without one, such as BERT"
        )
    lacking = sorted(
        [str(key) for key in report["missing_keys"] if "pooler" not in key] + [str(key[0]) for key in report["mismatched_keys"]]
    )
    if lacking:
        raise UserError(f"{folder}: model.safetensors does not fit config.json: {lacking[0]} is missing or has another size")
    return transformer


def load_towers(folder: Path, shape: Shape | None = None) -> Towers:
    """Both towers of a model folder. `shape` overrides what the folder's module files say (for a bare transformer)."""
    if (folder / ROUTER).exists():
        query, document = (load_towers(folder / name, shape).document for name in TOWERS)
        return Towers(query, document)
    shape = shape or read_shape(folder)
    encoder = Encoder(load_transformer(folder), shape)
    if encoder.head is not None and read_shape(folder).head == encoder.head.kind:
        _load_head(encoder.head, folder)
    wrong = next((name for name, weight in encoder.named_parameters() if not torch.isfinite(weight).all()), None)
    if wrong:
        raise UserError(f"{folder}: weight {wrong} contains NaN or infinity; train that model again, or choose another")
    encoder.eval()
    return Towers(encoder, encoder)


def document_folder(folder: Path) -> Path:
    """The folder of the document tower in a model folder: that folder itself, where both towers are one."""
    return folder / "document" if (folder / ROUTER).exists() else folder


def average_with(towers: Towers, others: Towers, share: float) -> None:
    """Replace the weights of `towers` by (1 - share) times them plus `share` times those of `others`, of the same architecture.

    Source: LM-Cocktail (arXiv:2311.13534), with the fine-tuned and the base model.
    """
    sides = [("document", towers.document), *([] if towers.shared else [("query", towers.query)])]
    with torch.no_grad():
        for name, tower in sides:
            start = getattr(others, name).state_dict()
            for key, weight in tower.state_dict().items():
                if weight.is_floating_point():
                    weight.lerp_(start[key].to(weight), share)


def _load_head(head: Head, folder: Path) -> None:
    """Fill `head` from a model folder; UserError if its Dense is not a plain linear map of the same width."""
    path = folder / "2_Dense" / "config.json"
    config = read_json(path)
    width = head.linear.in_features
    if (config["in_features"], config["out_features"], config.get("bias", True)) != (width, width, True):
        raise UserError(f"{path}: expected in_features and out_features {width} and a bias")
    wanted = ACTIVATIONS[head.kind]
    if not str(config.get("activation_function", "")).endswith(wanted.rpartition(".")[2]):
        raise UserError(f"{path}: found activation {config.get('activation_function')}; expected {wanted}")
    for module, name, prefix in ((head.linear, "2_Dense", "linear."), (head.norm, "3_LayerNorm", "norm.")):
        if module is None:
            continue
        weights = folder / name / "model.safetensors"
        try:
            module.load_state_dict({key.removeprefix(prefix): value for key, value in load_file(weights).items()})
        except (OSError, SafetensorError, RuntimeError) as error:
            raise UserError(
                f"{weights}: cannot be loaded ({' '.join(str(error).split())}); expected {prefix}weight and {prefix}bias"
            ) from None


def save_towers(towers: Towers, tokenizer: Any, folder: Path, query_length: int | None = None, **texts: Any) -> None:
    """Write both towers into `folder` (existing, empty). `texts` replaces max_length or prefixes of the shape.

    `query_length` is the max_length of a separate query tower; a shared tower has one for both, the documents'.
    """
    tokenizer.save_pretrained(folder)
    if not towers.shared:
        for name, tower in zip(TOWERS, (towers.query, towers.document), strict=True):
            (folder / name).mkdir()
            own = {"max_length": query_length} if name == "query" and query_length else {}
            save_towers(Towers(tower, tower), tokenizer, folder / name, **texts | own)
        _write_router(folder)
        return
    encoder = towers.document
    shape = replace(encoder.shape, **texts)
    encoder.transformer.save_pretrained(folder)
    modules: list[tuple[str, str]] = [("", "Transformer"), ("1_Pooling", "Pooling")]
    width = encoder.width
    _json(folder / "1_Pooling" / "config.json", {
        "word_embedding_dimension": width,
        "pooling_mode_cls_token": shape.pooling == "cls", "pooling_mode_mean_tokens": shape.pooling == "mean",
        "pooling_mode_max_tokens": False, "pooling_mode_mean_sqrt_len_tokens": False, "include_prompt": True,
    })  # fmt: skip
    if encoder.head is not None:
        modules.append(("2_Dense", "Dense"))
        dense = {"in_features": width, "out_features": width, "bias": True, "activation_function": ACTIVATIONS[encoder.head.kind]}
        _json(folder / "2_Dense" / "config.json", dense)
        linear, norm = encoder.head.linear, encoder.head.norm
        save_file({"linear.weight": linear.weight.data, "linear.bias": linear.bias.data}, folder / "2_Dense" / "model.safetensors")
        if norm is not None:
            modules.append(("3_LayerNorm", "LayerNorm"))
            _json(folder / "3_LayerNorm" / "config.json", {"dimension": width})
            save_file({"norm.weight": norm.weight.data, "norm.bias": norm.bias.data}, folder / "3_LayerNorm" / "model.safetensors")
    if shape.similarity == "cosine":
        modules.append((f"{len(modules)}_Normalize", "Normalize"))
        (folder / modules[-1][0]).mkdir()
        _json(folder / modules[-1][0] / "config.json", {})  # git and DVC keep no empty folder
    _json(folder / "modules.json", [
        {"idx": i, "name": str(i), "path": path, "type": MODULE + kind} for i, (path, kind) in enumerate(modules)
    ])  # fmt: skip
    _json(folder / "sentence_bert_config.json", {"max_seq_length": shape.max_length, "do_lower_case": False})
    _json(folder / "config_sentence_transformers.json", {
        "prompts": {"query": shape.query_prefix, "document": shape.document_prefix}, "default_prompt_name": None,
        "similarity_fn_name": shape.similarity,
    })  # fmt: skip


def _write_router(folder: Path) -> None:
    """The module files above two towers: one Router, whose modules lie where each tower's own modules.json has them."""
    types: dict[str, str] = {}
    routes: dict[str, list[str]] = {}
    for name in TOWERS:
        modules = {f"{name}/{module['path']}".rstrip("/"): module["type"] for module in read_json(folder / name / "modules.json")}
        types |= modules
        routes[name] = list(modules)
    _json(folder / ROUTER, {"types": types, "structure": routes, "parameters": {"default_route": "document", "allow_empty_key": True}})
    _json(folder / "modules.json", [{"idx": 0, "name": "0", "path": "", "type": MODULE + "Router"}])
    general = "config_sentence_transformers.json"
    _json(folder / general, read_json(folder / "document" / general))


def _json(path: Path, value: object) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
