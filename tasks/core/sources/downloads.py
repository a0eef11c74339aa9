"""Models from outside the project: the only place that may go online for them."""

from pathlib import Path

from tasks.core.errors import UserError
from tasks.core.sources.datasets import HUB_FILES, parse_encoder


def encoder_folder(source: str) -> Path:
    """The local folder of an encoder source; a Hugging Face id that is not cached yet is downloaded (no code, safetensors only)."""
    place = parse_encoder(source)
    if place.folder is not None:
        return place.folder
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        return Path(snapshot_download(place.name, allow_patterns=list(HUB_FILES)))
    except HFValidationError as error:
        raise UserError(f"encoder {source!r}: no such folder and not a Hugging Face id ({error}); fix the name") from None
    except (LocalEntryNotFoundError, RepositoryNotFoundError, HfHubHTTPError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(
            f"encoder {source}: not on this machine, and the download failed ({reason}); go online once, or name a folder"
        ) from None
