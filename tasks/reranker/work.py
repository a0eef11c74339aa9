"""One cross-encoder, from the folders it reads to the folders it writes."""

from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from tasks.core.files import write_json
from tasks.core.machine.devices import best_batch_tokens, compute_dtype, most_tokens
from tasks.core.models.cross_encoder import CrossEncoder, load_classifier, longest_pair, pair_tokenizer
from tasks.core.params.runtime import Runtime
from tasks.core.text.document import Text
from tasks.core.text.mapped import corpus_texts, query_texts
from tasks.core.training.loop import Journal, Schedule, fit
from tasks.core.training.optimizers import make_optimizer
from tasks.core.training.ranks import first_rank_first
from tasks.reranker.groups import read_groups
from tasks.reranker.params import Reranker
from tasks.reranker.step import make_step

if TYPE_CHECKING:
    from tasks.core.workers.gang import Gang


@dataclass(frozen=True)
class Work:
    """The settings and folders of a training. It writes to `out` and `curves`, which are empty at first."""

    args: Namespace
    params: Reranker
    text: Text
    runtime: Runtime
    source: Path
    scratch: Path
    out: Path
    curves: Path


def train(work: Work, device: torch.device, gang: "Gang | None" = None) -> None:
    """Train on `device`, alone or as a rank of `gang`. In a gang, only the first rank writes. Without steps, the model is only saved."""
    params, args, scratch = work.params, work.args, work.scratch
    model = load_classifier(work.source, params.seed if params.head == "new" else None)
    tokenizer = pair_tokenizer(model, work.source)
    if params.steps:
        dtype = compute_dtype(device, params.precision)
        best = best_batch_tokens(device, dtype, gradients=True)
        batch_tokens = params.batch_tokens or (min(best, most_tokens(device, model.config)) if device.type == "cuda" else best)
        longest = longest_pair(model, tokenizer, params.max_length)
        encoder = CrossEncoder(model.to(device).train(), tokenizer, longest, batch_tokens, device)
        groups = read_groups(args.corpus, args.negatives / "train.parquet", params.window, work.text, scratch, near=args.near)
        with first_rank_first(gang):
            texts = corpus_texts(args.corpus, work.text, scratch / "texts.bin")
        queries = [query for _, query in query_texts(args.corpus, "train")]
        optimizer = make_optimizer("adamw", model, params.lr, params.weight_decay)
        training_steps = make_step(encoder, queries, texts, groups, params, dtype, gang)
        label = f"reranker {args.name} ({device.type}, {str(dtype).removeprefix('torch.')})"
        schedule = Schedule(params.steps, params.warmup, params.clip)
        fit(model, optimizer, training_steps, schedule, Journal(label, scratch, work.curves, work.runtime.checkpoint_seconds), gang=gang)
    if gang is not None and not gang.is_first:
        return
    write_json(work.curves / "round.json", {"steps": params.steps})
    model.save_pretrained(work.out)
    tokenizer.save_pretrained(work.out)
