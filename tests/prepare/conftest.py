"""A source prepared in this process, and the result as plain Python values."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tasks.core.sources.datasets import parse_dataset
from tasks.core.tables.schemas import SPLITS
from tasks.prepare.corpus import write_corpus
from tasks.prepare.negatives import write_official
from tasks.prepare.params import Prepare
from tasks.prepare.readers.kinds import read
from tasks.prepare.source import Source


@dataclass(frozen=True)
class Prepared:
    folder: Path
    documents: list[tuple[Any, ...]]
    queries: dict[str, list[tuple[Any, ...]]]
    qrels: dict[str, list[tuple[Any, ...]]]
    official: list[tuple[Any, ...]]
    stats: dict[str, Any]
    counts: Counter[str]


Prepares = Callable[..., Prepared]


def rows(path: Path) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in pq.read_table(path).to_pylist()]


@pytest.fixture
def prepare(tmp_path: Path) -> Prepares:
    """prepare("beir:PATH" or a Source, unknown_documents="drop", ...); queries may be in several splits, unless `leaks` says otherwise."""

    def run(source: str | Source, needs_qrels: bool = True, **settings: Any) -> Prepared:
        folder = tmp_path / f"prepared{len(list(tmp_path.glob('prepared*')))}"
        (folder / "corpus").mkdir(parents=True)
        (folder / "official").mkdir()
        stream = read(parse_dataset(source), needs_qrels=needs_qrels) if isinstance(source, str) else source
        parameters = Prepare(**{"leaks": "allow", **settings})
        corpus = write_corpus(stream, parameters, folder / "corpus", needs_qrels=needs_qrels)
        counts = write_official(stream, corpus, folder / "corpus" / "queries" / "train.parquet", parameters, folder / "official")
        assert [file.name for file in (folder / "official").iterdir()] == ["train.parquet"]
        return Prepared(
            folder / "corpus",
            rows(folder / "corpus" / "documents.parquet"),
            {split: rows(folder / "corpus" / "queries" / f"{split}.parquet") for split in SPLITS},
            {split: rows(folder / "corpus" / "qrels" / f"{split}.parquet") for split in SPLITS},
            rows(folder / "official" / "train.parquet"),
            json.loads((folder / "corpus" / "stats.json").read_text(encoding="utf-8")),
            counts,
        )

    return run


@pytest.fixture
def write_files(tmp_path: Path) -> Callable[[dict[str, str | bytes]], Path]:
    """Write files, by relative name, to a source folder; returns that folder."""

    def write(files: dict[str, str | bytes]) -> Path:
        for name, content in files.items():
            file = tmp_path / "source" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content.encode() if isinstance(content, str) else content)
        return tmp_path / "source"

    return write
