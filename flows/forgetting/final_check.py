"""The last step of `retemper forget`: read what is left outside the caches, remove what can be made again, and name the rest."""

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path

from flows.forgetting import text_search
from flows.forgetting.holdings import FOUND, Store
from flows.forgetting.own_tables import source_places
from tasks.core.errors import UserError
from tasks.core.params.sections import read_yaml

OWN = ("prefect-server", "judged", "queries.jsonl", "retrainings.jsonl")  # in .retemper; nobody can make them again, so they are only named
EXTRA = "data/extra"  # of flows.evaluating.extra, no stage's out


def check(
    texts: Collection[str], store: Store, root: Path, *, trees: Sequence[Path], folders: Sequence[Path], tell: Callable[[str], None]
) -> list[Path]:
    """Look for `texts` in all files of working trees and sources, and remove derived files that may have one. Return the other files that
    may have one.

    `root`: of the cache; `folders`: those of sources.
    """
    wanted, remaining, unread = text_search.needles(texts), list[Path](), list[Path]()
    if not texts:
        tell("none of their texts is known here, so no file was searched")
        return remaining
    stores = [root, *store.folder_remotes()]
    for tree in trees:
        outs = out_paths(tree)
        try:
            sources = source_places(tree)
        except UserError:  # another project's settings that are being edited, for instance: any file may be a source's
            sources = [(tree / "data").resolve()]
        but = [*stores, tree / FOUND.parent, *(other for other in trees if other != tree)]
        unread_here = list[Path]()
        for path in text_search.having_texts(text_search.files_below(tree, but), wanted, unread_here.append):
            if is_derived(path, tree, outs=outs, sources=sources):
                tell(f"{path}: had the text; removed")
                path.unlink()
            else:
                remaining.append(path)
        for path in unread_here:
            if is_derived(path, tree, outs=outs, sources=sources) and _unlink(path):
                tell(f"{path}: unreadable or corrupt; removed, since it can be made again")
            else:
                unread.append(path)
    own_files = (path for folder in folders for path in text_search.files_below(folder))
    remaining += [path for path in text_search.having_texts(own_files, wanted, unread.append) if path not in remaining]
    for remote in store.remotes:
        if remote.fs.protocol != "local":
            tell(f"remote {remote.name}: objects were removed by digest; the others were not read")
    for path in remaining:
        tell(f"{path}: still has the text of a forgotten record; edit or delete it yourself")
    unread = list(dict.fromkeys(unread))
    for path in unread:
        tell(f"{path}: unreadable or corrupt, so whether it has the text of a forgotten record is unknown; repair or delete it yourself")
    return remaining + unread


def _unlink(path: Path) -> bool:
    """Remove a file; return whether that was possible."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return False
    return True


def is_derived(path: Path, tree: Path, *, outs: Collection[str], sources: Collection[Path]) -> bool:
    """Whether a file of a working tree can be made again. `outs`: those of `out_paths`; `sources`: folders and files that are not made."""
    if any(path.resolve().is_relative_to(place) for place in sources):
        return False
    below = path.relative_to(tree)
    first, second = (*below.parts, "")[:2]
    if first == "data":
        is_unfinished = any(part.endswith(".partial") for part in below.parts)
        return is_unfinished or any(f"{below.as_posix()}/".startswith(out) for out in outs)
    return first == ".retemper" and not second.startswith(OWN)


def out_paths(tree: Path) -> list[str]:
    """How the paths of all outs begin, by a working tree's dvc.yaml; those of folders and files end in `/`. None if it is invalid."""
    with suppress(UserError, AttributeError, TypeError, StopIteration):
        stages = [stage.get("do", stage) for stage in (read_yaml(tree / "dvc.yaml").get("stages") or {}).values()]
        outs = [
            out if isinstance(out, str) else next(iter(out))
            for stage in stages
            for key in ("outs", "metrics")
            for out in stage.get(key, ())
        ]
        return [f"{EXTRA}/", *(out.partition("${")[0] if "${" in out else f"{out}/" for out in outs)]
    return []
