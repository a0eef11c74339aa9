"""What a GPU computes, beside what it could: encoding, a training step, exact search, a query-side training's step.

    python benchmarks/gpu.py [--only encode train search adore] [--rows 8800000] [--repeat 5] [--profile] [--encoder 6 384 12]

Two ceilings are measured first: a product of square bf16 matrices, and a copy, bytes read and written. Encoders have the shapes of MiniLM
and BERT-base and random weights, texts are random tokens, vectors random unit vectors in float16 on the GPU. Random tokens and weights
should not change a time. Vectors may: the more alike they are, the fewer half precision can tell apart, so search is measured at several
mean cosines. A step is that of the stage, with clipping and optimizer. Peers compute the same: transformers' BertModel with torch's
attention over one padded batch, and faiss's GpuIndexFlatIP where faiss knows the GPU. Medians; `--profile` also prints the operations that
take longest.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import torch
from torch import nn
from transformers import BertConfig

from tasks.adore.data import Data
from tasks.adore.documents import Exact
from tasks.adore.params import Adore
from tasks.adore.step import make_corpus, make_step
from tasks.core.encoding.encode import encode
from tasks.core.machine.devices import best_batch_tokens, choose_device, compute_dtype, kept_tokens, move_module
from tasks.core.models.bi_encoder import Encoder
from tasks.core.models.folder import Shape
from tasks.core.params.runtime import Runtime
from tasks.core.retrieval.embeddings import Embeddings, Manifest
from tasks.core.retrieval.exact import Reread
from tasks.core.retrieval.gpu.exact import Counted, search
from tasks.core.retrieval.ranked import MARGIN
from tasks.core.tables.judgments import lists_of
from tasks.core.tokens.folder import Tokens
from tasks.core.training.compute import Compute
from tasks.core.training.gradient_cache import Side, cached_backward
from tasks.core.training.optimizers import make_optimizer
from tasks.core.training.unpadded import best_training_tokens
from tasks.pretrain.model import random_towers
from tasks.pretrain.params import Scratch

SIZES = {"MiniLM": Scratch(layers=6, width=384, heads=12), "BERT-base": Scratch(layers=12, width=768, heads=12)}
CPU = torch.device("cpu")
VOCABULARY = 30522
PEER_ROWS = 2_000_000  # faiss holds them in float32
SHARD = 4096  # rows of a shard
PRODUCT, COPY = 8192, 2**31  # rows of a square matrix, bytes


class Clock:
    """Medians of timed calls on a device."""

    def __init__(self, device: torch.device, repeat: int, profile: bool) -> None:
        self.device, self.repeat, self.profile = device, repeat, profile

    def median(self, run: Callable[[], object], name: str = "") -> float:
        """Seconds of a call, after two that are not timed."""
        times = []
        for number in range(self.repeat + 2):
            start = time.perf_counter()
            run()
            self.wait()
            times += [time.perf_counter() - start] if number > 1 else []
        if self.profile and name:
            with torch.profiler.profile() as profile:
                run()
                self.wait()
            sort_column = "self_cuda_time_total" if self.device.type == "cuda" else "self_cpu_time_total"
            print(f"--- {name}\n{profile.key_averages().table(sort_by=sort_column, row_limit=14, max_name_column_width=70)}", flush=True)
        return statistics.median(times)

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


class Ceilings:
    """Products a second (two operations each multiplied and added number) and bytes moved a second."""

    def __init__(self, clock: Clock) -> None:
        rows = PRODUCT if clock.device.type == "cuda" else PRODUCT // 8
        left, right = (torch.randn(rows, rows, device=clock.device).to(torch.bfloat16) for _ in range(2))
        self.products = 2 * rows**3 / clock.median(lambda: left @ right)
        source = torch.randint(0, 255, (COPY if clock.device.type == "cuda" else COPY // 16,), dtype=torch.uint8, device=clock.device)
        copy = torch.empty_like(source)
        self.bytes = 2 * len(source) / clock.median(lambda: copy.copy_(source))
        print(f"measured: {self.products / 1e12:,.1f} TFLOP/s in bf16, {self.bytes / 1e9:,.0f} GB/s copied")


def random_tokens(rows: int, lengths: tuple[int, int], seed: int = 1) -> Tokens:
    """Random token ids; lengths are drawn between two numbers, both included."""
    draw = np.random.default_rng(seed)
    offsets = np.concatenate([[0], draw.integers(lengths[0], lengths[1] + 1, size=rows).cumsum()])
    flat = draw.integers(1000, VOCABULARY, size=int(offsets[-1]), dtype=np.uint16)
    return Tokens(flat, offsets, np.arange(rows, dtype=np.int32), Path(), 0, lengths[1], "", "")


def random_tower(size: Scratch) -> Encoder:
    return random_towers(BertConfig(vocab_size=VOCABULARY).to_dict(), Shape(pooling="mean", similarity="cosine"), size, 1).document


def operations(size: Scratch, tokens: Tokens, rows: np.ndarray) -> float:
    """Of the products of one forward pass over `rows`: linear layers, and attention."""
    lengths = tokens.lengths[rows].astype(np.float64)
    return float(size.layers * (24 * size.width**2 * lengths.sum() + 4 * size.width * (lengths**2).sum()))


def encoding(clock: Clock, ceilings: Ceilings, dtype: torch.dtype, sizes: dict[str, Scratch]) -> None:
    budget = best_batch_tokens(clock.device, dtype)
    print(f"\n{'encode':<44}{'texts/s':>11}{'TFLOP/s':>9}{'of measured':>13}{'padded transformers':>21}{'ratio':>8}")
    for name, size in sizes.items():
        tower = move_module(random_tower(size), clock.device, dtype).eval()
        for lengths in ((128, 128), (512, 512), (16, 144)):
            tokens = random_tokens(24 * budget * 2 // sum(lengths), lengths)
            ours = clock.median(partial(encode, tower, tokens, np.arange(len(tokens)), budget, clock.device), f"encode {name} {lengths}")
            sample = np.arange(max(1, budget // lengths[1]))
            inputs = [tensor.to(clock.device) for tensor in tokens.padded(sample)]
            with torch.inference_mode():
                theirs = clock.median(partial(padded, tower, inputs)) * len(tokens) / len(sample)
            rate = operations(size, tokens, np.arange(len(tokens))) / ours
            print(f"{f'{name}, {lengths[0]} to {lengths[1]} tokens':<44}{len(tokens) / ours:>11,.0f}{rate / 1e12:>9.1f}", end="")
            print(f"{rate / ceilings.products:>12.0%}{len(tokens) / theirs:>22,.0f}{theirs / ours:>7.2f}x", flush=True)


def padded(tower: Encoder, inputs: list[torch.Tensor]) -> torch.Tensor:
    return tower(*inputs).cpu()


class Training:
    """Steps of `batch` queries of 32 tokens, as many positives and negatives of 128; ours, and the padded form in one pass a side."""

    def __init__(self, size: Scratch, batch: int, device: torch.device, dtype: torch.dtype) -> None:
        self.tower, self.device, self.dtype = random_tower(size).to(device).train(), device, dtype
        self.optimizer = make_optimizer("adamw", self.tower, 2e-5, 0.01)
        queries, documents = random_tokens(batch, (32, 32)), random_tokens(2 * batch, (128, 128), 2)
        self.sides = [Side(self.tower, tokens, np.arange(len(tokens))) for tokens in (queries, documents)]
        config = self.tower.transformer.config
        self.budget, self.kept = best_training_tokens([self.tower], device, dtype), kept_tokens(Runtime(), device, self.tower, config)

    def loss(self, queries_BD: torch.Tensor, documents_RD: torch.Tensor) -> tuple[torch.Tensor, dict[str, Any]]:
        scores_BR = queries_BD @ documents_RD.T * 20
        return nn.functional.cross_entropy(scores_BR, torch.arange(len(scores_BR), device=self.device)), {}

    def ours(self) -> None:
        cached_backward(self.sides, self.loss, self.budget, Compute(self.device, self.dtype, self.kept), (1, 1))
        finish(self.tower, self.optimizer)

    def theirs(self) -> None:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.dtype == torch.bfloat16):
            inputs = [[tensor.to(self.device) for tensor in side.tokens.padded(side.rows)] for side in self.sides]
            vectors = [self.tower(*tensors) for tensors in inputs]
        self.loss(*vectors)[0].backward()
        finish(self.tower, self.optimizer)


def finish(tower: Encoder, optimizer: torch.optim.Optimizer) -> None:
    nn.utils.clip_grad_norm_(tower.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def training(clock: Clock, ceilings: Ceilings, dtype: torch.dtype, batches: list[int], sizes: dict[str, Scratch]) -> None:
    print(f"\n{'training step':<44}{'ms':>11}{'TFLOP/s':>9}{'of measured':>13}{'padded transformers':>21}{'ratio':>8}")
    for name, size in sizes.items():
        for batch in batches:
            steps = Training(size, batch, clock.device, dtype)
            ours, theirs = clock.median(steps.ours, f"train {name} {batch}"), clock.median(steps.theirs)
            rate = 3 * sum(operations(size, side.tokens, side.rows) for side in steps.sides) / ours
            print(f"{f'{name}, {batch} x (1 + 1), 128 tokens':<44}{1e3 * ours:>11.1f}{rate / 1e12:>9.1f}", end="")
            print(f"{rate / ceilings.products:>12.0%}{1e3 * theirs:>22.1f}{theirs / ours:>7.2f}x", flush=True)


@dataclass(frozen=True)
class Drawn(Embeddings):
    """Random unit vectors with a mean cosine in place of a folder's, drawn on the GPU: a CPU takes minutes for so many."""

    device: torch.device = CPU
    cosine: float = 0.0

    def _shard(self, number: int) -> np.ndarray:
        draw = torch.Generator(self.device).manual_seed(number)  # a second pass has the same
        return drawn(self.manifest.shards[number], self.manifest.width, self.cosine, draw).half().cpu().numpy()

    def _map_shard(self, number: int) -> torch.Tensor:
        return torch.from_numpy(self._shard(number))


