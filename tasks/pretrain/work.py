"""One pre-training, from the folders it reads to the folders it writes."""

from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from tasks.core.files import write_json
from tasks.core.machine.devices import compute_dtype, kept_tokens
from tasks.core.models.bi_encoder import save_towers
from tasks.core.models.mlm_head import find_head, save_head
from tasks.core.models.projector import save_projector
from tasks.core.params.runtime import Runtime
from tasks.core.plurals import counted
from tasks.core.tokens.chunks import open_chunks
from tasks.core.tokens.tokenizer import load_tokenizer
from tasks.core.training.loop import Journal, Schedule, fit
from tasks.core.training.optimizers import make_optimizer
from tasks.pretrain.batches import steps_of, usable_rows
from tasks.pretrain.model import check_length, initial_head, initial_towers, make_pretrainer
from tasks.pretrain.params import Pretrain
from tasks.pretrain.step import Work, make_step
from tasks.pretrain.words import read_vocabulary

if TYPE_CHECKING:
    from tasks.core.workers.gang import Gang


@dataclass(frozen=True)
class Outs:
    """Folders to write into, empty at first."""

    encoder: Path
    curves: Path


def pretrain(
    args: Namespace, params: Pretrain, runtime: Runtime, scratch: Path, outs: Outs, device: torch.device, gang: "Gang | None" = None
) -> None:
    """Run the pre-training that the command line `args` names, alone or as a rank of `gang`. In a gang, only the first rank writes."""
    where, dtype = f"pretrain.{args.name}", compute_dtype(device, params.precision)
    chunks, tokenizer = open_chunks(args.chunks), load_tokenizer(args.init)
    vocabulary, rows = read_vocabulary(tokenizer, str(args.init)), usable_rows(chunks, params, f"params.yaml: {where}")
    print(f"{where}: {counted(len(rows), 'chunks')}, {counted(min(len(rows), params.batch_texts), 'texts per step')}")
    towers = initial_towers(args.init, params.scratch, params.seed)
    transformer = towers.document.transformer
    check_length(chunks, transformer)
    head, is_new = initial_head(args.init, transformer, params) if params.masked else (None, False)
    if is_new:
        print(f"{where}: a new MLM head, tied to the word embeddings" + ("" if params.scratch else f": {args.init} has none"))
    module = make_pretrainer(towers, head, params)
    module.to(device).train()
    optimizer = make_optimizer(params.optimizer, module, params.lr, params.weight_decay)
    steps = steps_of(rows, params)
    label = f"pretrain {args.name} ({device.type}, {str(dtype).removeprefix('torch.')})"
    work = Work(device, dtype, kept_tokens(runtime, device, module, transformer.config), chunks.tokens.pad, gang)
    training_steps = make_step(module, chunks, rows, vocabulary, params, work)
    schedule = Schedule(steps, params.warmup, params.clip)
    fit(module, optimizer, training_steps, schedule, Journal(label, scratch, outs.curves, runtime.checkpoint_seconds), gang=gang)
    if gang is not None and not gang.is_first:
        return
    write_json(outs.curves / "pretrain.json", {"steps": steps, "chunks": len(rows), "new_head": is_new})
    module.to("cpu")
    save_towers(towers, tokenizer, outs.encoder)
    inherited = find_head(args.init) if params.scratch is None else {}  # if no head is trained, pass on the one of `init`
    if tensors := inherited if head is None else head.state_dict():
        save_head(tensors, outs.encoder)
    if module.projector is not None:
        save_projector(module.projector, outs.encoder)
