"""Negatives of a source, and the known positives of their queries, with a cross-encoder's scores."""

from functools import partial
from itertools import chain

from tasks.core.files import new_folder
from tasks.core.params.runtime import read_runtime
from tasks.core.params.sections import load
from tasks.core.plurals import counted
from tasks.core.stage.entry import parser, stage
from tasks.core.stage.scratch import code_digest, mark_finished, scratch_folder, work_digest
from tasks.core.tables.judgments import ranked_groups
from tasks.core.tables.parquet import read_table, write_table
from tasks.core.tables.schemas import QRELS, RANKED
from tasks.core.text.document import Text
from tasks.core.text.mapped import corpus_texts
from tasks.core.workers.each import machine, open_workers
from tasks.teacher.pairs import filter_by_margin, positives_of, query_ids, replace_scores
from tasks.teacher.params import Teacher
from tasks.teacher.pieces import Model, Pieces, Score


def main() -> None:
    arguments = parser(
        __doc__ or "",
        negatives="folder of the negatives to score",
        reranker="folder of the cross-encoder",
        corpus="corpus folder",
        out="folder of negatives to write",
    )
    arguments.add_argument("--name", required=True, help="the entry of `teacher`")
    args = arguments.parse_args()
    params, text = load(Teacher, f"teacher.{args.name}"), load(Text, "text")
    negatives, documents, window = args.negatives / "train.parquet", args.corpus / "documents.parquet", (1, params.depth)
    names, count = query_ids(ranked_groups(negatives, window))
    positives = positives_of(names, read_table(args.corpus / "qrels" / "train.parquet", QRELS), documents)
    with open_workers(read_runtime()) as workers:
        worker_machine = workers.agreed(partial(machine, workers.runtime, params.precision))
        digest = work_digest(
            params.model_dump(),
            text.model_dump(),
            worker_machine.dtype,
            worker_machine.hardware,
            code_digest("teacher"),
            args.negatives,
            args.reranker,
            documents,
            args.corpus / "queries" / "train.parquet",
            args.corpus / "qrels" / "train.parquet",
        )
        scratch = scratch_folder(f"teacher-{args.name}", digest)
        corpus_texts(args.corpus, text, scratch / "texts.bin")
        model = Model(args.reranker, args.corpus, scratch / "texts.bin", params, text, workers.runtime)
        pieces = Pieces(len(positives) + count, documents, scratch)
        scored = pieces.scored(chain([positives], ranked_groups(negatives, window)), workers, Score(model))
        positives = replace_scores(*next(scored))
        kept_negatives = (filter_by_margin(replace_scores(group, scores), positives, params.absolute_margin) for group, scores in scored)
        with new_folder(args.out) as out:
            write_table(out / "positives.parquet", RANKED, [positives])
            rows = write_table(out / "train.parquet", RANKED, kept_negatives)
    pieces.progress.close()
    print(
        f"teacher {args.name}: {counted(len(positives) + count, 'pairs scored')}, "
        f"{count - rows:,} of {counted(count, 'negatives discarded')}"
    )
    mark_finished(scratch)


if __name__ == "__main__":
    with stage():
        main()