def drawn(rows: int, width: int, cosine: float, draw: torch.Generator) -> torch.Tensor:
    """Unit vectors [R, D]: encoders' have a mean cosine of 0.5 to 0.9, and numbers of unlike sizes (here as in 100 dimensions or so)."""
    sizes_D = (1 + torch.arange(width, device=draw.device) / 40).rsqrt()
    own_RD = torch.randn(rows, width, generator=draw, device=draw.device) * sizes_D / sizes_D.norm()
    common_D = nn.functional.normalize(torch.ones(width, device=draw.device), dim=0)
    return nn.functional.normalize((1 - cosine) ** 0.5 * own_RD + cosine**0.5 * common_D)


def held(rows: int, width: int, device: torch.device, scratch: Path, cosine: float = 0.0) -> Exact:
    """Vectors as a query-side training holds them; a CPU's copy of them is in `scratch`."""
    shards = [min(SHARD, rows - first) for first in range(0, rows, SHARD)]
    return Exact(Drawn(Path(), Manifest(rows, width, "float16", shards, "", "", 0, ""), device=device, cosine=cosine), device, scratch)


def searching(clock: Clock, ceilings: Ceilings, documents: Exact, queries: int, depth: int = 200) -> None:
    rows, width = len(documents.embeddings), documents.embeddings.manifest.width
    assert isinstance(documents.embeddings, Drawn)
    cosine = documents.embeddings.cosine
    queries_QD = drawn(queries, width, cosine, torch.Generator(clock.device).manual_seed(2))
    counted = Counted()
    seconds = clock.median(
        lambda: documents.search(queries_QD, depth), f"search {queries} x {rows} x {width}, cosine {cosine}, top {depth}"
    )
    results = search(queries_QD, Reread(documents.blocks), depth + MARGIN, clock.device, rows=1, counted=counted)
    np.testing.assert_allclose(results[0][:, :depth], documents.search(queries_QD, depth)[0][:, :depth], atol=1e-5)
    floor = max(2.0 * queries * rows * width / ceilings.products, 2.0 * rows * width / ceilings.bytes)
    print(f"search, {queries:,} queries, {rows:,} x {width}, mean cosine {cosine}, top {depth}: {1e3 * seconds:,.1f} ms, ", end="")
    print(
        f"{seconds / floor:.1f} x its floor of {1e3 * floor:,.2f} ms; {counted.again} of {counted.queries:,} needed a second pass", end=""
    )
    if rows <= PEER_ROWS and hasattr(faiss, "GpuIndexFlatIP") and faiss.get_num_gpus():
        index = faiss.GpuIndexFlatIP(faiss.StandardGpuResources(), width)
        assert documents.resident is not None
        for first in range(0, rows, 2**18):
            index.add(documents.resident[first : first + 2**18].float().cpu().numpy())
        faiss_queries = queries_QD.cpu().numpy()
        faiss_seconds = clock.median(lambda: index.search(faiss_queries, depth))
        our_results, faiss_results = documents.search(queries_QD, depth), index.search(faiss_queries, depth)
        np.testing.assert_allclose(our_results[0][:, :depth], faiss_results[0], atol=1e-4)
        print(f"; faiss {1e3 * faiss_seconds:,.1f} ms, {faiss_seconds / seconds:.2f} x", end="")
    print(flush=True)


