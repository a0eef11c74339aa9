"""Write an encoder from outside in the project's one folder format: the one that training starts from, and its tokenizer, or another."""

from tasks.base.params import Another, Base, EncoderSource
from tasks.base.shape import fitted_tokenizer, refuse_other_tokenizer, refuse_unusable, shaped_towers
from tasks.core.files import new_folder, write_json
from tasks.core.models.bi_encoder import save_towers
from tasks.core.models.mlm_head import find_head, is_head_missing, save_head
from tasks.core.params.sections import load
from tasks.core.sources.downloads import recorded_folder
from tasks.core.stage.entry import parser, stage
from tasks.core.training.companions import copy_companions


def main() -> None:
    arguments = parser(
        __doc__ or "",
        encoder="encoder folder to write",
        state="folder to write: an optimizer state of zero steps, for the rounds that start here",
        tokenizer="tokenizer folder to write; with --name: to read",
    )
    arguments.add_argument("--name", help="an entry of `encoders`, instead of encoder and base")
    args = arguments.parse_args()
    key = f"encoders.{args.name}" if args.name else "base"
    params = load(Another if args.name else Base, key)
    source = params.source if isinstance(params, Another) else load(EncoderSource, "encoder").source
    folder = recorded_folder(source, key if args.name else "encoder")
    towers = shaped_towers(folder, params, key)
    prompts = {name: getattr(towers.document.shape, f"{name}_prefix") for name in ("query", "document")}
    if any(prompts.values()):
        print(f"{key}: the source's own prompts are {prompts}; texts get those of tokenize.query_prefix and tokenize.document_prefix")
    tokenizer = fitted_tokenizer(folder, towers)
    refuse_unusable(folder, towers, tokenizer)
    if args.name:
        refuse_other_tokenizer(key, tokenizer, args.tokenizer)
    else:
        with new_folder(args.tokenizer) as out:
            tokenizer.save_pretrained(out)
    write_json(args.state / "state.json", {"steps": 0})
    copy_companions(folder, args.state)
    with new_folder(args.encoder) as out:
        save_towers(towers, tokenizer, out)
        if head := find_head(folder):  # a pre-training that starts here uses it
            save_head(head, out)
        elif is_head_missing(folder):
            print(f"{key}: the source's MLM head has another form, or its own output layer, so pre-training starts with a new head")


if __name__ == "__main__":
    with stage():
        main()
