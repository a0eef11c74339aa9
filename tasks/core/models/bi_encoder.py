"""The bi-encoder: a transformer, a pooling, an optional head, and the folder that holds them.

The folder is a Hugging Face model (safetensors, config, tokenizer) with the module files of
sentence-transformers beside it, so that `AutoModel` and `SentenceTransformer(path)` load it and give the
same vectors. Pooling, head, and similarity are read from those module files too (`folder`): nothing is stored twice.

Shapes: B texts, L tokens, H hidden width, P its multiple after several poolings, D vector width.
"""

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from torch import nn
from torch.nn import functional as F
from transformers.utils import logging as transformers_logging

from tasks.core.errors import UserError
from tasks.core.files import file_digest, folder_digest, read_json
from tasks.core.models.folder import (
    GENERAL,
    MODULE,
    OLD_POOLINGS,
    POOLINGS,
    ROUTER,
    TOWERS,
    TRUNCATE,
    Shape,
    in_order,
    read_head,
    read_shape,
    refuse_adapters,
    refuse_other_towers,
)
from tasks.core.models.head import Head, write_module
from tasks.core.models.hidden_states.first_tokens import built_like_bert, first_outputs
from tasks.core.models.hidden_states.masks import attention_mask
from tasks.core.models.hidden_states.pooling import pool, token_positions
from tasks.core.models.layers import Layer, check_widths
from tasks.core.models.limits import model_class, no_cache, one_line, read_config, transformer_errors
from tasks.core.tokens.tokenizer import drop_remote_code

transformers_logging.disable_progress_bar()  # progress bars for a load of half a second are noise in a stage's log
transformers_logging.set_verbosity_error()  # and so are its loading reports: load_transformer reads them itself

OLDEST = ("cls", "mean", "max", "mean_sqrt_len")  # poolings whose keys every version of sentence-transformers knows
COSINE_TEMPERATURE = 0.2  # at most: SimCSE and sentence-transformers have 0.05; ANCE, STAR, and ADORE divide dot products by 1


def temperature_warning(shape: Shape, temperature: float) -> str:
    """A warning where a cosine's temperature divides dot products; else empty."""
    if shape.similarity == "cosine" or temperature > COSINE_TEMPERATURE:
        return ""
    return (
        f"temperature {temperature:g} multiplies dot products by {1 / temperature:,.0f}, which suits cosines; "
        "set temperature: 1, as in the papers, or base.similarity: cosine"
    )


