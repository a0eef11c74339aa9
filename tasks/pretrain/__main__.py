"""One pre-training: encoder in, encoder out."""

from tasks.core.models.bi_encoder import save_towers
from tasks.core.models.mlm_head import find_head, save_head
from tasks.core.models.projector import save_projector
from tasks.core.stage.devices import choose_device, compute_dtype, hardware, kept_tokens, read_runtime
from tasks.core.stage.entry import parser, stage
from tasks.core.stage.files import new_folder, write_json
from tasks.core.stage.params import load
from tasks.core.stage.scratch import code_digest, finish, scratch_folder, work_digest
from tasks.core.text.chunks import open_chunks
from tasks.core.text.tokenizer import load_tokenizer
from tasks.core.training.loop import Schedule, fit
from tasks.core.training.optimizers import make_optimizer
from tasks.pretrain.batches import steps_of, usable_rows
from tasks.pretrain.model import check_length, initial_head, initial_towers, make_pretrainer
from tasks.pretrain.params import Pretrain
from tasks.pretrain.step import Work, make_step
from tasks.pretrain.words import read_vocabulary


def main() -> None:
    arguments = parser(
        __doc__ or "",
        init="encoder folder to start from",
        chunks="folder of chunks",
        encoder="encoder folder to write",
        state="optimizer state to write; a round that starts here begins at step 0",
        curves="training curves to write",
    )
    arguments.add_argument("--name", required=True, help="the pre-training")
    args = arguments.parse_args()
    where = f"pretrain.{args.name}"
    params, runtime = load(Pretrain, f"pretrain.{args.name}"), read_runtime()
    device = choose_device(runtime)
    dtype = compute_dtype(device, params.precision)
    chunks, tokenizer = open_chunks(args.chunks), load_tokenizer(args.init)
    vocabulary, rows = read_vocabulary(tokenizer, str(args.init)), usable_rows(chunks, params, f"params.yaml: {where}")
    print(f"{where}: {len(rows):,} chunks, {min(len(rows), params.batch_texts):,} texts per step")
    towers = initial_towers(args.init, params.scratch, params.seed)
    transformer = towers.document.transformer
    check_length(chunks, transformer)
    head, new = initial_head(args.init, transformer, params) if params.masked else (None, False)
    if new:
        print(f"{where}: a new MLM head, tied to the word embeddings" + ("" if params.scratch else f": {args.init} has none"))
    module = make_pretrainer(towers, head, params)
    module.to(device).train()
    optimizer = make_optimizer(params.optimizer, module, params.lr, params.weight_decay)
    digest = work_digest(params.model_dump(), str(dtype), hardware(device), code_digest("pretrain"), args.init, args.chunks)
    scratch = scratch_folder(f"pretrain-{args.name}", digest)
    steps = steps_of(rows, params)
    what = f"pretrain {args.name} ({device.type}, {str(dtype).removeprefix('torch.')})"
    with new_folder(args.curves) as curves, new_folder(args.encoder) as encoder:
        work = Work(device, dtype, kept_tokens(runtime, device, module, transformer.config), chunks.tokens.pad)
        backward = make_step(module, chunks, rows, vocabulary, params, work)
        fit(module, optimizer, backward, Schedule(steps, params.warmup, params.clip), scratch, curves, runtime.checkpoint_seconds, what)
        write_json(curves / "pretrain.json", {"steps": steps, "chunks": len(rows), "new_head": new})
        write_json(args.state / "state.json", {"steps": 0})
        module.to("cpu")
        save_towers(towers, tokenizer, encoder)
        kept = find_head(args.init) if params.scratch is None else {}  # where none is trained: kept for later pre-trainings
        if tensors := kept if head is None else head.state_dict():
            save_head(tensors, encoder)
        if module.projector is not None:
            save_projector(module.projector, encoder)
    finish(scratch)


if __name__ == "__main__":
    with stage():
        main()
