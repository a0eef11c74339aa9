"""data/source.json: the sources outside the graph, by content. DVC tracks their digests, so a source may move or be unavailable.

{"dataset": {"source", "digest", "files": {relative name: sha256}, "packages": {name: version}}, "encoder", "articles": {likewise},
"encoders": {name: {likewise}}, "rerankers": {name: {likewise}}, if there are any; "generator": likewise, empty if there is none}
"""

import hashlib
import json
import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tasks.core.errors import Unavailable, UserError, printable
from tasks.core.files import file_digest, file_stamp, write_json
from tasks.core.params.sections import FROZEN, read_parameters, read_yaml
from tasks.core.sources import datasets, wikipedia
from tasks.core.sources.downloads import encoder_folder
from tasks.core.sources.forgotten import FILE, marks_digest, read_marks

SOURCE = Path("data/source.json")
MEMORY = Path(".retemper/digests.json")
NAMED = ("encoders", "rerankers")  # sections whose entries have a source each
SLOW_BYTES = 1 << 30  # reading more than this is reported
KEEP_SOURCE = "RETEMPER_SOURCE_STANDS"  # environment: do not update data/source.json; the code of older revisions reads this name too


class Elsewhere(Unavailable):
    """A Hugging Face id that has not been downloaded to this machine."""


@dataclass(frozen=True)
class Listing:
    """A source as found here: its files by name, package versions, and `identity`, all else that its content depends on."""

    files: dict[str, Path]
    packages: dict[str, str]
    identity: str  # of a source without files: an ir_datasets id; else how the files are read


@dataclass
class Memory:
    """Digests of files by path and stamp (see `file_stamp`), and the last entry of every source seen from this folder."""

    files: dict[str, list[Any]] = field(default_factory=dict)
    entries: dict[str, dict[str, Any]] = field(default_factory=dict)

    def digest(self, path: Path) -> str:
        """SHA-256 of a file, which is read only if its stamp is new."""
        stamp = file_stamp(path)
        record = self.files.get(str(path.resolve()))
        if record is None or record[:-1] != stamp:
            record = [*stamp, file_digest(path)]
            self.files[str(path.resolve())] = record
        return str(record[-1])

    def knows(self, path: Path) -> bool:
        """Whether the file's digest is known without reading it."""
        return (self.files.get(str(path.resolve())) or [None])[:-1] == file_stamp(path)


def write_source(
    params: Path = Path("params.yaml"),
    source: Path = SOURCE,
    memory: Path = MEMORY,
    *,
    warn: Callable[[str], None] | None = None,
    keep: bool = False,
) -> None:
    """Bring `source` up to date with the sources that `params` names; write it only if its content changes.

    An unavailable source keeps its last entry, of `source` or else of `memory`; a stage that needs it will report the problem. The entry
    of a data set leaves out the records on the current list of forgotten ones. Raises UserError if a source was never seen, or exists but
    is invalid; articles then get an entry without digest instead, because usually no pre-training needs them. A Hugging Face id that was
    never seen is downloaded, so that everyone knows it by its content. `keep`: keep the entries of the named sources, whatever the
    sources contain now.
    """
    remembered = _read_memory(memory)
    before = _flat(_read(source))
    # git may have changed `source` since: a pull, a checkout
    remembered.entries |= {f"{kind} {entry['source']}": entry for kind, entry in before.items() if entry.get("digest")}
    after: dict[str, Any] = {}
    for kind, (name, listing) in _kinds(read_yaml(params)).items():
        if keep and before.get(kind, {}).get("source") == name:
            after[kind] = before[kind]
            continue
        try:
            entry = describe(name, listing(name), remembered)
        except (UserError, OSError) as error:
            last_entry = remembered.entries.get(f"{kind} {name}")
            if not isinstance(error, Unavailable | OSError):
                last_entry = None  # it is there, but invalid
            if last_entry is None and kind == "articles":
                if not isinstance(error, Unavailable | OSError):
                    (warn or _warn)(f"{params}: {_key(kind)}: {error}")
                after[kind] = {"source": name, "digest": "", "files": {}, "packages": {}}
                continue
            if last_entry is None and isinstance(error, Elsewhere):
                encoder_folder(name)
                last_entry = describe(name, listing(name), remembered)
            elif last_entry is None:
                raise error if isinstance(error, UserError) else UserError(f"{error.filename}: {error.strerror}; give access") from None
            else:
                last_entry, description = _last_known(last_entry, is_dataset=kind == "dataset")
                (warn or _warn)(f"{params}: {_key(kind)}: {error}; continuing with {description}")
            entry = last_entry
        remembered.entries[f"{kind} {name}"] = entry
        after[kind] = entry
    _write_memory(memory, remembered)  # first: it has the entries that `source` loses
    if after != before:
        write_json(source, _nested(after))


