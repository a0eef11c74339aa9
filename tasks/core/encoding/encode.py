"""Texts to vectors: batches of similar length under a token budget, no gradients.

Encoders built like BERT run packed (`tasks.core.encoding.packed`), on a GPU if torch has the attention for it. On a CPU each thread
then has a batch of its own: no thread waits for another one at each layer, as it does where they share a product. Everything else
is padded and goes through `Encoder`.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.utils.rnn import pad_sequence

from tasks.core.encoding.packed import PAD, Layers, Packed
from tasks.core.machine.ahead import map_ahead
from tasks.core.machine.devices import Coming, one_thread, to_device
from tasks.core.models.bi_encoder import Encoder
from tasks.core.tables.ids import Ints
from tasks.core.tokens.folder import Tokens, cut_by_budget
from tasks.core.tokens.tokenizer import prompt_tokens

Vectors = npt.NDArray[np.float32]
THREAD_TOKENS = 2048  # of a batch that has one thread: larger ones are no faster, and leave cores without work at the end


def encode(
    encoder: Encoder,
    tokens: Tokens,
    rows: Ints,
    batch_tokens: int,
    device: torch.device,
    done: Callable[[int], None] = lambda _: None,
    layers: Layers | None = None,
) -> Vectors:
    """Vectors float32 [R, D] of `rows` [R], in their order. `done` is called with the number of rows of each finished batch.

    The encoder is used as is (device, dtype, eval mode), with `layers` (of `quantized_layers`) in place of its own if given. Batches
    depend only on the rows' lengths, so the same rows give the same bits regardless of what else is encoded, by however many workers.
    Packed batches, and rows that are not packed, are padded to multiples of PAD: on the CPUs tried (fp32) a row then has the same bits
    in any batch, which tasks.encode.reuse checks and uses.
    """
    out_RD = np.empty((len(rows), encoder.width), dtype=np.float32)
    with torch.inference_mode():
        packed = Packed.of(encoder, device, layers)
    lengths = tokens.offsets[rows + 1] - tokens.offsets[rows]
    if packed is None:
        lengths = np.maximum(lengths, np.minimum(-(-lengths // PAD) * PAD, tokens.max_length))
    own_threads = packed is not None and device.type == "cpu"

    def start(batch: Ints) -> Coming:
        with torch.inference_mode():  # of this thread
            if packed is not None:
                return Coming(packed.vectors(tokens, rows[batch], lengths[batch]))
            ids_BL, mask_BL = tokens.padded(rows[batch], int(lengths[batch[0]]))
            return Coming(encoder(to_device(ids_BL, device), to_device(mask_BL, device), tokens.prompt))

    batches = cut_by_budget(lengths, min(batch_tokens, THREAD_TOKENS) if own_threads else batch_tokens)
    with _single_threaded_map() if own_threads else nullcontext(map if device.type == "cpu" else map_ahead) as map_batches:
        for batch, coming in zip(batches, map_batches(start, batches), strict=True):
            (out_RD[batch],) = coming.arrays()
            done(len(batch))
    return out_RD


@contextmanager
def _single_threaded_map() -> Iterator[Callable[[Callable[[Ints], Coming], list[Ints]], Iterator[Coming]]]:
    """A `map` with as many threads as torch has, in each of which torch itself has one."""
    with one_thread() as threads, ThreadPoolExecutor(threads, thread_name_prefix="encode") as pool:
        yield pool.map


def encode_texts(encoder: Encoder, tokenizer: Any, texts: list[str], max_length: int, device: torch.device, prefix: str = "") -> Vectors:
    """Vectors float32 [B, D] of a few texts with `prefix` before each, in one batch, padded on the right whatever the tokenizer's side."""
    rows = tokenizer([prefix + text for text in texts], truncation=True, max_length=max_length, return_attention_mask=False)["input_ids"]
    parts = [torch.tensor(row or [tokenizer.pad_token_id]) for row in rows]  # as tokenize stores a text without tokens
    ids_BL = pad_sequence(parts, batch_first=True, padding_value=tokenizer.pad_token_id)
    mask_BL = pad_sequence([torch.ones_like(part) for part in parts], batch_first=True)
    with torch.inference_mode():
        vectors: Vectors = encoder(ids_BL.to(device), mask_BL.to(device), prompt_tokens(tokenizer, prefix)).cpu().numpy()
    return vectors
