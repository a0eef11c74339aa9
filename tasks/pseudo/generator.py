"""Queries that a sequence-to-sequence model writes for documents: docTTTTTquery's, or any other AutoModelForSeq2SeqLM.

Tokens are drawn by top-k and nucleus sampling (GPL, arXiv:2112.07577, section 3.1: k 25, p .95, three queries per document).
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import AutoModelForSeq2SeqLM, GenerationConfig

from tasks.core.errors import UserError
from tasks.core.machine.devices import move_module
from tasks.core.models.folder import refuse_adapters
from tasks.core.models.limits import one_line, read_config
from tasks.core.stage.draws import draw_seed
from tasks.core.stage.progress import Progress
from tasks.core.tokens.tokenizer import drop_remote_code, load_tokenizer
from tasks.pseudo.journal import Journal, Written
from tasks.pseudo.params import Pseudo

BATCH = 16  # documents, on a CPU; each batch has its own random seed
GPU_BATCH = 64  # with three queries each and documents of 350 tokens, T5-base's cross-attention cache takes 2.5 GB in bf16
MOST_TOKENS = 64  # in a query
Writer = Callable[[Sequence[str]], Written]


def load_generator(folder: Path) -> Any:
    """Load the model of a local folder, float32, in eval mode. UserError if it is not a sequence-to-sequence model."""
    refuse_adapters(folder)
    try:
        model = AutoModelForSeq2SeqLM.from_pretrained(
            folder, config=read_config(folder), dtype=torch.float32, local_files_only=True, trust_remote_code=False, use_safetensors=True
        )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError, StrictDataclassError) as error:
        raise UserError(
            f"pseudo.generator: {folder}: cannot be loaded ({one_line(error)}); expected a sequence-to-sequence model, such as T5, with "
            "config.json and model.safetensors"
        ) from None
    drop_remote_code(model.config)
    return model.eval()


def make_writer(folder: Path, params: Pseudo, device: torch.device, dtype: torch.dtype, *, journal: Journal, progress: Progress) -> Writer:
    """Make the function from the texts of documents to `params.generated` queries for each, in order. Batches in `journal` are reused.

    The draws of a batch depend only on the seed and its first text, so the same texts give the same queries on the same kind of hardware.
    """
    tokenizer, model = load_tokenizer(folder), move_module(load_generator(folder), device, dtype)
    sampling = GenerationConfig.from_dict(
        model.generation_config.to_dict()
        | {
            "do_sample": True,
            "num_beams": 1,
            "top_k": params.top_k,
            "top_p": params.top_p,
            "num_return_sequences": params.generated,
            "max_new_tokens": MOST_TOKENS,
            "max_length": None,
        }
    )

    size, numbers = BATCH if device.type == "cpu" else GPU_BATCH, itertools.count()

    def write(texts: Sequence[str]) -> Written:
        queries: Written = []
        with torch.inference_mode(), torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), _tolerant():
            for start in range(0, len(texts), size):
                part, number = list(texts[start : start + size]), next(numbers)
                written = journal.pop(number)
                if written is None:
                    written = of_batch(part)
                    journal.add(number, written)
                    progress.advance(len(part))
                else:
                    progress.skip(len(part))
                queries += written
        return queries

    def of_batch(part: list[str]) -> Written:
        inputs = tokenizer(part, truncation=True, max_length=params.generator_tokens, padding=True, return_tensors="pt").to(device)
        torch.manual_seed(draw_seed(params.seed, int.from_bytes(blake2b(part[0].encode(), digest_size=8).digest(), "little")))
        ids = model.generate(inputs["input_ids"], attention_mask=inputs["attention_mask"], generation_config=sampling)
        written = [" ".join(text.split()) for text in tokenizer.batch_decode(ids, skip_special_tokens=True)]
        return [written[n * params.generated : (n + 1) * params.generated] for n in range(len(part))]

    return write


@contextmanager
def _tolerant() -> Iterator[None]:
    """Only warn of nondeterministic operations: nucleus sampling needs a sum whose order is not fixed on a GPU."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
