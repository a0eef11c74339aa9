"""The encoder that training starts from, and its tokenizer, in the project's one folder form."""

from pathlib import Path

from tasks.base.params import Base, EncoderSource
from tasks.base.shape import fitted_tokenizer, shaped_towers
from tasks.core.encoder import save_towers
from tasks.core.entry import parser, stage
from tasks.core.errors import UserError
from tasks.core.files import new_folder
from tasks.core.mlm_head import find_head, save_head
from tasks.core.params import load
from tasks.core.sources import parse_encoder


def encoder_folder(source: str) -> Path:
    """The local folder of an encoder source; a Hugging Face id that is not here yet is downloaded (no code, safetensors only)."""
    place = parse_encoder(source)
    if place.folder is not None:
        return place.folder
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        return Path(snapshot_download(place.name, allow_patterns=["*.json", "*.safetensors", "*.txt", "*.model"]))
    except (LocalEntryNotFoundError, RepositoryNotFoundError, HfHubHTTPError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(
            f"encoder {source}: not on this machine and not to be downloaded ({reason}); go online once, or name a folder"
        ) from None


def main() -> None:
    arguments = parser(__doc__ or "", encoder="encoder folder to write", tokenizer="tokenizer folder to write")
    arguments.add_argument("--source", help="encoder source, instead of encoder.source of params.yaml")
    args = arguments.parse_args()
    params = load(Base, "base")
    folder = encoder_folder(args.source or load(EncoderSource, "encoder").source)
    towers = shaped_towers(folder, params)
    tokenizer = fitted_tokenizer(folder, towers)
    with new_folder(args.tokenizer) as out:
        tokenizer.save_pretrained(out)
    with new_folder(args.encoder) as out:
        save_towers(towers, tokenizer, out)
        if head := find_head(folder):  # for pre-trainings to go on with
            save_head(head, out)


if __name__ == "__main__":
    with stage():
        main()
