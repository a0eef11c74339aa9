"""A cross-encoder in the project's folder form, as is or fine-tuned."""

from tasks.core.models.cross_encoder import CrossEncoder, load_classifier, longest_pair
from tasks.core.sources.downloads import encoder_folder
from tasks.core.stage.devices import best_batch_tokens, choose_device, compute_dtype, hardware, read_runtime
from tasks.core.stage.entry import parser, stage
from tasks.core.stage.files import new_folder, write_json
from tasks.core.stage.params import load
from tasks.core.stage.scratch import code_digest, finish, scratch_folder, work_digest
from tasks.core.text.document import Text
from tasks.core.text.mapped import corpus_texts, query_texts
from tasks.core.text.tokenizer import load_tokenizer
from tasks.core.training.loop import Schedule, fit
from tasks.core.training.optimizers import make_optimizer
from tasks.reranker.groups import read_groups
from tasks.reranker.params import Reranker
from tasks.reranker.step import make_step


def main() -> None:
    arguments = parser(
        __doc__ or "",
        negatives="folder of negatives to train on",
        corpus="corpus folder",
        out="folder of the cross-encoder to write",
        curves="training curves to write",
    )
    arguments.add_argument("--name", required=True, help="the entry of `rerankers`")
    args = arguments.parse_args()
    params, text, runtime = load(Reranker, f"rerankers.{args.name}"), load(Text, "text"), read_runtime()
    source = encoder_folder(params.source)
    model, tokenizer = load_classifier(source, params.seed if params.head == "new" else None), load_tokenizer(source)
    device = choose_device(runtime)
    dtype = compute_dtype(device, params.precision)
    digest = work_digest(
        params.model_dump(),
        text.model_dump(),
        str(dtype),
        hardware(device),
        code_digest("reranker"),
        source,
        args.negatives,
        args.corpus,
    )
    scratch = scratch_folder(f"reranker-{args.name}", digest)
    with new_folder(args.curves) as curves, new_folder(args.out) as out:
        if params.steps:
            batch_tokens = params.batch_tokens or best_batch_tokens(device, dtype, gradients=True)
            longest = longest_pair(model, tokenizer, params.max_length)
            encoder = CrossEncoder(model.to(device).train(), tokenizer, longest, batch_tokens, device)
            groups = read_groups(args.corpus, args.negatives / "train.parquet", params.window, scratch)
            texts = corpus_texts(args.corpus, text, scratch / "texts.bin", lasting=True)
            queries = [query for _, query in query_texts(args.corpus, "train")]
            optimizer = make_optimizer("adamw", model, params.lr, params.weight_decay)
            backward = make_step(encoder, queries, texts, groups, params, dtype)
            what = f"reranker {args.name} ({device.type}, {str(dtype).removeprefix('torch.')})"
            fit(
                model,
                optimizer,
                backward,
                Schedule(params.steps, params.warmup, params.clip),
                scratch,
                curves,
                runtime.checkpoint_seconds,
                what,
            )
        write_json(curves / "round.json", {"steps": params.steps})
        model.save_pretrained(out)
        tokenizer.save_pretrained(out)
    finish(scratch)


if __name__ == "__main__":
    with stage():
        main()
