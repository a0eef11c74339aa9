"""ANCE beside its authors' code: a training step, and what its inferencer does between two rounds; same weights, token ids, and lists.

    python benchmarks/ance.py FOLDER [--steps 5] [--batch 32] [--length 120] [--queries 1000] [--documents 4000] [--repeat 3]

FOLDER is a checkout of microsoft/ANCE, read at commit c8439df. Of the training its record files, triplets, data set, model, loss, and Lamb
run in a bare loop. Of the inferencer generate_new_ann runs as it is: it encodes dev queries, passages, and training queries, searches with
faiss on the CPU, measures nDCG@10, and writes negatives; beside it run our stages encode, retrieve, and mine. What has gone from later
versions of its packages, or is not used here, is given to it: AdamW (torch's), tuples as outputs of a model, SEED-Encoder (empty). Steps
train a RoBERTa as large as all-MiniLM-L6 from random weights; the inferencer has all-MiniLM-L6's weights in it, and a random head.

Before anything is timed, in fp32 and without dropout, both must have the same loss, gradients, and weights after three steps of Lamb, the
same nDCG@10, and the same negatives for each query: it is the same work.
"""

import argparse
import importlib
import io
import json
import logging
import os
import shutil
import sys
import tempfile
import time
import warnings
from argparse import Namespace
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from papers import CLIP, ENCODER, LR, PAD, QUERY_LENGTH, OurStar, Work, import_peer, our_model, show, their_model, timed
from torch import nn
from torch.utils.data import DataLoader

from tasks.core.machine.devices import choose_device, compute_dtype
from tasks.core.metrics.measures import means, parse, per_query
from tasks.core.models.bi_encoder import Encoder, Towers, load_transformer, save_towers
from tasks.core.params.runtime import Runtime
from tasks.core.sources.datasets import demo_file, parse_encoder
from tasks.core.stage.frozen import freeze_parameters
from tasks.core.tables.parquet import read_table, write_table
from tasks.core.tables.schemas import QRELS, RANKED
from tasks.core.tokens.folder import Tokens, open_tokens
from tasks.core.tokens.params import Cut
from tasks.core.tokens.store import write_tokens
from tasks.core.tokens.tokenizer import load_tokenizer
from tasks.train.losses import ranknet

DEPTH = 200  # --topk_training of its commands
DEV = 200  # queries, of the training queries' kind
CHECKED_STEPS = 3


@dataclass(frozen=True)
class Peer:
    """ANCE's modules."""

    models: ModuleType
    data: ModuleType
    util: ModuleType
    lamb: ModuleType
    inferencer: ModuleType

    @classmethod
    def of(cls, folder: Path) -> "Peer":
        seed = ModuleType("model.SEED_Encoder")
        for name in ("SEEDEncoderConfig", "SEEDTokenizer", "SEEDEncoderForSequenceClassification", "SEEDEncoderForMaskedLM"):
            setattr(seed, name, type(name, (nn.Module,), {}))
        data = ModuleType("data")  # a folder without __init__.py, so data.py beside this file would hide it
        data.__path__ = [str(folder / "data")]
        sys.modules |= {seed.__name__: seed, data.__name__: data}
        names = {"models": "model.models", "data": "data.msmarco_data", "util": "utils.util", "lamb": "utils.lamb"}
        return cls(**import_peer(names | {"inferencer": "run_ann_data_gen"}, folder, folder / "drivers"))


def write_records(path: Path, tokens: Tokens, length: int) -> None:
    """Token rows as its EmbeddingCache reads them: the length in 4 bytes, then `length` ids."""
    with path.open("wb") as file:
        for start, end in zip(tokens.offsets, tokens.offsets[1:], strict=False):
            row = np.full(length, PAD, np.int32)
            row[: end - start] = tokens.flat[start:end]
            file.write(int(end - start).to_bytes(4, "big") + row.tobytes())
    meta = {"type": "int32", "total_number": len(tokens), "embedding_size": length}
    path.with_name(f"{path.name}_meta").write_text(json.dumps(meta), encoding="utf-8")


