"""How DVC puts a cached file into data/: by a link that takes no space, if the filesystem supports one, else by a copy."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from flows.repository.leftovers import RECORDS
from flows.repository.project import edit_settings
from flows.storage.cache import cache_of

COPY = "copy"
NAMES = {"reflink": "reflinks", "hardlink": "hard links", "symlink": "symbolic links"}
OURS = ["reflink", "hardlink", COPY]  # for a cache in the project; symbolic links would break when the project is moved
DEFAULT = ["reflink", COPY]  # DVC's own


def kind(project: Path) -> str:
    """The type of link that DVC uses between the project's cache and data/: the first of its configured types that works there."""
    from dvc.config import Config

    configured = Config(dvc_dir=str(project / ".dvc"))["cache"].get("type") or DEFAULT
    kinds = [name.strip() for name in (configured.split(",") if isinstance(configured, str) else configured)]
    return _first_supported(kinds, project)


def choose(project: Path) -> str:
    """Let DVC link outs to the cache inside this project, if the disk supports it. Return a line that says what was chosen."""
    from dvc.config import Config

    config = Config(dvc_dir=str(project / ".dvc"), validate=False)
    with edit_settings(config, "local") as settings:
        settings["cache"] = {**settings.get("cache", {}), "type": OURS}
    chosen = _first_supported(OURS, project)
    if chosen == COPY:
        return "disk: two copies of each artifact, in data/ and in the cache, as this file system has no links"
    return f"disk: one copy of each artifact ({NAMES[chosen]} between data/ and the cache)"


def _first_supported(kinds: list[str], project: Path) -> str:
    from dvc_objects.fs.system import hardlink, reflink, symlink
    from dvc_objects.fs.utils import tmp_fname

    link_functions: dict[str, Callable[[str, str], None]] = {"reflink": reflink, "hardlink": hardlink, "symlink": symlink}
    records, cache = project / RECORDS, cache_of(project)
    with suppress(OSError):
        for folder in (records, *([cache] if cache.is_relative_to(project) else [])):
            folder.mkdir(parents=True, exist_ok=True)
        place = next(folder for folder in (cache, *cache.parents) if folder.is_dir())
        source, target = place / tmp_fname(), records / tmp_fname()  # DVC's names: the next run or `gc` removes leftovers
        try:
            source.write_bytes(b"x")
            for name in kinds:
                if name in link_functions:
                    with suppress(OSError, NotImplementedError):
                        link_functions[name](str(source), str(target))
                        return name
        finally:
            for path in (source, target):
                path.unlink(missing_ok=True)
    return COPY
