"""A cross-encoder: one score for query and document read together. Any sequence classifier of one label."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from torch import nn
from transformers import AutoModelForSequenceClassification

from tasks.core.models.folder import refuse_adapters
from tasks.core.models.masks import attention_mask
from tasks.core.stage.devices import best_batch_tokens, moved, place
from tasks.core.stage.errors import UserError
from tasks.core.stage.files import read_json
from tasks.core.text.tokenizer import drop_code, load_tokenizer, longest_text
from tasks.core.text.tokens import cut_by_budget

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class CrossEncoder:
    """Model and tokenizer, ready to score. `max_length` tokens of query and document together; the longer of the two is truncated."""

    model: Any
    tokenizer: Any
    max_length: int
    batch_tokens: int
    device: torch.device

    def logits(self, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Logits [B, 1] of tokenized pairs."""
        mask = attention_mask(tensors["attention_mask"], self.model.config)
        logits: torch.Tensor = self.model(**{**tensors, "attention_mask": mask}).logits
        return logits

    def scores(self, pairs: Sequence[tuple[str, str]]) -> Floats:
        """The logit of every (query, document), float32 [P]; UserError if one is not finite."""
        if not pairs:
            return np.empty(0, dtype=np.float32)
        encoded = self.tokenizer([q for q, _ in pairs], [d for _, d in pairs], truncation=True, max_length=self.max_length)
        found = np.empty(len(pairs), dtype=np.float32)
        with torch.inference_mode():
            for batch in cut_by_budget(np.array([len(ids) for ids in encoded["input_ids"]]), self.batch_tokens):
                rows = {name: [values[n] for n in batch] for name, values in encoded.items()}
                tensors = self.tokenizer.pad(rows, return_tensors="pt")
                found[batch] = (
                    self.logits({name: moved(tensor, self.device) for name, tensor in tensors.items()})[:, 0].float().cpu().numpy()
                )
        if not np.isfinite(found).all():
            raise UserError("the reranker returns NaN or infinity for a pair; choose another model or set precision: fp32")
        return found


def load_cross_encoder(folder: Path, max_length: int, batch_tokens: int | None, device: torch.device, dtype: torch.dtype) -> CrossEncoder:
    """The cross-encoder of a local folder, `batch_tokens` at a time (none: what suits the device).

    UserError if it is not a classifier or does not have exactly one label.
    """
    model, tokenizer = load_classifier(folder), load_tokenizer(folder)
    model = place(model, device, dtype).eval()
    last = [module for module in model.modules() if isinstance(module, nn.Linear) and module.out_features == 1][-1:]
    for linear in last:  # bf16 has 8 bits: a logit of 8 to 16 would be a multiple of 1/16, and many documents of a list would tie
        linear.float().register_forward_pre_hook(lambda _, given: (given[0].float(),))
    batch_tokens = batch_tokens or best_batch_tokens(device, dtype)
    return CrossEncoder(model, tokenizer, longest_pair(model, tokenizer, max_length), batch_tokens, device)


def longest_pair(model: Any, tokenizer: Any, max_length: int) -> int:
    """Tokens of a pair: `max_length`, or the limit of tokenizer and model."""
    return min(max_length, int(tokenizer.model_max_length), longest_text(model) or max_length)


def load_classifier(folder: Path, seed: int | None = None) -> Any:
    """The sequence classifier of a local folder, float32; UserError if it cannot score pairs.

    With a `seed`, any encoder works: a one-label head is initialized from it.
    """
    refuse_adapters(folder)
    config = read_json(folder / "config.json")
    labels = len(config.get("id2label") or [0] * config.get("num_labels", 2))
    if labels != 1 and seed is None:
        raise UserError(f"{folder / 'config.json'}: found {labels} labels, expected 1, the score of a pair; choose another model")
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed or 0)
            model, report = AutoModelForSequenceClassification.from_pretrained(
                folder,
                dtype=torch.float32,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                output_loading_info=True,
                **({} if seed is None else {"num_labels": 1, "ignore_mismatched_sizes": True}),
            )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"{folder}: cannot be loaded as a reranker ({reason}); expected config.json and model.safetensors") from None
    drop_code(model.config)
    lacking = sorted(str(key) for key in report["missing_keys"])
    if lacking and seed is None:
        raise UserError(f"{folder}: model.safetensors has no {lacking[0]}, expected a trained one-label classifier; choose another model")
    return model