class Encoder(nn.Module):
    """One tower: token ids and mask [B, L] to vectors [B, D], always float32."""

    def __init__(self, transformer: Any, shape: Shape) -> None:
        super().__init__()
        self.transformer = transformer
        self.shape = shape
        self.hidden = int(transformer.config.hidden_size)  # H
        self.pooled = self.hidden * len(shape.pooling.split("+"))  # P
        self.head: Head | None = None if shape.head == "none" else Head(self.pooled, shape.head, shape.layers)
        self.causal = any(getattr(module, "is_causal", False) for module in transformer.modules())  # its tokens see no later ones
        self.options = no_cache(transformer)

    @property
    def full_width(self) -> int:
        """The width of a vector before `shape.width` is applied."""
        return self.pooled if self.head is None else self.head.width

    @property
    def width(self) -> int:
        """The width D of a vector."""
        return min(self.shape.width or self.full_width, self.full_width)

    def forward(self, ids_BL: torch.Tensor, mask_BL: torch.Tensor, prompt: int = 0) -> torch.Tensor:
        """`prompt`: how many tokens each text begins with that are not its own, for encoders that do not pool them."""
        skipped = 0 if self.shape.pools_prompt else prompt
        if self.shape.pooling == "cls" and not skipped and built_like_bert(self.transformer):
            return self.finish(first_outputs(self.transformer, ids_BL, mask_BL).float())
        return self.finish(pool(self.outputs(ids_BL, mask_BL), mask_BL, self.shape.pooling, skipped))

    def outputs(self, ids_BL: torch.Tensor, mask_BL: torch.Tensor) -> torch.Tensor:
        """The tokens' outputs, [B, L, H]."""
        config = self.transformer.config
        positions = {"position_ids": token_positions(mask_BL)} if self.causal else {}
        with transformer_errors(config):
            output = self.transformer(input_ids=ids_BL, attention_mask=attention_mask(mask_BL, config), **positions, **self.options)
        outputs_BLH: torch.Tensor = output.last_hidden_state
        return outputs_BLH

    def finish(self, vectors_BD: torch.Tensor) -> torch.Tensor:
        """Pooled hidden states [B, P] to vectors [B, D]: the head, the first `shape.width` numbers, and length 1 for cosine."""
        if self.head is not None:
            vectors_BD = self.head(vectors_BD).float()
        if self.width < self.full_width:
            vectors_BD = vectors_BD[:, : self.width]
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
            config = read_config(folder)
            transformer, report = model_class(config).from_pretrained(
                folder,
                config=config,
                dtype=torch.float32,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
            )
    except (OSError, ValueError, KeyError, SafetensorError, StrictDataclassError) as error:
        raise UserError(f"{folder}: cannot be loaded ({one_line(error)}); expected config.json and model.safetensors") from None
    drop_remote_code(transformer.config)
    if not hasattr(transformer.config, "hidden_size"):
        raise UserError(f"{folder}: found a model of several parts ({transformer.config.model_type}); expected one that only reads texts")
    if not hasattr(transformer.config, "vocab_size"):
        raise UserError(f"{folder}: found a model without a vocabulary ({transformer.config.model_type}); expected one that reads texts")
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
    """Both towers of a model folder. `shape` replaces the one in the folder's module files (for a bare transformer)."""
    if (folder / ROUTER).exists():
        refuse_other_towers(folder)
        query, document = (load_towers(folder / name, shape).document for name in TOWERS)
        return Towers(query, document)
    shape = shape or read_shape(folder)
    transformer = load_transformer(folder)
    head_modules = read_head(folder) if shape.head == read_shape(folder).head else []
    encoder = Encoder(transformer, shape)
    check_widths([layer for _, layer in head_modules], encoder.pooled, folder)
    if encoder.head is not None and head_modules:
        encoder.head.load([path for path, _ in head_modules])
    poolings = shape.pooling.split("+")
    if encoder.causal and "cls" in poolings:
        raise causal_cls_error(folder, transformer.config.model_type)
    bad_weight = next((name for name, weight in encoder.named_parameters() if not torch.isfinite(weight).all()), None)
    if bad_weight:
        raise UserError(f"{folder}: weight {bad_weight} contains NaN or infinity; train that model again, or choose another")
    encoder.eval()
    return Towers(encoder, encoder)


def causal_cls_error(where: Path | str, kind: str) -> UserError:
    """The error for pooling cls over a causal transformer of type `kind`."""
    return UserError(
        f"{where}: found pooling cls over a causal transformer ({kind}), whose first token sees no other; expected last or mean"
    )


def document_folder(folder: Path) -> Path:
    """The folder of the document tower in a model folder: that folder itself, where both towers are one."""
    return folder / "document" if (folder / ROUTER).exists() else folder


def document_digest(folder: Path) -> str:
    """SHA-256 of the files of the document tower, without prompts: the query's changes no document vector, the document's is in tokens."""
    tower = document_folder(folder)

    def digest_of(file: Path) -> str:
        if file != tower / GENERAL:
            return file_digest(file)
        settings = {name: value for name, value in read_json(file).items() if name not in ("prompts", "default_prompt_name")}
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()

    return folder_digest(tower, digest_of)


def interpolate_weights(towers: Towers, others: Towers, share: float) -> None:
    """Replace the weights of `towers` by (1 - share) times them plus `share` times those of `others`, of the same architecture.

    Source: LM-Cocktail (arXiv:2311.13534), with the fine-tuned and the base model.
    """
    sides = [("document", towers.document), *([] if towers.shared else [("query", towers.query)])]
    with torch.no_grad():
        for name, tower in sides:
            other_weights = getattr(others, name).state_dict()
            for key, weight in tower.named_parameters():  # each once; a state_dict names T5's word embeddings twice
                weight.lerp_(other_weights[key].to(weight), share)


