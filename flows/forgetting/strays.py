"""Objects of the cache and of folder remotes that have a text, though lineage does not lead to them. Other remotes lose the same ones."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from flows.forgetting import text_search
from flows.forgetting.holdings import Entry, Store
from flows.repository.lock import worktrees
from flows.storage import forgettings
from flows.storage.cache import object_id, objects
from flows.storage.small_files import Place


@dataclass(frozen=True)
class Strays:
    """Objects with a text: to be removed, `added` by someone (dvc add), `alike` only in how a text begins, and unreadable ones.

    `removed` has them by cache or remote, listings first: after a kill, the files lead to them again. By digest: what names them in other
    working trees (`owners`), and the out (path, digest) of this project that has them (`own`).
    """

    removed: dict[Path, tuple[Path, ...]]
    owners: dict[str, str]
    own: dict[str, tuple[str, str]]
    added: tuple[Path, ...] = ()
    alike: tuple[Path, ...] = ()
    unread: tuple[Path, ...] = ()

    def digests(self) -> set[str]:
        """The digests of those to be removed."""
        return {object_id(path) for paths in self.removed.values() for path in paths}

    def notes(self) -> list[str]:
        """What a user should know of them before anything is removed."""
        return [
            *(f"{path}: has the text, {self._reason(path)}; it is removed, too" for paths in self.removed.values() for path in paths),
            *(f"{path}: begins like one of the texts, but is another or only a part; it stays" for path in self.alike),
        ]

    def remaining(self, tell: Callable[[str], None]) -> list[Path]:
        """Those that stay and may have a text, each with a line about it."""
        for path in self.added:
            tell(f"{path}: still has the text of a forgotten record, and a .dvc file names it; remove it there (dvc remove), then run gc")
        for path in self.unread:
            tell(f"{path}: unreadable or corrupt, so whether it has the text of a forgotten record is unknown")
        return [*self.added, *self.unread]

    def _reason(self, path: Path) -> str:
        oid = object_id(path)
        if oid in self.own:
            return f"under another id ({self.own[oid][0]} of this project): forget that id, too, since what was made from it stays"
        owner = self.owners.get(oid)
        named = f"under another id ({owner}): forget that id there, since what was made from it stays"
        return named if owner else "though no recorded run says so"


def find_strays(texts: Collection[str], entries: Sequence[Entry], store: Store, *, oids: Collection[str], trees: Sequence[Path]) -> Strays:
    """Find them in the cache and the folder remotes of `store`, except `oids`, which are known to hold a record.

    The start of a text finds candidates, and the whole text decides. `trees`: working trees of all projects that use the cache.
    """
    starts, wholes = text_search.needles(texts), text_search.needles(texts, whole=True)
    added = {oid for entry in entries if entry.added for _, oid in entry.outs()}
    added |= {inner for oid in added for inner in store.listing(oid).values()}
    removed, kept, alike, unread = dict[Path, tuple[Path, ...]](), list[Path](), list[Path](), list[Path]()
    for place in (store.objects.parent.parent, *store.folder_remotes()):
        others = [path for path in objects(place / "files" / "md5") if object_id(path) not in oids]
        candidates = list(text_search.having_texts(others, starts, unread.append))
        found = list(text_search.having_texts(candidates, wholes, unread.append))
        alike += [path for path in candidates if path not in found and path not in unread]
        names = {object_id(path) for path in found} - added
        listings = (path for path in others if names and path.suffix == ".dir" and object_id(path) not in added)
        listings = (path for path in listings if any(name in path.read_text(errors="replace") for name in names))
        removed[place] = (*listings, *(path for path in found if object_id(path) in names))
        kept += [path for path in found if object_id(path) in added]
    digests = {object_id(path) for paths in removed.values() for path in paths}
    own = {
        member: (path, oid)
        for path, oid in sorted({out for entry in entries if entry.own and digests for out in entry.outs()})
        for member in {oid, *store.listing(oid).values()} & digests
    }
    owners = forgettings.owners([tree for tree in trees if tree not in worktrees()], store.objects, digests)
    return Strays(removed, dict(owners), own, tuple(kept), tuple(alike), tuple(unread))


def remove_strays(strays: Strays, store: Store, tell: Callable[[str], None]) -> None:
    """Remove them, with a note for the projects that they belong to. S3 and ssh come first: what is read tells which of them they have."""
    for remote in store.remotes:
        if remote.fs.protocol != "local":
            if owned := strays.owners.keys() & remote.places.keys():
                forgettings.leave_note(Place(remote.fs, remote.fs.join(remote.root, forgettings.FOLDER)), owned)
            for gone in remote.delete(strays.digests()):
                tell(f"remote {remote.name}: {gone}: had the text; removed")
    for place, paths in strays.removed.items():
        if owned := {object_id(path) for path in paths} & strays.owners.keys():
            forgettings.leave_note(Place.on_disk(place / forgettings.FOLDER), owned)
        for path in paths:
            path.unlink(missing_ok=True)
            tell(f"{path}: had the text; removed")
