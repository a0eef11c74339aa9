"""One round: encoder in, encoder out."""

from functools import partial
from pathlib import Path

from tasks.core.files import new_folder
from tasks.core.params.runtime import read_runtime
from tasks.core.params.sections import load
from tasks.core.stage.entry import parser, stage
from tasks.core.stage.scratch import code_digest, library_version, mark_finished, scratch_folder, work_digest
from tasks.core.training.ranks import open_ranks, single_worker
from tasks.train.params import Round
from tasks.train.round import Outs, train_round


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
    arguments.add_argument("--weights", type=Path, help="folder of the training pairs' weights; its table is empty if there are none")
    arguments.add_argument("--init-state", type=Path, help="optimizer state of --init, for a round that continues it")
    args = arguments.parse_args()
    params, runtime = load(Round, f"rounds.{args.name}"), read_runtime()
    with open_ranks(runtime if params.steps != 0 else single_worker(runtime), params.precision) as ranks:
        digest = work_digest(
            params.model_dump(),
            ranks.machine.dtype,
            ranks.machine.hardware,
            code_digest("train"),
            args.init,
            args.negatives,
            args.tokens / "documents",
            args.tokens / "queries" / "train",
            args.corpus / "qrels" / "train.parquet",
            *([args.weights] if args.weights else []),
            *([args.init_state] if params.optimizer_from != "fresh" or params.replay < 1 else []),
            *([library_version("peft")] if params.adapters else []),
            *ranks.counted,
        )
        scratch = scratch_folder(f"train-{args.name}", digest)
        with new_folder(args.curves) as curves, new_folder(args.state) as state, new_folder(args.encoder) as encoder:
            function = partial(train_round, args, params, ranks.runtime, scratch, Outs(encoder, state, curves))
            ranks.run(function, scratch=scratch, outs=(curves, state, encoder), what=f"train {args.name}")
    mark_finished(scratch)


if __name__ == "__main__":
    with stage():
        main()