def truncate(towers: Towers, width: int, where: str) -> None:
    """Make `towers`, in place, keep only the first `width` numbers of a vector; UserError naming `where` (the parameter) if it has fewer.

    Source: Matryoshka representation learning (arXiv:2205.13147). A cosine is that of the shorter vectors.
    """
    for tower in (towers.query, towers.document):
        if width > tower.full_width:
            raise UserError(f"{where}: found {width}, expected at most {tower.full_width}, the vector's width; decrease it")
        tower.shape = replace(tower.shape, width=width if width < tower.full_width else None)


def save_towers(towers: Towers, tokenizer: Any, folder: Path, query_length: int | None = None, **texts: Any) -> None:
    """Write both towers into `folder` (existing, empty). `texts` replaces max_length or prefixes of the shape.

    `query_length` is the max_length of a separate query tower; a shared tower has one for both, the documents'.
    """
    tokenizer.save_pretrained(folder)
    if not towers.shared:
        for name, tower in zip(TOWERS, (towers.query, towers.document), strict=True):
            (folder / name).mkdir()
            tower_texts = {"max_length": query_length} if name == "query" and query_length else {}
            save_towers(Towers(tower, tower), tokenizer, folder / name, **texts | tower_texts)
        _write_router(folder)
        return
    encoder = towers.document
    shape = replace(encoder.shape, **texts)
    encoder.transformer.save_pretrained(folder)
    modules: list[tuple[str, str]] = [("", "Transformer"), ("1_Pooling", "Pooling")]
    poolings = shape.pooling.split("+")
    modes: dict[str, Any] = {key: value in poolings for key, value in OLD_POOLINGS.items() if value in OLDEST or value in poolings}
    if poolings != in_order({*poolings}):  # old keys have no order
        mode_names = {ours: name for name, ours in POOLINGS.items()}
        modes = {"pooling_mode": [mode_names[name] for name in poolings]}
    _json(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": encoder.hidden, **modes, "include_prompt": shape.pools_prompt})
    if encoder.head is not None:
        modules += encoder.head.save(folder, len(modules))
    if encoder.width < encoder.full_width:  # by a module, since truncate_dim of a config is applied after Normalize
        modules.append((f"{len(modules)}{TRUNCATE}", "Dense"))
        layer = Layer("Dense", encoder.full_width, encoder.width, bias=False)
        write_module(folder / modules[-1][0], layer, {"linear.weight": torch.eye(encoder.width, encoder.full_width)})
    if shape.similarity == "cosine":
        modules.append((f"{len(modules)}_Normalize", "Normalize"))
        write_module(folder / modules[-1][0], Layer("Normalize"), {})
    _json(folder / "modules.json", [
        {"idx": i, "name": str(i), "path": path, "type": MODULE + kind} for i, (path, kind) in enumerate(modules)
    ])  # fmt: skip
    _json(folder / "sentence_bert_config.json", {"max_seq_length": shape.max_length, "do_lower_case": False})
    _json(folder / GENERAL, {
        "prompts": {"query": shape.query_prefix, "document": shape.document_prefix}, "default_prompt_name": None,
        "similarity_fn_name": shape.similarity,
    })  # fmt: skip


def _write_router(folder: Path) -> None:
    """Write the module files above two towers: one Router, whose modules are where each tower's own modules.json says."""
    types: dict[str, str] = {}
    routes: dict[str, list[str]] = {}
    for name in TOWERS:
        modules = {f"{name}/{module['path']}".rstrip("/"): module["type"] for module in read_json(folder / name / "modules.json")}
        types |= modules
        routes[name] = list(modules)
    _json(folder / ROUTER, {"types": types, "structure": routes, "parameters": {"default_route": "document", "allow_empty_key": True}})
    _json(folder / "modules.json", [{"idx": 0, "name": "0", "path": "", "type": MODULE + "Router"}])
    _json(folder / GENERAL, read_json(folder / "document" / GENERAL))


def _json(path: Path, value: object) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