def dataset_entry(key: str, name: str, *, warn: Callable[[str], None] | None = None) -> dict[str, Any]:
    """The entry of a data set that is not in `source`: extra.NAME of params.yaml (`key`).

    If it is unavailable, its last entry counts, as in `write_source`. Raises UserError if it was never seen, or exists but is invalid.
    """
    remembered = _read_memory(MEMORY)
    try:
        entry = describe(name, list_dataset(name), remembered)
    except (UserError, OSError) as error:
        last_entry = remembered.entries.get(f"{key} {name}")
        if last_entry is None or not isinstance(error, Unavailable | OSError):
            reason = error if isinstance(error, UserError) else f"{error.filename}: {error.strerror}; give access"
            raise UserError(f"params.yaml: {key}.source: {reason}") from None
        entry, description = _last_known(last_entry, is_dataset=True)
        (warn or _warn)(f"params.yaml: {key}.source: {error}; continuing with {description}")
    remembered.entries[f"{key} {name}"] = entry
    _write_memory(MEMORY, remembered)
    return entry


def watch(kinds: Iterable[str]) -> tuple[dict[str, Any], list[str]]:
    """The record for a stage that reads these sources, {"problem": line, "files": {resolved path: stamp}}, and the kinds to look at again.

    `problem` names a source that no longer matches data/source.json; it is empty if all match or are unavailable. Code of former revisions
    reads this form too (`retemper why`). A Hugging Face id that the stage will download is not looked at again.
    """
    recorded, remembered, listings = _flat(_read(SOURCE)), _read_memory(MEMORY), _kinds(read_parameters(FROZEN))
    files: dict[str, list[int]] = {}
    watched: list[str] = []
    for kind in kinds:
        name, listing = listings[kind]
        try:
            listed = listing(name)
            digest = describe(name, listed, remembered)["digest"]
        except Elsewhere:
            continue
        except (UserError, OSError):  # the stage will report it, and knows better what is missing
            watched.append(kind)
            continue
        expected = recorded.get(kind, {}).get("digest", "")
        if digest != expected:
            remedy = (
                "restore the former one, or share a cache or remote that has this stage's outs"
                if KEEP_SOURCE in os.environ
                else "run again"
            )
            difference = f"found sha256 {digest[:10]}, expected {expected[:10]} of {SOURCE}"
            change = f"the data or {FILE} has changed" if kind == "dataset" and FILE.exists() else "has changed"
            return {"problem": f"{_key(kind)} {name}: {change}: {difference}; {remedy}", "files": {}}, []
        watched.append(kind)
        files |= _stamps(kind, listed)
    return {"problem": "", "files": files}, watched


