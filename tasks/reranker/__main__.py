"""A cross-encoder in the project's folder form, as is or fine-tuned."""

from functools import partial

from tasks.core.files import new_folder
from tasks.core.params.runtime import read_runtime
from tasks.core.params.sections import load
from tasks.core.sources.downloads import recorded_folder
from tasks.core.stage.entry import parser, stage
from tasks.core.stage.scratch import code_digest, mark_finished, scratch_folder, work_digest
from tasks.core.text.document import Text
from tasks.core.training.ranks import open_ranks, single_worker
from tasks.reranker.params import Reranker
from tasks.reranker.work import Work, train


def main() -> None:
    arguments = parser(
        __doc__ or "",
        negatives="folder of negatives to train on",
        corpus="corpus folder",
        near="file of the documents' near-duplicates",
        out="folder of the cross-encoder to write",
        curves="training curves to write",
    )
    arguments.add_argument("--name", required=True, help="the entry of `rerankers`")
    args = arguments.parse_args()
    params, text, runtime = load(Reranker, f"rerankers.{args.name}"), load(Text, "text"), read_runtime()
    source = recorded_folder(params.source, f"rerankers.{args.name}")
    with open_ranks(runtime if params.steps else single_worker(runtime), params.precision) as ranks:
        digest = work_digest(
            params.model_dump(),
            text.model_dump(),
            ranks.machine.dtype,
            ranks.machine.hardware,
            code_digest("reranker"),
            source,
            args.negatives,
            args.corpus / "documents.parquet",
            args.corpus / "queries" / "train.parquet",
            args.corpus / "qrels" / "train.parquet",
            args.near,
            *ranks.counted,
        )
        scratch = scratch_folder(f"reranker-{args.name}", digest)
        with new_folder(args.curves) as curves, new_folder(args.out) as out:
            work = Work(args, params, text, ranks.runtime, source, scratch, out, curves)
            ranks.run(partial(train, work), scratch=scratch, outs=(curves, out), what=f"reranker {args.name}")
    mark_finished(scratch)


if __name__ == "__main__":
    with stage():
        main()