@dataclass(frozen=True)
class Corpus:
    """`folder` has our project (tokens, qrels) and in `ance` its records; the positive of training query i is document i."""

    folder: Path
    queries: int
    documents: int

    @classmethod
    def of(cls, folder: Path, queries: int, documents: int, length: int) -> "Corpus":
        """Texts of the demo, no two of them alike: ours leaves out the texts of positives, too. Dev queries come after the others."""
        description_of: dict[str, str] = {}  # by the document
        for entry in json.loads(demo_file().read_text(encoding="utf-8")).values():
            if entry.get("description"):
                description_of.setdefault(entry["extract"], entry["description"])
        extract_of = {query: extract for extract, query in description_of.items()}
        texts, extracts = list(extract_of), list(extract_of.values())
        assert len(extracts) >= documents >= queries + DEV, f"the demo has {len(extracts):,} texts"
        kinds = {
            "queries/train": (texts[:queries], QUERY_LENGTH, "train-query"),
            "queries/dev": (texts[queries : queries + DEV], QUERY_LENGTH, "dev-query"),
            "queries/test": ([], QUERY_LENGTH, "none"),
            "documents": (extracts[:documents], length, "passages"),
        }
        encoder = parse_encoder(ENCODER).folder
        assert encoder is not None
        (folder / "ance").mkdir(parents=True)
        for name, (rows, length_limit, cache) in kinds.items():
            token_folder = folder / "tokens" / name
            ids = [f"{row:08}" for row in range(len(rows))]
            write_tokens(
                token_folder, [(ids, rows)] if rows else [], load_tokenizer(encoder), Cut(length_limit), digest="", total=len(rows)
            )
            meta = json.loads((token_folder / "meta.json").read_text(encoding="utf-8"))
            (token_folder / "meta.json").write_text(json.dumps(meta | {"pad": PAD}), encoding="utf-8")
            write_records(folder / "ance" / cache, open_tokens(token_folder), length_limit)
        for split, first_row, count in (("train", 0, queries), ("dev", queries, DEV)):
            columns = [[f"{row:08}" for row in range(count)], [f"{first_row + row:08}" for row in range(count)], [1] * count]
            write_table(folder / f"{split}.parquet", QRELS, [pa.table(columns, schema=QRELS)])
        return cls(folder, queries, documents)


def ance_model(peer: Peer, device: torch.device) -> Any:
    """Its model with random weights; the head is as narrow as the transformer, where its own has 768 numbers."""
    model = their_model(peer.models.RobertaDot_NLL_LN, device)
    width = model.config.hidden_size
    model.embeddingHead, model.norm = nn.Linear(width, width), nn.LayerNorm(width)
    torch.manual_seed(1)
    model.embeddingHead.apply(model._init_weights)
    return model.to(device)


def trained_model(peer: Peer, device: torch.device) -> Any:
    """The same with all-MiniLM-L6's weights under the head."""
    model = ance_model(peer, device)
    encoder = parse_encoder(ENCODER).folder
    assert encoder is not None
    weights = load_transformer(encoder).state_dict()
    places = model.roberta.embeddings.position_embeddings.weight.detach().clone()
    places[PAD + 1 : PAD + 1 + 512] = weights["embeddings.position_embeddings.weight"]  # RoBERTa counts them from there
    weights["embeddings.position_embeddings.weight"] = places
    weights["embeddings.token_type_embeddings.weight"] = weights["embeddings.token_type_embeddings.weight"][:1]
    state = model.roberta.state_dict()
    model.roberta.load_state_dict({name: weights[name] for name in state})
    return model.to(device)


class OurAnce(OurStar):
    """The pair of each query's positive with its own negative, without weight decay."""

    decay = 0.0

    def _loss(self, queries_BD: torch.Tensor, documents_SD: torch.Tensor) -> tuple[torch.Tensor, dict[str, float]]:
        scores_BS = queries_BD @ documents_SD.T
        own_BS = torch.zeros_like(scores_BS, dtype=torch.bool)
        own_BS[:, len(scores_BS) :].fill_diagonal_(True)
        return ranknet(scores_BS, own_BS), {}


