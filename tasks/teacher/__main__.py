"""Negatives of a source, and the known positives of their queries, with a cross-encoder's scores."""

from collections.abc import Iterator

import pyarrow as pa

from tasks.core.models.cross_encoder import load_cross_encoder
from tasks.core.stage.devices import choose_device, compute_dtype, hardware, read_runtime
from tasks.core.stage.entry import parser, stage
from tasks.core.stage.files import new_folder
from tasks.core.stage.params import load
from tasks.core.stage.scratch import code_digest, finish, scratch_folder, work_digest
from tasks.core.tables.judgments import ranked_groups
from tasks.core.tables.parquet import read_table, write_table
from tasks.core.tables.schemas import QRELS, RANKED
from tasks.core.text.document import Text
from tasks.core.text.mapped import corpus_texts, query_texts
from tasks.teacher.pairs import apart, asked, positives_of, rescored
from tasks.teacher.params import Teacher
from tasks.teacher.pieces import Pieces


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
    params, text, runtime = load(Teacher, f"teacher.{args.name}"), load(Text, "text"), read_runtime()
    device = choose_device(runtime)
    dtype = compute_dtype(device, params.precision)
    model = load_cross_encoder(args.reranker, params.max_length, params.batch_tokens, device, dtype)
    negatives, documents, window = args.negatives / "train.parquet", args.corpus / "documents.parquet", (1, params.depth)
    names, count = asked(ranked_groups(negatives, window))
    positives = positives_of(names, read_table(args.corpus / "qrels" / "train.parquet", QRELS), documents)
    digest = work_digest(
        params.model_dump(),
        text.model_dump(),
        str(dtype),
        hardware(device),
        code_digest("teacher"),
        args.negatives,
        args.reranker,
        args.corpus,
    )
    scratch = scratch_folder(f"teacher-{args.name}", digest)
    texts = corpus_texts(args.corpus, text, scratch / "texts.bin", lasting=True)
    queries = dict(query_texts(args.corpus, "train"))
    pieces = Pieces(len(positives) + count, documents, lambda query, row: (queries[query], texts[row]), model.scores, scratch)
    positives = rescored(positives, pieces.of(positives))

    def kept() -> Iterator[pa.Table]:
        for group in ranked_groups(negatives, window):
            yield apart(rescored(group, pieces.of(group)), positives, params.absolute_margin)

    with new_folder(args.out) as out:
        write_table(out / "positives.parquet", RANKED, [positives])
        rows = write_table(out / "train.parquet", RANKED, kept())
    pieces.progress.close()
    print(f"teacher {args.name}: {len(positives) + count:,} pairs scored, {count - rows:,} of {count:,} negatives discarded")
    finish(scratch)


if __name__ == "__main__":
    with stage():
        main()
