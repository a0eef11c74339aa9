"""A cross-encoder: one score for query and document read together. Any sequence classifier of one label."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from torch import nn
from transformers import AutoModelForSequenceClassification

from tasks.core.errors import UserError
from tasks.core.files import read_json
from tasks.core.machine.ahead import map_ahead
from tasks.core.machine.devices import Coming, best_batch_tokens, move_module, to_device
from tasks.core.models.folder import refuse_adapters
from tasks.core.models.hidden_states.first_tokens import built_like_bert, first_outputs
from tasks.core.models.hidden_states.masks import attention_mask
from tasks.core.models.limits import CLOSE, FAILURES, no_cache, one_line, read_config, transformer_errors
from tasks.core.tables.ids import Ints
from tasks.core.tokens.folder import cut_by_budget
from tasks.core.tokens.tokenizer import drop_remote_code, load_tokenizer, longest_text

Floats = npt.NDArray[np.float32]
Rows = dict[str, list[list[int]]]  # a tokenizer's output for some texts, by name
PROBES = (("rivers", "no"), ("Which are rivers of the north?", "A river of the north that is known for its bridges."))  # pairs
LENGTH = 64  # tokens of one at most
PART = 2048  # pairs tokenized at a time for a GPU: so few that it does not wait, and enough for full batches of similar length


class Batch(NamedTuple):
    """Pairs that are scored together: their places among all pairs, and their tokens."""

    places: Ints
    rows: Rows


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
        with transformer_errors(self.model.config):
            if built_like_bert(self.model.base_model):
                return _first_logits(self.model, **tensors)
            inputs = {**tensors, "attention_mask": attention_mask(tensors["attention_mask"], self.model.config)}
            logits: torch.Tensor = self.model(**inputs, **self.options).logits
        return logits

    @cached_property
    def options(self) -> dict[str, bool]:
        """The model's arguments other than the tokens."""
        return no_cache(self.model)

    def scores(self, pairs: Sequence[tuple[str, str]]) -> Floats:
        """The logit of every (query, document), float32 [P]; UserError if one is not finite."""
        scores_P = np.empty(len(pairs), dtype=np.float32)
        places = list[Ints]()

        def start(batch: Batch) -> Coming:
            places.append(batch.places)
            with torch.inference_mode():
                tensors = padded(batch.rows, self.tokenizer)
                return Coming(self.logits({name: to_device(tensor, self.device) for name, tensor in tensors.items()})[:, 0].float())

        map_batches = map if self.device.type == "cpu" else map_ahead
        for number, coming in enumerate(map_batches(start, self._batches(pairs))):
            (scores_P[places[number]],) = coming.arrays()
        if not np.isfinite(scores_P).all():
            raise UserError("the reranker returns NaN or infinity for a pair; choose another model or set precision: fp32")
        return scores_P

    def _batches(self, pairs: Sequence[tuple[str, str]]) -> Iterator[Batch]:
        """All pairs, in batches of similar length. A thread tokenizes the next PART of them while a GPU scores the last."""
        if self.device.type == "cpu":
            yield from self._cut(0, self._tokenized(pairs) if pairs else {})
            return
        starts = range(0, len(pairs), PART)
        with ThreadPoolExecutor(1, thread_name_prefix="tokenize") as pool:
            for start, rows in zip(starts, pool.map(self._tokenized, [pairs[n : n + PART] for n in starts]), strict=True):
                yield from self._cut(start, rows)

    def _tokenized(self, pairs: Sequence[tuple[str, str]]) -> Rows:
        queries, documents = ([pair[side] for pair in pairs] for side in (0, 1))
        rows = dict(self.tokenizer(queries, documents, truncation=True, max_length=self.max_length))
        for empty in [n for n, row in enumerate(rows["input_ids"]) if not row]:  # two empty texts, where no special tokens are added
            for name, each in rows.items():
                each[empty] = [padding_values(self.tokenizer).get(name, 1)]
        return rows

    def _cut(self, first: int, rows: Rows) -> Iterator[Batch]:
        """Batches of tokenized pairs, the first of which has the place `first` among all."""
        lengths = np.fromiter(map(len, rows.get("input_ids", [])), dtype=np.int64)
        for batch in cut_by_budget(lengths, self.batch_tokens):
            yield Batch(first + batch, {name: [each[n] for n in batch.tolist()] for name, each in rows.items()})


def _first_logits(model: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor, **others: torch.Tensor) -> torch.Tensor:
    """Logits [B, 1] of a classifier built like BERT: the heads of all of these read the first token."""
    transformer = model.base_model
    first_B1H = first_outputs(transformer, input_ids, attention_mask, **others).unsqueeze(1)
    logits: torch.Tensor = model.classifier(first_B1H if transformer.pooler is None else model.dropout(transformer.pooler(first_B1H)))
    return logits


def padded(rows: Rows, tokenizer: Any) -> dict[str, torch.Tensor]:
    """Tokenized texts padded to the longest: int64 [B, L] by name.

    `tokenizer.pad` returns the same in 10 times the time, while a GPU waits.
    """
    lengths_B = np.array([len(row) for row in rows["input_ids"]])
    mask_BL = np.arange(lengths_B.max()) < lengths_B[:, None]
    mask_BL = mask_BL[:, ::-1] if tokenizer.padding_side == "left" else mask_BL
    fill = padding_values(tokenizer)
    arrays = {name: np.full(mask_BL.shape, fill.get(name, 0), dtype=np.int64) for name in rows}
    for name, array_BL in arrays.items():
        array_BL[mask_BL] = np.fromiter(chain.from_iterable(rows[name]), dtype=np.int64, count=int(lengths_B.sum()))
    return {name: torch.from_numpy(array_BL) for name, array_BL in arrays.items()}


