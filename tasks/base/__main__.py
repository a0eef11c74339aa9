"""Write the encoder that training starts from, and its tokenizer, in the project's one folder format."""

from pathlib import Path

from tasks.base.params import Base, EncoderSource
from tasks.base.shape import fitted_tokenizer, shaped_towers
from tasks.core.models.bi_encoder import save_towers
from tasks.core.models.mlm_head import find_head, save_head
from tasks.core.sources.downloads import encoder_folder
from tasks.core.stage.entry import parser, stage
from tasks.core.stage.files import new_folder, write_json
from tasks.core.stage.params import load


def main() -> None:
    arguments = parser(__doc__ or "", encoder="encoder folder to write", tokenizer="tokenizer folder to write")
    arguments.add_argument("--source", help="take this encoder as it is, instead of encoder.source and base of params.yaml")
    arguments.add_argument("--state", type=Path, help="folder to write: an optimizer state of zero steps, for the rounds that start here")
    args = arguments.parse_args()
    params = Base() if args.source else load(Base, "base")
    folder = encoder_folder(args.source or load(EncoderSource, "encoder").source)
    towers = shaped_towers(folder, params)
    tokenizer = fitted_tokenizer(folder, towers)
    with new_folder(args.tokenizer) as out:
        tokenizer.save_pretrained(out)
    if args.state:
        write_json(args.state / "state.json", {"steps": 0})
    with new_folder(args.encoder) as out:
        save_towers(towers, tokenizer, out)
        if head := find_head(folder):  # for pre-trainings that continue with it
            save_head(head, out)


if __name__ == "__main__":
    with stage():
        main()