class TheirAnce:
    """Steps over triplets: query i, document i, document i + Q."""

    def __init__(self, peer: Peer, model: Any, work: Work, batch: int, *, bf16: bool) -> None:
        self.model, self.device, self.bf16 = model, work.device, bf16
        length = work.documents.max_length
        caches = []
        for name, tokens, length_limit in (("train-query", work.queries, QUERY_LENGTH), ("passages", work.documents, length)):
            write_records(work.folder / f"ance-{name}", tokens, length_limit)
            caches.append(peer.util.EmbeddingCache(str(work.folder / f"ance-{name}")))
            caches[-1].open()
        count = len(work.queries)
        lines = [f"{row}\t{row}\t{count + row}\n" for row in range(count)]
        lengths = Namespace(max_query_length=QUERY_LENGTH, max_seq_length=length)
        triplets = peer.data.GetTripletTrainingDataProcessingFn(lengths, *caches)
        self.loader = DataLoader(peer.util.StreamingDataset(lines, triplets), batch_size=batch)
        self.batches = iter(self.loader)
        self.optimizer = peer.lamb.Lamb(model.parameters(), lr=LR, eps=1e-8)

    def backward(self, step: int) -> float:
        if not step:
            self.batches = iter(self.loader)
        batch = tuple(tensor.to(self.device) for tensor in next(self.batches))
        names = ["query_ids", "attention_mask_q", "input_ids_a", "attention_mask_a", "input_ids_b", "attention_mask_b"]
        inputs = {name: batch[place].long() for name, place in zip(names, (0, 1, 3, 4, 6, 7), strict=True)}
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16):
            loss = self.model(**inputs)[0]
        loss.backward()
        return float(loss.item())

    def step(self, step: int) -> None:
        self.backward(step)
        nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        self.optimizer.step()
        self.model.zero_grad()


def paired(theirs: Any, ours: Encoder) -> list[tuple[nn.Parameter, nn.Parameter]]:
    """The parameters of both that are the same; its classifier is in no loss."""
    assert ours.head is not None
    our_parameters = dict(ours.transformer.named_parameters())
    pairs = [(parameter, our_parameters[name]) for name, parameter in theirs.roberta.named_parameters()]
    heads = zip([*theirs.embeddingHead.parameters(), *theirs.norm.parameters()], ours.head.parameters(), strict=True)
    return pairs + list(heads)