def padding_values(tokenizer: Any) -> dict[str, int]:
    """The values of padding, by name; that of the attention mask is 0."""
    return {"input_ids": tokenizer.pad_token_id, "token_type_ids": tokenizer.pad_token_type_id}


def load_cross_encoder(folder: Path, max_length: int, batch_tokens: int | None, device: torch.device, dtype: torch.dtype) -> CrossEncoder:
    """The cross-encoder of a local folder, which scores `batch_tokens` tokens at a time (None: what suits the device).

    UserError if it is not a classifier with exactly one label, or if `pair_tokenizer` refuses it.
    """
    model = load_classifier(folder)
    tokenizer = pair_tokenizer(model, folder)
    model = move_module(model, device, dtype).eval()
    last = [module for module in model.modules() if isinstance(module, nn.Linear) and module.out_features == 1][-1:]
    for linear in last:  # bf16 has 8 bits: a logit of 8 to 16 would be a multiple of 1/16, and many documents of a list would tie
        linear.float().register_forward_pre_hook(lambda _, inputs: (inputs[0].float(),))
    batch_tokens = batch_tokens or best_batch_tokens(device, dtype)
    return CrossEncoder(model, tokenizer, longest_pair(model, tokenizer, max_length), batch_tokens, device)


def pair_tokenizer(model: Any, folder: Path) -> Any:
    """The tokenizer of a classifier's folder. It pads on the right, so that every token has the place that it has without padding.

    UserError for a decoder with another padding token than the tokenizer's: it scores by the last token before padding. Also for any
    classifier that fails on pairs, or whose scores depend on padding, and so on the other pairs of a batch.
    """
    tokenizer = load_tokenizer(folder)
    tokenizer.padding_side = "left" if model.config.model_type == "xlnet" else "right"  # XLNet scores by the last place
    causal = any(getattr(module, "is_causal", False) for module in model.modules())
    if causal and model.config.pad_token_id != tokenizer.pad_token_id:
        raise UserError(
            f"{folder / 'config.json'}: found pad_token_id {model.config.pad_token_id}, expected {tokenizer.pad_token_id} as in "
            "the tokenizer, since this model scores by the last token before padding; change one of them"
        )
    _refuse_unlike(CrossEncoder(model, tokenizer, longest_pair(model, tokenizer, LENGTH), 2 * LENGTH, torch.device("cpu")), folder)
    return tokenizer


def _refuse_unlike(encoder: CrossEncoder, folder: Path) -> None:
    """UserError for a classifier that fails on pairs, or whose scores depend on padding."""
    kind = encoder.model.config.model_type
    try:
        together_P, alone_P = encoder.scores(PROBES), np.concatenate([encoder.scores([pair]) for pair in PROBES])
    except FAILURES as error:
        reason = one_line(error)
        raise UserError(f"{folder}: found a reranker ({kind}) that fails on a pair ({reason}); expected one such as BERT") from None
    if np.abs(together_P - alone_P).max() > CLOSE * np.abs(alone_P).max():
        raise UserError(f"{folder}: found a reranker ({kind}) whose scores depend on padding; expected one that masks it, such as BERT")


def longest_pair(model: Any, tokenizer: Any, max_length: int) -> int:
    """The most tokens of a pair: `max_length`, or the limit of tokenizer or model if that is lower."""
    return min(max_length, int(tokenizer.model_max_length), longest_text(model) or max_length)


def _count_labels(file: Path) -> int:
    """The number of labels that a model's configuration names; 2, as transformers assumes, if it names none."""
    config = read_json(file)
    try:
        return len(config.get("id2label") or [0] * config.get("num_labels", 2))
    except (AttributeError, TypeError) as error:
        raise UserError(f"{file}: not the configuration of a model ({one_line(error)}); choose another model") from None


def load_classifier(folder: Path, seed: int | None = None) -> Any:
    """The sequence classifier of a local folder, float32; UserError if it cannot score pairs.

    With a `seed`, any encoder works: a one-label head is initialized from it.
    """
    refuse_adapters(folder)
    labels = _count_labels(folder / "config.json")
    if labels != 1 and seed is None:
        raise UserError(f"{folder / 'config.json'}: found {labels} labels, expected 1, the score of a pair; choose another model")
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed or 0)
            model, report = AutoModelForSequenceClassification.from_pretrained(
                folder,
                config=read_config(folder, **({} if seed is None else {"num_labels": 1})),
                dtype=torch.float32,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                output_loading_info=True,
                ignore_mismatched_sizes=seed is not None,
            )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError, StrictDataclassError) as error:
        reason = one_line(error)
        raise UserError(f"{folder}: cannot be loaded as a reranker ({reason}); expected config.json and model.safetensors") from None
    drop_remote_code(model.config)
    lacking = sorted(str(key) for key in report["missing_keys"])
    if lacking and seed is None:
        raise UserError(f"{folder}: model.safetensors has no {lacking[0]}, expected a trained one-label classifier; choose another model")
    random = [*lacking, *sorted(str(key[0]) for key in report["mismatched_keys"])]
    if inner := next((key for key in random if key.startswith(f"{model.base_model_prefix}.") and "pooler" not in key), None):
        raise UserError(
            f"{folder}: model.safetensors has no {inner} of that size, expected all weights of {type(model).__name__} except its "
            "head; choose another model"
        )
    return model
