"""One pre-training: encoder in, encoder out."""

from functools import partial
from pathlib import Path

from tasks.core.files import new_folder, read_json, write_json
from tasks.core.params.runtime import read_runtime
from tasks.core.params.sections import load
from tasks.core.stage.entry import parser, stage
from tasks.core.stage.scratch import code_digest, mark_finished, scratch_folder, work_digest
from tasks.core.training.companions import KNOWN, copy_companions
from tasks.core.training.ranks import open_ranks
from tasks.pretrain.params import Pretrain
from tasks.pretrain.work import Outs, pretrain


def main() -> None:
    arguments = parser(
        __doc__ or "",
        init="encoder folder to start from",
        chunks="folder of chunks",
        encoder="encoder folder to write",
        state="optimizer state to write; a round that starts here begins at step 0",
        curves="training curves to write",
    )
    arguments.add_argument("--init-state", type=Path, help="optimizer state of --init: which training queries its weights know")
    arguments.add_argument("--name", required=True, help="the pre-training")
    args = arguments.parse_args()
    params = load(Pretrain, f"pretrain.{args.name}")
    with open_ranks(read_runtime(), params.precision) as ranks:
        arithmetic = ranks.machine.dtype, ranks.machine.hardware
        digest = work_digest(params.model_dump(), *arithmetic, code_digest("pretrain"), args.init, args.chunks, *ranks.counted)
        scratch = scratch_folder(f"pretrain-{args.name}", digest)
        with new_folder(args.curves) as curves, new_folder(args.encoder) as encoder:
            function = partial(pretrain, args, params, ranks.runtime, scratch, Outs(encoder, curves))
            ranks.run(function, scratch=scratch, outs=(curves, encoder), what=f"pretrain {args.name}")
            write_state(None if params.scratch else args.init_state, args.state)
    mark_finished(scratch)


def write_state(before: Path | None, state: Path) -> None:
    """Write the state of a pre-trained model: no steps, and the training queries that its first weights knew, by their state `before`."""
    first = read_json(before / "state.json") if before else {}
    write_json(state / "state.json", first | {"steps": 0})
    copy_companions(before, state, (KNOWN,))


if __name__ == "__main__":
    with stage():
        main()
