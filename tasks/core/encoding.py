"""Texts to vectors: batches of like length under a token budget, no gradients.

On a CPU in float32 encoders built like BERT run packed: the tokens of a batch's rows stand one behind the other in one matrix,
so no linear layer, activation or norm is spent on padding and no attention on masked keys; buffers are used again for
every layer, biases and residuals go into the matrix products. Everything else is padded and goes through `Encoder`.

Shapes: B rows, L tokens of a row, T tokens of a batch (and a few of padding), H hidden width, I inner width, A attention heads.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional as F

from tasks.core.encoder import Encoder
from tasks.core.tokens import Ints, Tokens, cut_by_budget

Vectors = npt.NDArray[np.float32]
PAD = 16  # tokens
INNER_ROWS = 512  # of the inner activations held at a time, for each thread: they stay in its cache
FIRST_POSITION = {"bert": 0, "roberta": None, "xlm-roberta": None}  # of a row's first token; none: behind the pad id (fairseq)


def encode(
    encoder: Encoder, tokens: Tokens, rows: Ints, batch_tokens: int, device: torch.device, done: Callable[[int], None] = lambda _: None
) -> Vectors:
    """Vectors float32 [R, D] of `rows` [R], in their order. `done` hears how many rows each batch finished.

    The encoder is used as it stands (device, dtype, eval mode). Batches depend on the rows' lengths alone,
    so the same rows give the same bits whatever else is encoded, by however many workers. Packed batches, and rows that are
    not packed, are padded to multiples of PAD: on the CPUs tried (fp32) a row then has the same bits in whatever batch,
    which tasks.encode.reuse checks and uses.
    """
    out_RD = np.empty((len(rows), encoder.width), dtype=np.float32)
    with torch.inference_mode():
        packed = Packed.of(encoder, device)
        lengths = tokens.offsets[rows + 1] - tokens.offsets[rows]
        if packed is None:
            lengths = np.maximum(lengths, np.minimum(-(-lengths // PAD) * PAD, tokens.max_length))
        for batch in cut_by_budget(lengths, batch_tokens):
            if packed is None:
                ids_BL, mask_BL = tokens.padded(rows[batch], int(lengths[batch[0]]))
                out_RD[batch] = encoder(ids_BL.to(device), mask_BL.to(device)).cpu().numpy()
            else:
                out_RD[batch] = packed.vectors(tokens, rows[batch], lengths[batch]).numpy()
            done(len(batch))
    return out_RD


def encode_texts(encoder: Encoder, tokenizer: Any, texts: list[str], max_length: int, device: torch.device) -> Vectors:
    """Vectors float32 [B, D] of a few texts as they stand (prefixes included), in one batch."""
    batch = tokenizer(texts, truncation=True, max_length=max_length, padding=True, return_tensors="pt")
    with torch.inference_mode():
        vectors: Vectors = encoder(batch["input_ids"].to(device), batch["attention_mask"].to(device)).cpu().numpy()
    return vectors


@dataclass(frozen=True)
class Packed:
    """An encoder whose transformer is BERT's (Devlin et al. 2019): its weights as they stand, the products q, k, v in one."""

    encoder: Encoder
    first_position: int
    qkv: list[tuple[torch.Tensor, torch.Tensor]]  # of each layer: weight [H, 3H] and bias [3H]

    @classmethod
    def of(cls, encoder: Encoder, device: torch.device) -> "Packed | None":
        """The packed form of `encoder`; None for another architecture, device or dtype, or in training."""
        transformer = encoder.transformer
        config = transformer.config
        known = config.model_type in FIRST_POSITION and hasattr(transformer, "encoder") and not config.is_decoder
        plain = device.type == "cpu" and transformer.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
        if not known or not plain or encoder.training:
            return None
        first = FIRST_POSITION[config.model_type]
        qkv = []
        for layer in transformer.encoder.layer:
            own = layer.attention.self
            three = (own.query, own.key, own.value)
            qkv.append((torch.cat([each.weight for each in three]).t(), torch.cat([each.bias for each in three])))
        return cls(encoder, config.pad_token_id + 1 if first is None else first, qkv)

    def vectors(self, tokens: Tokens, rows: Ints, lengths_B: Ints) -> torch.Tensor:
        """Vectors [B, D] of `rows`, whose `lengths_B` never rise."""
        starts_B = np.cumsum(lengths_B) - lengths_B
        total = int(lengths_B.sum())
        ids_T = np.full(_whole(total), tokens.pad, dtype=np.int64)
        ids_T[:total] = np.concatenate([tokens.flat[s:e] for s, e in zip(tokens.offsets[rows], tokens.offsets[rows + 1], strict=True)])
        places_T = np.zeros(len(ids_T), dtype=np.int64)
        places_T[:total] = np.arange(total) - np.repeat(starts_B, lengths_B)
        hidden_TH = self._hidden(torch.from_numpy(ids_T), torch.from_numpy(places_T + self.first_position), lengths_B)
        if self.encoder.shape.pooling == "cls":
            pooled_BH = hidden_TH[torch.from_numpy(starts_B)]
        else:
            pooled_BH = torch.segment_reduce(hidden_TH[:total], "mean", lengths=torch.from_numpy(lengths_B))
        spare = _whole(len(rows)) - len(rows)
        return self.encoder.finish(F.pad(pooled_BH, (0, 0, 0, spare)))[: len(rows)]

    def _hidden(self, ids_T: torch.Tensor, positions_T: torch.Tensor, lengths_B: Ints) -> torch.Tensor:
        """The transformer's last hidden states [T, H]."""
        transformer = self.encoder.transformer
        x_TH: torch.Tensor = transformer.embeddings(input_ids=ids_T[None], position_ids=positions_T[None])[0]
        total, width = x_TH.shape
        heads = transformer.config.num_attention_heads
        sum_TH, context_TH = torch.empty_like(x_TH), torch.zeros_like(x_TH)
        qkv_TK = x_TH.new_empty(total, 3 * width)
        runs = list(_runs(lengths_B))
        blocks = list(pairwise(_blocks(total, INNER_ROWS * torch.get_num_threads())))
        inner_TI = x_TH.new_empty(max(end - start for start, end in blocks), transformer.config.intermediate_size)
        for layer, (weight_HK, bias_K) in zip(transformer.encoder.layer, self.qkv, strict=True):
            torch.addmm(bias_K, x_TH, weight_HK, out=qkv_TK)
            for start, count, length in runs:
                part = slice(start, start + count * length)
                q, k, v = qkv_TK[part].view(count, length, 3, heads, -1).permute(2, 0, 3, 1, 4)
                context_TH[part].view(count, length, heads, -1).copy_(F.scaled_dot_product_attention(q, k, v).transpose(1, 2))
            mixed, inner, outer = layer.attention.output, layer.intermediate, layer.output
            torch.add(x_TH, mixed.dense.bias, out=sum_TH).addmm_(context_TH, mixed.dense.weight.t())
            x_TH = mixed.LayerNorm(sum_TH)
            torch.add(x_TH, outer.dense.bias, out=sum_TH)
            for start, end in blocks:
                inner_BI = torch.addmm(inner.dense.bias, x_TH[start:end], inner.dense.weight.t(), out=inner_TI[: end - start])
                sum_TH[start:end].addmm_(inner.intermediate_act_fn(inner_BI), outer.dense.weight.t())
            x_TH = outer.LayerNorm(sum_TH)
        return x_TH


def _runs(lengths_B: Ints) -> Iterator[tuple[int, int, int]]:
    """First token, rows and length of every run of rows of one length."""
    start = 0
    for length, rows in groupby(lengths_B.tolist()):
        count = len(list(rows))
        yield start, count, length
        start += count * length


def _whole(rows: int) -> int:
    """`rows` and as many of padding that their bits do not depend on their number: a matrix product of fewer than 4 a thread differs."""
    return max(-(-rows // PAD) * PAD, PAD * torch.get_num_threads())


def _blocks(rows: int, most: int) -> list[int]:
    """Bounds of the fewest blocks of at most about `most` of `rows` (a multiple of PAD), all of like size and whole in PAD."""
    count = -(-rows // most)
    return [rows // PAD * number // count * PAD for number in range(count + 1)]