def adoring(clock: Clock, ceilings: Ceilings, dtype: torch.dtype, rows: int, name: str, size: Scratch, scratch: Path) -> None:
    batch, count = 32, 3200
    documents, tower = held(rows, size.width, clock.device, scratch), random_tower(size).to(clock.device).train()
    queries, params = random_tokens(count, (6, 24)), Adore(round="none", negatives="none", batch_queries=batch)
    optimizer = make_optimizer("adamw", tower, 5e-6, 0.01)
    positives = lists_of(np.arange(count), np.arange(count), count, np.ones(count, dtype=np.float32))
    data = Data(np.arange(count), positives, None, rows, positives)
    corpus = make_corpus(documents, np.arange(rows, dtype=np.int32), np.arange(rows), params.depth)
    graph_tokens, steps = kept_tokens(Runtime(), clock.device, tower, tower.transformer.config), iter(range(10**9))
    step = make_step(tower, queries, data, corpus, params, lambda _: False, scratch, Compute(clock.device, dtype, graph_tokens))
    drawn = step.draw(0)

    def whole() -> None:
        nonlocal drawn
        number = next(steps)
        step.backward(number, drawn)
        drawn = step.draw(number + 1)
        finish(tower, optimizer)

    seconds = clock.median(whole, f"adore {rows} {name}")
    floor = 2.0 * rows * size.width / ceilings.bytes
    print(
        f"ADORE step, {name}, {batch} queries, {rows:,} documents: {1e3 * seconds:.1f} ms; reading their vectors takes {1e3 * floor:.1f} ms"
    )
    searching(clock, ceilings, documents, batch)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=["encode", "train", "search", "adore"])
    parser.add_argument("--rows", type=int, default=8_800_000, help="documents of the query-side training")
    parser.add_argument("--queries", type=int, default=10_000, help="of the search of a million rows")
    parser.add_argument("--batches", type=int, nargs="+", default=[64, 256], help="queries of a training step")
    parser.add_argument("--cosines", type=float, nargs="+", default=[0.0, 0.8, 0.95], help="mean cosines of the vectors searched")
    parser.add_argument("--encoder", type=int, nargs=3, metavar=("LAYERS", "WIDTH", "HEADS"), help="one of this shape instead of both")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    sizes = {"encoder": Scratch(**dict(zip(("layers", "width", "heads"), args.encoder, strict=True)))} if args.encoder else SIZES
    device = choose_device(Runtime())
    torch.manual_seed(1)
    dtype = compute_dtype(device, "bf16")
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    print(f"{name}, torch {torch.__version__}, faiss {faiss.__version__}, {str(dtype).removeprefix('torch.')}")
    clock = Clock(device, args.repeat, args.profile)
    ceilings = Ceilings(clock)
    if "encode" in args.only:
        encoding(clock, ceilings, dtype, sizes)
    if "train" in args.only:
        training(clock, ceilings, dtype, args.batches, sizes)
    if "search" in args.only:
        print()
        for cosine in args.cosines:
            with tempfile.TemporaryDirectory() as scratch:
                documents = held(min(args.rows, 1_000_000), 384, device, Path(scratch), cosine)
                for depth in (200, 1000):
                    for queries in (32, args.queries):
                        searching(clock, ceilings, documents, queries, depth)
    if "adore" in args.only:
        print()
        for name, size in sizes.items():
            with tempfile.TemporaryDirectory() as scratch:
                adoring(clock, ceilings, dtype, args.rows, name, size, Path(scratch))


if __name__ == "__main__":
    main()
