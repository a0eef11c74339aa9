"""An exported model, ready to serve: a folder that `retemper champion export` writes and `retemper serve` reads.

serving.json       the record: systems, text settings, depths, and size and SHA-256 of every file but itself and the card, README.md
champion.json      the record of the champion, if it is one
encoder/, index/   of the model (of a fusion of several: also encoder.NAME/, index.NAME/); beside an index, the ids.parquet and
                   owners.npy of its rows
bm25/              BM25's index, if a fusion reads it
documents.parquet  titles and texts, if they were asked for
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tasks.core.errors import Corrupt, Missing
from tasks.core.files import file_digest, read_json, write_json
from tasks.core.models.folder import ROUTER

FORMAT = 1
RECORD = "serving.json"


@dataclass(frozen=True)
class Export:
    """The content of serving.json. Paths are relative to the folder; `encoders` has the encoder and index folders by name of the model."""

    model: str
    encoders: Mapping[str, tuple[str, str]]
    query: Mapping[str, Any]  # prefix, max_length (tokens)
    document: Mapping[str, Any]  # prefix, max_length (tokens), passages, titles, separator
    label: str = ""
    bm25: str | None = None
    fusions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # name: the record of fusion.json
    depth: int = 1000  # ranks of a model's list that are fused
    bm25_depth: int = 1000
    documents: str | None = None
    files: Mapping[str, tuple[int, str]] = field(default_factory=dict)  # path: bytes, SHA-256; empty: nothing is checked
    format: int = FORMAT


def write_record(folder: Path, export: Export) -> None:
    """Write serving.json, last: a folder with one is complete."""
    write_json(folder / RECORD, asdict(export))


def file_digests(folder: Path) -> dict[str, tuple[int, str]]:
    """Size and SHA-256 of every file of an export but its record."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != RECORD)
    return {path.relative_to(folder).as_posix(): (path.stat().st_size, file_digest(path)) for path in files}


def read_record(folder: Path) -> Export:
    """The record of an exported folder. Missing if there is none, Corrupt if it is invalid."""
    path = folder / RECORD
    if not path.is_file():
        raise Missing(f"{path}: not found, expected an exported folder; make one with retemper champion export FOLDER")
    value = read_json(path)
    try:
        export = Export(**value)
        broken = export.format != FORMAT or not export.encoders or not all(len(pair) == 2 for pair in export.encoders.values())
        query_settings = int(export.query["max_length"]), str(export.query["prefix"])
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise Corrupt(f"{path}: not the record of an export ({error}); export again") from None
    if broken or query_settings[0] < 1:
        raise Corrupt(f"{path}: found format {export.format}, expected {FORMAT} with an encoder; export again with this version")
    return export


def refuse_damaged(folder: Path, export: Export) -> None:
    """Corrupt if a file of an export is missing, or differs in size or SHA-256 from what serving.json says.

    Also if there is a router that it does not list, which an older export in the same place leaves: queries would get another encoder.
    """
    for encoder, _ in export.encoders.values():
        name = (Path(encoder) / ROUTER).as_posix()
        if export.files and name not in export.files and (folder / name).exists():
            raise Corrupt(f"{folder / name}: found a file of another export, which {RECORD} does not list; delete it, or export again")
    for name, (size, digest) in export.files.items():
        path = folder / name
        if not path.is_file():
            raise Corrupt(f"{path}: missing from the export; copy or export it again")
        if (found := path.stat().st_size) != size:
            raise Corrupt(f"{path}: found {found:,} bytes, expected {size:,}; copy or export it again")
        if file_digest(path) != digest:
            raise Corrupt(f"{path}: its content has changed since the export (SHA-256 differs); copy or export it again")
