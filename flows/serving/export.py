"""The champion, or a model of the workspace, as a folder that the search server reads (tasks/core/models/export.py)."""

import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from flows.champions import champion
from flows.champions.champion import Champion, Get
from flows.champions.parts import Parts
from flows.parameters.checks import PARAMS
from flows.repository.lock import Lock, mapping_at, parameters, read_lock
from flows.results.fusions import BM25, depths
from flows.results.search import search_parts
from flows.serving.card import CARD, without_folder, write_card
from flows.serving.vectors import write_vectors
from tasks.core.errors import UserError
from tasks.core.files import new_folder, read_json, read_mapping, write_json
from tasks.core.models.export import RECORD, Export, file_digests, read_record, refuse_damaged, write_record
from tasks.core.params.sections import read_yaml
from tasks.core.text.document import Text

IDS = ("ids.parquet", "owners.npy")


def current(project: Path) -> Champion:
    """The current champion. Raises UserError if there is none."""
    champion_now = champion.current(project)
    if champion_now is None:
        raise UserError(champion.NONE_YET)
    return champion_now


def export(project: Path, folder: Path, *, documents: bool = False, vectors: bool = False) -> Champion:
    """Export the champion to `folder` (new or empty), with everything that a server needs, and its card, README.md.

    Each index comes with ids.parquet and owners.npy: row r of the index is a passage of document number owners[r], whose id is
    ids[owners[r]]. `documents`: also titles and texts; `vectors`: also vectors.parquet. The folder appears when it is complete.
    """
    now = current(project)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder}: not empty, expected a new folder")
    place = folder.resolve()  # a link to a folder stays one
    if os.path.ismount(place):
        raise UserError(f"{folder}: found a mount point, which cannot be replaced; expected a new folder, such as {folder / 'export'}")
    with new_folder(place) as new:
        copy_champion(project, now, new, documents=documents)
        if vectors:
            write_vectors(champion.getter(project, now.commit), champion.lock_at(project, now.commit), new, documents=documents)
        write_record(new, replace(read_record(new), files=file_digests(new)))
        write_card(project, now, new)  # not among the files with digests: people edit it
    return now


def exported(project: Path, folder: Path, *, documents: bool, vectors: bool) -> Champion | None:
    """The current champion if `folder` is its export with just these parts and nothing else, as after a push that failed; else None.

    Corrupt if a file of that export is missing, or has changed.
    """
    now, record = current(project), read_mapping(folder / "champion.json")
    if (record.get("number"), record.get("commit")) != (now.number, now.commit):
        return None
    written = read_record(folder)
    if (written.documents is not None, (folder / "vectors.parquet").exists()) != (documents, vectors):
        return None
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    if not files <= {*written.files, RECORD, CARD}:  # a push sends every file
        return None
    refuse_damaged(folder, written)
    return now


def copy_champion(project: Path, now: Champion, folder: Path, *, documents: bool) -> None:
    """Copy everything that a server needs of a champion from the cache or the remote; serving.json is written last."""
    get = champion.getter(project, now.commit)
    parts, lock = champion.parts_at(project, now), champion.lock_at(project, now.commit)
    for kind, path in parts.paths.items():
        if kind != "corpus":
            _export_part(get, path, folder / kind)
    if documents:
        get(f"{parts.paths['corpus']}/documents.parquet", folder / "documents.parquet")
    # An export may leave this machine.
    data = {**now.data, "source": without_folder(str(now.data.get("source", "unknown")))} if now.data else {}
    write_json(folder / "champion.json", asdict(replace(now, data=data)))
    texts = {part: champion.read_out(project, now.commit, f"data/tokens/{part}/meta.json") for part in ("documents", "queries/train")}
    sections = mapping_at(now.commit, "params.yaml", project)
    fields = serving_record(parts, now.model, texts, lock=lock, sections=sections)
    fields |= {"label": f"champion/{now.number} {now.model}", "documents": "documents.parquet" if documents else None}
    write_record(folder, Export(**fields, files=file_digests(folder)))


def _export_part(get: Get, path: str, to: Path) -> None:
    get(path, to)
    record, index = to / "index.json", to / "index.faiss"
    if record.exists() and not index.exists():  # trained over its round's vectors: flows.results.search
        get(f"data/indexes/{read_json(record)['round']}", to)
    if index.exists():
        for name in IDS:
            get(f"data/tokens/documents/{name}", to / name)


def serving_record(
    parts: Parts, model: str, texts: Mapping[str, Mapping[str, Any]], *, lock: Lock, sections: Mapping[str, Any]
) -> dict[str, Any]:
    """The content of serving.json for a champion: its systems, and how texts were given to its encoder."""
    encoders = {name: (kind, kind.replace("encoder", "index", 1)) for name, kind in parts.encoders.items()}
    fusions = {name: record for name, record in parts.fusion.items() if name != BM25}
    depth, bm25_depth = depths(parts.encoders, lock, sections)
    return {
        "model": model,
        "encoders": encoders,
        "bm25": BM25 if BM25 in parts.paths else None,
        "fusions": fusions,
        "depth": depth,
        "bm25_depth": bm25_depth,
        **text_settings(texts, parameters(lock.get("tokenize", {}))),
    }


def text_settings(texts: Mapping[str, Mapping[str, Any]], settings: Mapping[str, Any]) -> dict[str, Any]:
    """How queries and documents were given to the encoder: prefixes and lengths from the token folders, the rest from `settings`."""
    text = Text(**{key: value for key, value in (settings.get("text") or {}).items() if key in Text.model_fields})
    tokenize = settings.get("tokenize") or {}
    query, document = ({key: texts[part][key] for key in ("prefix", "max_length")} for part in ("queries/train", "documents"))
    cut = {"passages": tokenize.get("passages", 1), "passage_overlap": tokenize.get("passage_overlap", 0)}
    return {"query": query, "document": document | cut | text.model_dump()}


def link(model: str, folder: Path) -> None:
    """Link a model of this workspace in the form of an export, without copying. Raises UserError if it cannot be searched."""
    sections = read_yaml(PARAMS)
    parts = search_parts(model, sections)
    encoders = {}
    for number, (name, (encoder, index)) in enumerate(parts.dense.items()):
        encoders[name] = (f"encoder.{number}", f"index.{number}")
        (folder / f"encoder.{number}").symlink_to(encoder.absolute())
        (folder / f"index.{number}").mkdir()
        (folder / f"index.{number}/index.faiss").symlink_to((index / "index.faiss").absolute())
        for part in IDS:
            (folder / f"index.{number}" / part).symlink_to(Path("data/tokens/documents", part).absolute())
    if parts.lexical:
        (folder / BM25).symlink_to(Path("data/bm25").absolute())
    (folder / "documents.parquet").symlink_to(Path("data/corpus/documents.parquet").absolute())
    texts = {part: read_json(Path("data/tokens") / part / "meta.json") for part in ("documents", "queries/train")}
    lock = read_lock()
    settings = parameters(lock.get("tokenize", {})) or {key: sections.get(key) for key in ("text", "tokenize")}
    fused = {name: read_json(record) for name, record in parts.fusions.items()}
    fields = {"model": model, "encoders": encoders, "bm25": BM25 if parts.lexical else None, "fusions": fused}
    fields |= text_settings(texts, settings)
    depth, bm25_depth = depths(parts.dense, lock, sections)
    record = Export(**fields, depth=depth, bm25_depth=bm25_depth, label=model, documents="documents.parquet")  # type: ignore[arg-type]
    write_record(folder, record)
