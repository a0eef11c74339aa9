"""The local cache of Hugging Face models: which commit of a model it has, and whether it has all of it.

Other programs fill the same cache with only the files that they need, and a download may be interrupted. Without its modules.json, a model
would silently have another pooling and similarity, so a partial copy counts as absent; a download then fetches only what is missing.
huggingface_hub stores the list of a commit's files when it downloads all or many of them; a copy without one counts as partial.
"""

import json
import os
from fnmatch import fnmatch
from pathlib import Path

HUB_FILES = ("*.json", "*.safetensors", "*.txt", "*.model")  # of a model: no code, no pickles
MODEL_MARKS = ("config.json", "router_config.json")  # every model folder has one of them; the latter marks one with two towers
NAMED = 3  # missing files that a line names


def cached_model(name: str) -> tuple[Path | None, str | None]:
    """The folder and commit of the main branch of the model `name`; no folder if it is missing or partial."""
    copy = cached_copy(name)
    return (None, None) if copy is None else (None if shortfall(copy) else copy, copy.name)


def cached_copy(name: str) -> Path | None:
    """The folder, named by its commit, where the cache holds the main branch of the model `name`; it may be partial, or missing yet."""
    home = Path(os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface").expanduser()
    repository = Path(os.environ.get("HF_HUB_CACHE") or home / "hub").expanduser() / f"models--{name.replace('/', '--')}"
    main = repository / "refs" / "main"
    commit = main.read_text(encoding="utf-8").strip() if main.is_file() else ""  # empty after a crash
    return repository / "snapshots" / commit if commit else None


def shortfall(folder: Path) -> str:
    """What a model's folder in the cache lacks of its commit's files that match HUB_FILES, in words; empty if it is complete."""
    listed = _listed(folder.parents[1] / "trees" / f"{folder.name}.json")
    if listed is None:
        return "may lack files (the cache has no list of them)"
    missing = [name for name in listed if not (folder / name).is_file()]
    return f"lacks {', '.join(missing[:NAMED])}{', ...' if missing[NAMED:] else ''}" if missing else ""


def _listed(path: Path) -> list[str] | None:
    """The files of a commit that match HUB_FILES, by the cache's own list; None if it has none that this code can read."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return [name for name in content["files"] if any(fnmatch(name, pattern) for pattern in HUB_FILES)]
    except (OSError, ValueError, KeyError, TypeError):
        return None