def changes(files: Mapping[str, list[int]], kinds: Iterable[str]) -> list[str]:
    """The files of the sources `kinds` that are new, gone, or not the same as in `files` of `watch`: a stage may have read others."""
    recorded, listings = _flat(_read(SOURCE)), _kinds(read_parameters(FROZEN))
    after, digests = dict[str, list[int]](), dict[str, str]()
    for kind in kinds:
        name, listing = listings[kind]
        with suppress(UserError, OSError):  # unavailable
            listed = listing(name)
            after |= _stamps(kind, listed)
            known = recorded.get(kind, {}).get("files", {})
            digests |= {str(path.resolve()): known[file] for file, path in listed.files.items() if file in known}
    paths = sorted(files.keys() | after.keys())
    return [path for path in paths if not _is_same(Path(path), files.get(path), after.get(path), digest=digests.get(path, ""))]


def _stamps(kind: str, listing: Listing) -> dict[str, list[int]]:
    files = [*listing.files.values(), *([FILE] if kind == "dataset" and FILE.exists() else [])]
    return {str(path.resolve()): file_stamp(path) for path in files}


def _is_same(path: Path, before: list[int] | None, after: list[int] | None, *, digest: str) -> bool:
    """Whether a file has the same stamp (`file_stamp`), or another ctime alone and still the content that `digest` is of.

    A link that is made or removed changes the ctime: a model of a project is linked to the cache, and data sets to a rotating backup.
    """
    if before is None or after is None or before == after:
        return before is not None and before == after
    (size, modified, _, inode) = after
    if [size, modified, inode] != [before[0], before[1], before[3]]:
        return False
    if path == FILE.resolve():  # we write it as a new file each time
        return True
    with suppress(OSError):  # no permission any more
        return file_digest(path) == digest
    return False


def _kinds(sections: Mapping[str, Any]) -> dict[str, tuple[str, Callable[[str], Listing]]]:
    """Name of every source and the function that lists it, by its key in `source`."""
    dataset = partial(list_dataset, needs_qrels=sections.get("queries") != "pseudo")
    sections_of: dict[str, tuple[Any, Callable[[str], Listing]]] = {
        "dataset": (sections["dataset"], dataset),
        "encoder": (sections["encoder"], list_encoder),
    }
    if "articles" in sections:
        sections_of["articles"] = (sections["articles"], list_articles)
    if "pseudo" in sections:
        sections_of["generator"] = ({"source": _mapping(sections["pseudo"]).get("generator") or ""}, list_generator)
    sections_of |= {key: (entry, list_encoder) for key, entry in _named(sections).items()}
    return {kind: (str(section["source"]), listing) for kind, (section, listing) in sections_of.items()}


