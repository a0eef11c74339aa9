"""The local cache of Hugging Face models: which commit of a model it has, and whether it has all of it.

Other programs fill the same cache with only the files that they need, and a download may be interrupted. Without its modules.json, a model
would silently have another pooling and similarity, so a partial copy counts as absent; a download then fetches only what is missing.
"""

import json
import os
from fnmatch import fnmatch
from pathlib import Path

HUB_FILES = ("*.json", "*.safetensors", "*.txt", "*.model")  # of a model: no code, no pickles
MODEL_MARKS = ("config.json", "router_config.json")  # every model folder has one of them; the latter marks one with two towers
WITH_FILES = ("Pooling", "Dense")  # modules of sentence-transformers that have a config.json; others may have no file


def cached_model(name: str) -> tuple[Path | None, str | None]:
    """The folder and commit of the main branch of the model `name`; no folder if it is missing or partial."""
    home = Path(os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface").expanduser()
    repository = Path(os.environ.get("HF_HUB_CACHE") or home / "hub").expanduser() / f"models--{name.replace('/', '--')}"
    main = repository / "refs" / "main"
    if not main.is_file():
        return None, None
    commit = main.read_text(encoding="utf-8").strip()
    return repository / "snapshots" / commit if is_complete(repository, commit) else None, commit


def is_complete(repository: Path, commit: str) -> bool:
    """Whether a model's folder in the cache has all files of a commit that match HUB_FILES.

    huggingface_hub 2 stores the commit's list of files. Offline, or without a list, what loading needs is enough.
    """
    folder, listed = repository / "snapshots" / commit, _listed(repository / "trees" / f"{commit}.json")
    if listed is not None and not _is_offline():
        return all((folder / name).is_file() for name in listed)
    try:
        return _is_loadable(folder, has_modules="modules.json" in listed if listed is not None else _may_have_modules(repository, commit))
    except (ValueError, KeyError, TypeError):
        return True  # a corrupt file: loading names it


def _is_loadable(folder: Path, has_modules: bool) -> bool:
    """Whether a folder has weights, and all files of their shape; `has_modules`: modules.json is expected."""
    if not any((folder / name).is_file() for name in MODEL_MARKS) or (has_modules and not (folder / "modules.json").is_file()):
        return False
    modules = json.loads((folder / "modules.json").read_text(encoding="utf-8")) if has_modules else []
    indexes = [json.loads(path.read_text(encoding="utf-8")) for path in folder.rglob("*.safetensors.index.json")]
    shards = {name for index in indexes for name in index["weight_map"].values()}
    weights = {path.name for path in folder.rglob("*.safetensors")}
    configured = [entry["path"] for entry in modules if entry["type"].endswith(WITH_FILES)]
    return bool(weights) and shards <= weights and all((folder / path / "config.json").is_file() for path in configured)


def _may_have_modules(repository: Path, commit: str) -> bool:
    """Whether a commit may have a modules.json: it is here, or nothing says that there is none."""
    folder = repository / "snapshots" / commit
    said_absent = (repository / ".no_exist" / commit / "modules.json").is_file()  # by the server
    is_whole = (folder / ".gitattributes").is_file()  # only a download of the whole repository fetches that file
    return (folder / "modules.json").is_file() or not (said_absent or is_whole)


def _listed(path: Path) -> list[str] | None:
    """The files of a commit that match HUB_FILES, by the cache's own list; None if it has none that this code can read."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return [name for name in content["files"] if any(fnmatch(name, pattern) for pattern in HUB_FILES)]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _is_offline() -> bool:
    """Whether the user forbids huggingface_hub to go online."""
    value = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or ""
    return value.upper() in ("1", "ON", "YES", "TRUE")