def apart(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """How far the second of each pair is from the first, of all the first's norm."""
    first, second = (torch.cat([pair[side].flatten() for pair in pairs]).double() for side in (0, 1))
    return float((first - second).norm() / first.norm())


def same_steps(peer: Peer, work: Work, batch: int) -> str:
    """AssertionError unless loss, gradients, and what Lamb changes are the same."""
    theirs = ance_model(peer, work.device).eval()
    ours = our_model(theirs, work.device).eval()
    our_steps, their_steps = OurAnce(ours, work, batch, torch.float32), TheirAnce(peer, theirs, work, batch, bf16=False)
    losses = our_steps.backward(0), their_steps.backward(0)
    np.testing.assert_allclose(*losses, rtol=1e-4)
    pairs = paired(theirs, ours)
    graded = [
        (our_weight, their_weight) for our_weight, their_weight in pairs if our_weight.grad is not None and their_weight.grad is not None
    ]
    gradients = apart([(our_weight.grad, their_weight.grad) for our_weight, their_weight in graded])  # type: ignore[misc]
    assert gradients < 1e-3, f"gradients differ by {gradients:.1e} of their norm"
    former_weights = [our_weight.detach().clone() for our_weight, _ in pairs]
    theirs.zero_grad()
    for step in range(CHECKED_STEPS):
        our_steps.step(step)
        their_steps.step(step)
    weight_changes = [
        (our_weight.detach() - former, their_weight.detach() - former)
        for (our_weight, their_weight), former in zip(pairs, former_weights, strict=True)
    ]
    changes = apart(weight_changes)
    assert changes < 0.02, f"changes of weights differ by {changes:.1e} of their norm"
    return (
        f"Step: loss {losses[0]:.6f}, ANCE's {losses[1]:.6f}; gradients differ by {gradients:.0e} of their norm, the changes of "
        f"{CHECKED_STEPS} steps of Lamb by {changes:.0e}"
    )


def quiet(run: Callable[[], Any]) -> Any:
    """What `run` returns; what it prints is lost."""
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        return run()


def their_inferencer(peer: Peer, model: Any, corpus: Corpus) -> tuple[dict[str, list[str]], float]:
    """Each training query's negatives, best first, and nDCG@10 on dev."""
    ance, device = corpus.folder / "ance", next(model.parameters()).device
    peer.inferencer.faiss.omp_set_num_threads = lambda _: None  # 16, for torch, too
    peer.inferencer.load_model = lambda *_: (None, None, Namespace(module=model, eval=model.eval))  # type: ignore[attr-defined]
    args = Namespace(data_dir=str(ance), output_dir=str(ance), device=device, local_rank=-1, rank=0, per_gpu_eval_batch_size=128)
    args.max_query_length, args.max_seq_length = QUERY_LENGTH, open_tokens(corpus.folder / "tokens/documents").max_length
    args.inference, args.topk_training, args.negative_sample, args.ann_chunk_factor = False, DEPTH, DEPTH - 1, 1
    args.ann_measure_topk_mrr = True  # its one way of taking negatives that draws none of them
    relevant = {row: row for row in range(corpus.queries)}, {row: {corpus.queries + row: 1} for row in range(DEV)}
    ndcg, _ = quiet(lambda: peer.inferencer.generate_new_ann(args, 0, "", *relevant, 0))
    lines = (ance / "ann_training_data_0").read_text(encoding="utf-8").splitlines()
    rows = [line.split("\t") for line in lines]
    return {f"{int(query):08}": [f"{int(name):08}" for name in names.split(",")] for query, _, names in rows}, float(ndcg)


def our_inferencer(tower: Encoder, corpus: Corpus, precision: str) -> tuple[dict[str, list[str]], float]:
    """The same by our stages, from nothing that they kept."""
    for name in (".retemper", "embeddings", "negatives", "run", "encoder"):
        shutil.rmtree(corpus.folder / name, ignore_errors=True)
    (corpus.folder / "encoder").mkdir()
    encoder = parse_encoder(ENCODER).folder
    assert encoder is not None
    save_towers(Towers(tower, tower), load_tokenizer(encoder), corpus.folder / "encoder")
    parameters = f"encode: {{precision: {precision}}}\nretrieve: {{precision: {precision}, depth: 100}}\n"
    parameters += f"mine: {{ance: {{search: embeddings, precision: {precision}, depth: {DEPTH - 1}}}}}\n"
    (corpus.folder / "params.yaml").write_text(parameters, encoding="utf-8")
    os.chdir(corpus.folder)
    freeze_parameters(corpus.folder)
    encoder_option = "--encoder encoder"
    run_stage("encode", f"{encoder_option} --tokens tokens/documents --out embeddings")
    run_stage("retrieve", f"{encoder_option} --name ance --embeddings embeddings --tokens tokens --out run")
    options = "--documents tokens/documents --queries tokens/queries/train --qrels train.parquet --out negatives"
    run_stage("mine", f"{encoder_option} --name ance --vectors embeddings {options}")
    mined = read_table(Path("negatives/train.parquet"), RANKED).to_pydict()
    lists: dict[str, list[str]] = {}
    for query, name in zip(mined["query"], mined["doc"], strict=True):
        lists.setdefault(query, []).append(name)
    return lists, dev_ndcg(corpus)


def run_stage(name: str, options: str) -> None:
    sys.argv = [name, *options.split()]
    quiet(importlib.import_module(f"tasks.{name}.__main__").main)


def dev_ndcg(corpus: Corpus) -> float:
    ranked: dict[str, list[str]] = {}
    for line in Path("run/dev.trec").read_text(encoding="utf-8").splitlines():
        query, _, name, *_ = line.split()
        ranked.setdefault(query, []).append(name)
    measures, relevant = parse(["nDCG@10"], 1), {f"{row:08}": {f"{corpus.queries + row:08}": 1} for row in range(DEV)}
    return means(measures, per_query(measures, relevant, ranked))["nDCG@10"]


def same_negatives(peer: Peer, corpus: Corpus, device: torch.device) -> str:
    """AssertionError unless each query has the same negatives, but for pairs whose scores are within rounding, and nDCG@10 is the same."""
    model = trained_model(peer, device)
    theirs, their_ndcg = their_inferencer(peer, model, corpus)
    ours, our_ndcg = our_inferencer(our_model(model, device).eval(), corpus, "fp32")
    assert theirs.keys() == ours.keys()
    assert all(len(theirs[query]) == len(ours[query]) == DEPTH - 1 for query in theirs)
    common = np.mean([len(set(theirs[query]) & set(ours[query])) / (DEPTH - 1) for query in theirs])
    places = np.mean(
        [np.mean([their_doc == our_doc for their_doc, our_doc in zip(theirs[query], ours[query], strict=True)]) for query in theirs]
    )
    assert common > 0.9995, f"{common:.2%} of the negatives are the same"
    assert abs(our_ndcg - their_ndcg) < 1e-3, f"nDCG@10 {our_ndcg:.4f}, ANCE's {their_ndcg:.4f}"
    return (
        f"Inferencer: {common:.3%} of {len(ours) * (DEPTH - 1):,} negatives are ANCE's, {places:.2%} at the same rank; "
        f"dev nDCG@10 {our_ndcg:.4f}, ANCE's {their_ndcg:.4f}"
    )


def seconds_of(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    values = {"steps": 5, "batch": 32, "length": 120, "queries": 1000, "documents": 4000, "repeat": 3}
    for name, value in values.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    logging.disable(logging.INFO)
    warnings.filterwarnings("ignore")  # of its old calls, at each step
    device = choose_device(Runtime())
    dtype, peer = compute_dtype(device, "bf16"), Peer.of(args.folder.absolute())
    kinds = {str(kind).removeprefix("torch."): kind for kind in (torch.float32, dtype)}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "steps").mkdir()
        work = Work.of((max(args.steps, CHECKED_STEPS) + 1) * args.batch, args.length, folder / "steps", device)
        corpus = Corpus.of(folder / "corpus", args.queries, args.documents, args.length)
        checks = [same_steps(peer, work, args.batch), same_negatives(peer, corpus, device)]
        runs: dict[tuple[str, str], Callable[[], float]] = {}
        for name, kind in kinds.items():
            theirs = ance_model(peer, device).train()
            ours = OurAnce(our_model(theirs, device).train(), work, args.batch, kind)
            ance = TheirAnce(peer, theirs, work, args.batch, bf16=kind == torch.bfloat16)
            runs["step", f"retemper, {name}"] = lambda ours=ours: timed(ours.step, args.steps, device)
            runs["step", f"ANCE, {name}"] = lambda ance=ance: timed(ance.step, args.steps, device)
            tower, precision = our_model(trained_model(peer, device), device).eval(), "fp32" if kind == torch.float32 else "bf16"
            runs["inferencer", f"retemper, {name}"] = lambda tower=tower, precision=precision: seconds_of(
                lambda: our_inferencer(tower, corpus, precision)
            )
        encoder = trained_model(peer, device)
        runs["inferencer", "ANCE, float32"] = lambda: seconds_of(lambda: their_inferencer(peer, encoder, corpus))
        seconds = dict.fromkeys(runs, float("inf"))
        for _ in range(args.repeat):
            for key, run in runs.items():
                seconds[key] = min(seconds[key], run())
        os.chdir("/")  # out of the folder, which is removed
    works = {
        "step": f"ANCE step, {args.batch} triplets of at most {args.length} tokens, Lamb",
        "inferencer": f"Inferencer: {args.documents:,} passages, {args.queries:,} + {DEV} queries, top {DEPTH}",
    }
    show(device, checks, works, seconds, best=f"retemper, {list(kinds)[-1]}")


if __name__ == "__main__":
    main()
