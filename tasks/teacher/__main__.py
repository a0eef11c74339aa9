"""Negatives of a source, and the known positives of their queries, with a cross-encoder's scores."""

import pyarrow as pa
import pyarrow.compute as pc

from tasks.core.cross_encoder import load_cross_encoder
from tasks.core.devices import choose_device, compute_dtype, read_runtime
from tasks.core.entry import parser, stage
from tasks.core.files import new_folder
from tasks.core.params import load
from tasks.core.records import QRELS, RANKED
from tasks.core.scratch import code_digest, finish, scratch_folder, work_digest
from tasks.core.tables import read_table, write_table
from tasks.core.text import Text
from tasks.core.texts import corpus_texts, query_texts
from tasks.core.tokens import ordinals
from tasks.teacher.pairs import apart, positives_of, rescored
from tasks.teacher.params import Teacher
from tasks.teacher.pieces import score_pieces


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
    negatives = read_table(args.negatives / "train.parquet", RANKED)
    negatives = negatives.filter(pc.less_equal(negatives["rank"], params.depth))
    positives = positives_of(negatives, read_table(args.corpus / "qrels" / "train.parquet", QRELS), args.corpus / "documents.parquet")
    pairs = pa.concat_tables([positives, negatives])
    digest = work_digest(
        params.model_dump(),
        text.model_dump(),
        str(dtype),
        device.type,
        code_digest("core", "teacher"),
        args.negatives,
        args.reranker,
        args.corpus,
    )
    scratch = scratch_folder(f"teacher-{args.name}", digest)
    texts = corpus_texts(args.corpus, text, scratch / "texts.bin")
    queries = dict(query_texts(args.corpus, "train"))
    names, rows = pairs["query"], ordinals(pairs["doc"], args.corpus / "documents.parquet")
    scores = score_pieces(len(pairs), lambda n: (queries[names[n].as_py()], texts[int(rows[n])]), model.scores, scratch)
    with new_folder(args.out) as out:
        positives = rescored(positives, scores[: len(positives)])
        kept = apart(rescored(negatives, scores[len(positives) :]), positives, params.absolute_margin)
        write_table(out / "positives.parquet", RANKED, [positives])
        write_table(out / "train.parquet", RANKED, [kept])
    print(f"teacher {args.name}: {len(scores):,} pairs scored, {len(negatives) - len(kept):,} of {len(negatives):,} negatives left out")
    finish(scratch)


if __name__ == "__main__":
    with stage():
        main()