def source_keys(sections: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Every key of params.yaml that names a source, with its value: ("rerankers.small.source", "../ce"), say."""
    entries = {name: sections.get(name) for name in ("dataset", "encoder", "articles")} | _named(sections)
    keys = [(f"{name}.source", str(entry["source"])) for name, entry in entries.items() if isinstance(entry, dict) and entry.get("source")]
    generator = _mapping(sections.get("pseudo")).get("generator")
    return [*keys, ("pseudo.generator", str(generator))] if generator else keys


def _named(sections: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of NAMED, by their key in params.yaml: "rerankers.small", say."""
    return {f"{section}.{name}": entry for section in NAMED for name, entry in _mapping(sections.get(section)).items()}


def _flat(entries: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a source file, by their key in params.yaml."""
    return {key: entry for key, entry in entries.items() if key not in NAMED} | _named(entries)


def _nested(entries: Mapping[str, Any]) -> dict[str, Any]:
    """A source file's content, from entries by their key in params.yaml."""
    nested: dict[str, Any] = {}
    for key, entry in entries.items():
        section, dot, name = key.partition(".")
        (nested.setdefault(section, {}) if dot else nested)[name or section] = entry
    return nested


def _key(kind: str) -> str:
    """The key of params.yaml that names the source of `kind`, a key of data/source.json."""
    return "pseudo.generator" if kind == "generator" else f"{kind}.source"


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def describe(name: str, listing: Listing, memory: Memory) -> dict[str, Any]:
    """The entry of a source: its digest covers content (file names and bytes), never location."""
    unread = sum(path.stat().st_size for path in listing.files.values() if not memory.knows(path))
    if unread > SLOW_BYTES:
        print(f"reading {unread / 1e9:,.1f} GB of {name} once, for its digest", file=sys.stderr)
    files = {file: memory.digest(path) for file, path in sorted(listing.files.items())}
    return _entry(name, files, packages=listing.packages, identity=listing.identity)


def _entry(name: str, files: Mapping[str, str], *, packages: Mapping[str, str], identity: str) -> dict[str, Any]:
    content = {"identity": identity, "files": files, "packages": {} if files else packages}
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return {"source": name, "digest": digest, "files": files, "packages": packages}


def _last_known(entry: dict[str, Any], *, is_dataset: bool) -> tuple[dict[str, Any], str]:
    """The entry to use for an unavailable source, and words on it. That of a data set leaves out the records forgotten since."""
    if is_dataset:
        identity = _dataset_identity(datasets.parse_dataset(entry["source"]), entry["files"])
        current = _entry(entry["source"], entry["files"], packages=entry["packages"], identity=identity)
        if current["digest"] != entry["digest"]:
            return current, f"its last known files, without the records of {FILE}"
    return entry, "its last known digest"


def list_dataset(name: str, *, needs_qrels: bool = True) -> Listing:
    """The files and versions of a data set SPEC. Raises UserError if they are missing, qrels only if `needs_qrels`.

    Its identity covers the forgotten records, which prepare leaves out, if there are any.
    """
    spec = datasets.parse_dataset(name)
    files = datasets.dataset_files(spec, needs_qrels=needs_qrels)
    folder = spec.folder if spec.place and spec.folder.is_dir() and files else None
    return Listing(_relative(files, folder), datasets.dataset_versions(spec), _dataset_identity(spec, files))


def _dataset_identity(spec: datasets.DatasetSpec, files: Collection[object]) -> str:
    forgotten = marks_digest(read_marks())
    return f"{spec.kind + spec.columns if files else spec}{f' without {forgotten}' if forgotten else ''}"


def list_encoder(name: str) -> Listing:
    """The files and versions of an encoder. Raises UserError if they are missing."""
    place = datasets.parse_encoder(name)
    files = datasets.encoder_files(place)
    if place.folder is None:
        raise Elsewhere(f"encoder {name}: not on this machine yet")
    if not files:
        raise Unavailable(f"encoder {name}: found an empty folder, expected config.json, weights and tokenizer; fix the path")
    return Listing(_relative(files, place.folder), datasets.encoder_versions(place), "" if files else place.name)


def list_generator(name: str) -> Listing:
    """The files and versions of pseudo.generator; empty if it is not set. Raises UserError if they are missing."""
    return list_encoder(name) if name else Listing({}, {}, "")


def list_articles(name: str) -> Listing:
    """The files and versions of the articles for pre-training. Raises UserError if they are missing."""
    spec = wikipedia.parse_articles(name)
    files = wikipedia.article_files(spec)
    folder = spec.path if spec.place and spec.path.is_dir() else None
    return Listing(_relative(files, folder), wikipedia.article_versions(spec), spec.kind)


def _relative(files: Iterable[Path], folder: Path | None) -> dict[str, Path]:
    """Files by their name below `folder`, or by their bare name."""
    return {(file.relative_to(folder).as_posix() if folder else file.name): file for file in files}


def _read(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _read_memory(path: Path) -> Memory:
    value = _read(path)
    return Memory(dict(value.get("files", {})), dict(value.get("entries", {})))


def _write_memory(path: Path, memory: Memory) -> None:
    existing = {name: known for name, known in memory.files.items() if Path(name).exists()}
    value = {"files": existing, "entries": memory.entries}
    if value != _read(path):
        with suppress(FileNotFoundError):  # a concurrent command, such as a sweep, has just written its own
            write_json(path, value)


def _warn(line: str) -> None:
    print(f"retemper: warning: {printable(line)}", file=sys.stderr)
