"""Models from outside the project: the only place that may go online for them."""

from pathlib import Path

from tasks.core.errors import UserError, user_error
from tasks.core.sources.datasets import parse_encoder
from tasks.core.sources.hub_cache import HUB_FILES, cached_copy, shortfall


def encoder_folder(source: str) -> Path:
    """The local folder of an encoder source; a Hugging Face id that is not completely cached is downloaded (no code, safetensors only)."""
    place = parse_encoder(source)
    if place.folder is not None:
        return place.folder
    from huggingface_hub.errors import HFValidationError

    try:
        folder = _download(place.name, place.revision)
    except HFValidationError as error:
        raise UserError(f"encoder {source!r}: no such folder and not a Hugging Face id ({error}); fix the name") from None
    except Exception as error:  # a connection fails in many ways: a proxy, a login page in place of JSON
        if user_error(error):  # a full disk, say
            raise
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:160]
        raise _incomplete(place.name, f", and the download failed ({reason})") from None
    if shortfall(folder):
        raise _incomplete(place.name)
    return folder


def _download(name: str, revision: str | None) -> Path:
    """The folder of a model with all files that match HUB_FILES; those of its newest commit if `revision` no longer exists.

    Offline, huggingface_hub returns what is in the cache if nothing shows that files are missing.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import RevisionNotFoundError

    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(HUB_FILES)))
    except RevisionNotFoundError:
        return Path(snapshot_download(name, allow_patterns=list(HUB_FILES)))


def _incomplete(name: str, failure: str = "") -> UserError:
    """The error for a model that the cache lacks, or has only in part; `failure`: why it was not downloaded."""
    copy = cached_copy(name)
    if copy is None or not copy.is_dir():
        return UserError(f"encoder {name}: not on this machine{failure}; go online once, or name a folder")
    return UserError(f"encoder {name}: its copy {copy} {shortfall(copy)}{failure}; go online once, or name that folder if it suffices")
