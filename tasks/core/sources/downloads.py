"""Models from outside the project: the only place that may go online for them."""

from dataclasses import replace
from pathlib import Path

from tasks.core.errors import UserError, user_error
from tasks.core.files import file_digest, read_json
from tasks.core.sources.datasets import encoder_files, parse_encoder
from tasks.core.sources.hub_cache import HUB_FILES, cached_copy, shortfall

RECORDED = Path("data/source.json")  # written by the flow (flows/parameters/sources.py)


def recorded_folder(source: str, key: str) -> Path:
    """`encoder_folder`, for a stage. UserError if a Hugging Face id has other files than data/source.json records at `key`.

    The stage's outs are cached under that record's digest, but a download brings whatever the authors' main branch has today. `key` is a
    path in the file: "encoder", "rerankers.small". Nothing is compared if the file has no such entry.
    """
    folder, place = encoder_folder(source), parse_encoder(source)
    entry = read_json(RECORDED) if RECORDED.exists() else {}
    for name in key.split("."):
        entry = entry.get(name, {})
    if place.kind != "hub" or entry.get("source") != source:
        return folder
    recorded = entry["files"]
    found = {path.relative_to(folder).as_posix(): file_digest(path) for path in encoder_files(replace(place, folder=folder))}
    changed = sorted(name for name in found.keys() | recorded.keys() if found.get(name) != recorded.get(name))
    if changed:
        files = f"{', '.join(changed[:3])}{', ...' if changed[3:] else ''}"
        raise UserError(
            f"encoder {source}: has changed: found other files ({files}), expected those of {RECORDED}; run again to use these; "
            "a reproduction needs the former ones, or a cache or remote that has this stage's outs"
        )
    return folder


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
