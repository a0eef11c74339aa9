"""One round: encoder in, encoder out."""

from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from torch import nn

from tasks.core.models.bi_encoder import average_with, load_towers, odd_temperature, save_towers, truncate
from tasks.core.models.projector import add_projector
from tasks.core.stage.devices import choose_device, compute_dtype, hardware, kept_tokens, read_runtime
from tasks.core.stage.entry import parser, stage
from tasks.core.stage.files import new_folder, read_json, write_json
from tasks.core.stage.params import load
from tasks.core.stage.scratch import code_digest, finish, scratch_folder, work_digest
from tasks.core.text.tokenizer import load_tokenizer
from tasks.core.text.tokens import open_tokens
from tasks.core.training.loop import Validation, fit, load_state, read_state, save_state
from tasks.core.training.optimizers import make_optimizer
from tasks.core.training.replay import pass_on, replayed_from
from tasks.train.batches import check_training_set, read_training_set, sampled_queries, schedule_of, seen_before, steps_of, with_weights
from tasks.train.frozen import Frozen
from tasks.train.guide import make_guide
from tasks.train.lora import adapt, merge
from tasks.train.params import Round
from tasks.train.step import make_step
from tasks.train.validation import MEASURE, hold_out, make_validation


def main() -> None:
    arguments = parser(
        __doc__ or "",
        init="encoder folder to start from",
        negatives="folder of hard negatives",
        tokens="token folder",
        corpus="corpus folder, for the training qrels",
        encoder="encoder folder to write",
        state="optimizer state to write",
        curves="training curves to write",
    )
    arguments.add_argument("--name", required=True, help="the round")
    arguments.add_argument("--weights", type=Path, help="folder of the training pairs' weights, whose table is empty without any")
    arguments.add_argument("--init-state", type=Path, help="optimizer state of --init, for a round that carries it on")
    args = arguments.parse_args()
    params, runtime = load(Round, f"rounds.{args.name}"), read_runtime()
    device = choose_device(runtime)
    dtype = compute_dtype(device, params.precision)
    documents, queries = open_tokens(args.tokens / "documents"), open_tokens(args.tokens / "queries" / "train")
    towers, tokenizer = load_towers(args.init), load_tokenizer(args.init)
    if params.width is not None:
        truncate(towers, params.width, f"params.yaml: rounds.{args.name}.width")
    if params.adapters:
        print(f"{args.name}: {adapt(towers, params.adapters, params.seed, f'params.yaml: rounds.{args.name}.lora')}")
    if params.projector != "none":
        print(f"{args.name}: projector {params.projector}, {add_projector(towers, params.projector, args.init, params.seed)}")
    module = nn.ModuleDict({"document": towers.document} if towers.shared else {"document": towers.document, "query": towers.query})
    module.to(device).train()
    optimizer = make_optimizer(params.optimizer, module, params.lr, params.weight_decay)
    qrels = args.corpus / "qrels" / "train.parquet"
    digest = work_digest(
        params.model_dump(),
        str(dtype),
        hardware(device),
        code_digest("train"),
        args.init,
        args.negatives,
        documents.folder,
        queries.folder,
        qrels,
        *([args.weights] if args.weights else []),
        *([args.init_state] if params.optimizer_from != "fresh" or params.replay < 1 else []),
        *([version("peft")] if params.adapters else []),
    )
    scratch = scratch_folder(f"train-{args.name}", digest)
    with new_folder(args.curves) as curves, new_folder(args.state) as state, new_folder(args.encoder) as encoder:
        steps = before = 0
        order: dict[str, int] = {}
        if params.steps != 0:
            table, only_positives = args.negatives / "train.parquet", params.hard_negatives_from == "positives"
            everything = read_training_set(queries, documents, qrels, table, params.window, scratch, only_positives=only_positives)
            if args.weights:
                everything = with_weights(everything, queries, documents, qrels, weights=args.weights / "train.parquet")
            queries_N, line = replayed_from(
                args.init_state,
                everything.queries,
                queries.folder / "ids.parquet",
                share=params.replay,
                seed=params.split_seed,
                key=f"rounds.{args.name}",
            )
            if line:
                print(f"{args.name}: {line}")
            data, validation = sampled_queries(replace(everything, queries=queries_N), params), None
            if params.validate_every:
                data, sample = hold_out(data, params)
                held, ranked = len(sample.queries), len(sample.documents)
                print(f"{args.name}: validation: {held:,} training queries are held out, and rank {ranked:,} documents")
                measure = make_validation(towers, queries, documents, sample, device, dtype)
                validation = Validation(MEASURE, measure, params.validate_every, params.keep == "best", params.patience)
            print(check_training_set(data, params))
            if line := odd_temperature(towers.document.shape, params.temperature):
                print(f"{args.name}: {line}")
            steps = steps_of(data, params)
            if args.init_state and (line := seen_before(read_json(args.init_state / "state.json"), data, params)):
                print(f"{args.name}: {line}")
            if params.optimizer_from != "fresh":
                tensors, behind = read_state(args.init_state)
                load_state(tensors, module, optimizer)
                before = behind if params.optimizer_from == "continue" else 0
            schedule = schedule_of(steps, before, params)
            what = f"train {args.name} ({device.type}, {str(dtype).removeprefix('torch.')})"
            guide = None
            if params.guide == "init":
                guide = make_guide(Frozen.of(load_towers(args.init), queries, documents, device, dtype), params.guide_margin)
            kept = kept_tokens(runtime, device, module, towers.document.transformer.config)
            backward = make_step(towers, queries, documents, data, params, kept, device, dtype, before, guide)
            checkpoints = runtime.checkpoint_seconds
            steps = fit(module, optimizer, backward, schedule, scratch, curves, checkpoints, what, validation=validation)
            order = {"seed": params.seed, "queries": (before + steps) * params.batch_queries, "of": len(data.queries)}
        save_state(state, before + steps, module, optimizer, **order)
        if params.steps == 0:
            pass_on(args.init_state, state)
        if params.adapters:
            merge(towers)
        if params.start_share:
            average_with(towers, load_towers(args.init), params.start_share)
        write_json(curves / "round.json", {"steps": steps})  # a round of no steps has no curve, and DVC keeps no empty folder
        texts = {"max_length": documents.max_length, "query_prefix": queries.prefix, "document_prefix": documents.prefix}
        save_towers(towers, tokenizer, encoder, queries.max_length, **texts)
    finish(scratch)


if __name__ == "__main__":
    with stage():
        main()
