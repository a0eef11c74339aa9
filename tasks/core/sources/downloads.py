"""Models from outside the project: the only place that may go online for them."""

from contextlib import suppress
from pathlib import Path

from tasks.core.errors import UserError
from tasks.core.sources.datasets import parse_encoder
from tasks.core.sources.hub_cache import HUB_FILES, is_complete


def encoder_folder(source: str) -> Path:
    """The local folder of an encoder source; a Hugging Face id that is not completely cached is downloaded (no code, safetensors only)."""
    place = parse_encoder(source)
    if place.folder is not None:
        return place.folder
    from huggingface_hub import hf_hub_download, snapshot_download
    from huggingface_hub.errors import (
        EntryNotFoundError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    try:
        folder = Path(snapshot_download(place.name, revision=place.revision, allow_patterns=list(HUB_FILES)))
        if not (folder / "modules.json").is_file():
            with suppress(EntryNotFoundError):  # huggingface_hub remembers that there is none
                hf_hub_download(place.name, "modules.json", revision=folder.name)
    except HFValidationError as error:
        raise UserError(f"encoder {source!r}: no such folder and not a Hugging Face id ({error}); fix the name") from None
    except (LocalEntryNotFoundError, RepositoryNotFoundError, HfHubHTTPError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(
            f"encoder {source}: not on this machine, and the download failed ({reason}); go online once, or name a folder"
        ) from None
    if not is_complete(folder.parents[1], folder.name):
        raise UserError(
            f"encoder {source}: its copy in {folder} is incomplete, or has no *.safetensors; go online once, or name the folder of a "
            "complete copy"
        )
    return folder
