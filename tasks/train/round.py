"""One round, from the folders it reads to the folders it writes."""

from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from tasks.core.files import read_json, write_json
from tasks.core.machine.devices import compute_dtype, kept_tokens
from tasks.core.models.bi_encoder import Towers, interpolate_weights, load_towers, save_towers, temperature_warning, truncate
from tasks.core.models.projector import add_projector
from tasks.core.params.runtime import Runtime
from tasks.core.tokens.tokenizer import load_tokenizer
from tasks.core.training.checkpoints import load_state, read_state, save_state
from tasks.core.training.companions import copy_companions
from tasks.core.training.compute import Compute
from tasks.core.training.loop import Journal, Validation, fit
from tasks.core.training.optimizers import make_optimizer
from tasks.core.training.replay import known_queries
from tasks.train.batches import check_training_set, schedule_of, seen_before, steps_of
from tasks.train.frozen import Frozen
from tasks.train.guide import make_guide
from tasks.train.inputs import Inputs, read_data, steps_before
from tasks.train.lora import adapt, merge
from tasks.train.params import Round
from tasks.train.step import make_step
from tasks.train.validation import MEASURE, make_validation, trained_before

if TYPE_CHECKING:
    from tasks.core.workers.gang import Gang


@dataclass(frozen=True)
class Outs:
    """Folders to write into, empty at first."""

    encoder: Path
    state: Path
    curves: Path


def train_round(
    args: Namespace, params: Round, runtime: Runtime, scratch: Path, outs: Outs, device: torch.device, gang: "Gang | None" = None
) -> None:
    """Train the round that the command line `args` names, alone or as a rank of `gang`. In a gang, only the first rank writes."""
    name, dtype = args.name, compute_dtype(device, params.precision)
    inputs = Inputs(args.tokens, args.corpus, args.negatives, args.weights, args.init_state)
    documents, queries = inputs.documents(), inputs.queries()
    towers, tokenizer = load_towers(args.init), load_tokenizer(args.init)
    shape_towers(towers, args, params)
    module = nn.ModuleDict({"document": towers.document} if towers.shared else {"document": towers.document, "query": towers.query})
    module.to(device).train()
    optimizer = make_optimizer(params.optimizer, module, params.lr, params.weight_decay)
    steps = before = 0
    state = read_json(args.init_state / "state.json") if args.init_state else {}
    query_order = {key: value for key, value in state.items() if key != "steps"}
    if params.steps != 0:
        data = read_data(inputs, params, queries, documents, scratch=scratch, key=f"rounds.{name}")
        for line in data.notes:
            print(f"{name}: {line}")
        print(check_training_set(data.training, params))
        if line := temperature_warning(towers.document.shape, params.temperature):
            print(f"{name}: {line}")
        steps = steps_of(data.training, params)
        if line := seen_before(state, data.training, params):
            print(f"{name}: {line}")
        held_out = {}
        if data.held_out is not None:
            if line := trained_before(state, data.held_out, params, known_queries(args.init_state, queries.folder / "ids.parquet")):
                print(f"{name}: {line}")
            else:
                held_out = {"held_out": data.held_out.digest}
        if params.optimizer_from != "fresh":
            tensors, behind = read_state(args.init_state)
            load_state(tensors, module, optimizer)
            before = steps_before(params, behind)
        schedule = schedule_of(steps, before, params)
        label = f"train {name} ({device.type}, {str(dtype).removeprefix('torch.')})"
        validation = guide = None
        if data.held_out is not None and params.validate_every:
            measure = make_validation(towers, queries, documents, data.held_out, device, dtype)
            validation = Validation(MEASURE, measure, params.validate_every, params.keep == "best", params.patience)
        if params.guide == "init":
            guide = make_guide(Frozen.of(load_towers(args.init), queries, documents, device, dtype), params.guide_margin)
        compute = Compute(device, dtype, kept_tokens(runtime, device, module, towers.document.transformer.config), gang)
        training_steps = make_step(towers, queries, documents, data.training, params, compute, before, guide)
        journal = Journal(label, scratch, outs.curves, runtime.checkpoint_seconds)
        steps = fit(module, optimizer, training_steps, schedule, journal, validation=validation, gang=gang)
        if steps:
            drawn = (before + steps) * params.batch_queries
            query_order = {"seed": params.seed, "queries": drawn, "of": len(data.training.queries)} | held_out
    if gang is not None and not gang.is_first:
        return
    save_state(outs.state, before + steps, module, optimizer, **query_order)
    if steps == 0:  # also if validation kept the first weights: what they know is what the initial model knew
        copy_companions(args.init_state, outs.state)
    if params.adapters:
        merge(towers)
    if params.start_share and params.steps != 0:
        interpolate_weights(towers, load_towers(args.init), params.start_share)
    write_json(outs.curves / "round.json", {"steps": steps})  # without steps there is no curve, and DVC does not keep an empty folder
    texts = {"max_length": documents.max_length, "query_prefix": queries.prefix, "document_prefix": documents.prefix}
    save_towers(towers, tokenizer, outs.encoder, queries.max_length, **texts)


def shape_towers(towers: Towers, args: Namespace, params: Round) -> None:
    """Give the initial towers, in place, the width, adapters, and projector that the round asks for."""
    if params.width is not None:
        truncate(towers, params.width, f"params.yaml: rounds.{args.name}.width")
    if params.adapters:
        line = adapt(towers, params.adapters, params.seed, f"params.yaml: rounds.{args.name}.lora")
        print(f"{args.name}: {line}")
    if params.projector != "none":
        line = add_projector(towers, params.projector, args.init, params.seed)
        print(f"{args.name}: projector {params.projector}, {line}")
