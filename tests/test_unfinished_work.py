"""Unfinished work is resumed only if nothing that it depends on has changed: every stage that keeps some has a digest of all of it."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
import pytest
import torch

from tasks.core.errors import UserError

PARALLEL = "tasks.core.workers.each"  # tells on what machine the ranks and workers of most stages compute
OF_DEV = tuple(f"data/corpus/{kind}/dev.parquet" for kind in ("queries", "qrels"))
TOKENS, QRELS = ("data/tokens/queries/train/tokens.bin",), ("data/corpus/qrels/train.parquet",)
CORPUS, TOKENIZER = ("data/corpus/documents.parquet",), ("data/tokenizer/tokenizer.json",)


class Work(NamedTuple):
    """A stage of dvc.yaml that keeps unfinished work of a kind, and what this depends on: parameters, files, libraries, the machine."""

    stage: str
    kind: str
    parameters: dict[str, object]
    files: tuple[str, ...]
    machine: str = ""  # the module that asks for hardware and dtype; empty if the stage computes in whole numbers
    version: bool = False  # of a library that the digest of code does not have


WORKS = [
    Work(
        "train@taught",
        "train-taught",
        {"rounds.taught.schedule_steps": 3, "rounds.taught.optimizer_from": "continue"},
        (
            "data/encoders/warmup/config.json",
            "data/state/warmup/state.json",
            "data/negatives/ce/train.parquet",
            "data/tokens/documents/tokens.bin",
            "data/weights/train.parquet",
            *TOKENS,
            *QRELS,
        ),
        PARALLEL,
    ),
    Work(
        "pretrain@costa",
        "pretrain-costa",
        {"pretrain.costa.steps": 3},
        ("data/encoders/base/config.json", "data/chunks/tokens.bin"),
        PARALLEL,
    ),
    Work(
        "adore@tower",
        "adore.tower",
        {"adore.tower.steps": 3},
        ("data/encoders/warmup/config.json", "data/embeddings/warmup/manifest.json", *TOKENS, *QRELS),
        PARALLEL,
    ),
    Work(
        "reranker@small",
        "reranker-small",
        {"rerankers.small.steps": 2, "text.titles": True},
        (
            "source/config.json",
            "data/negatives/mixed/train.parquet",
            "data/tokens/documents/same.npy",
            "data/corpus/queries/train.parquet",
            *CORPUS,
            *QRELS,
        ),
        PARALLEL,
    ),
    Work(
        "teacher@ce",
        "teacher-ce",
        {"teacher.ce.depth": 3, "text.titles": True},
        ("data/rerankers/small/config.json", "data/negatives/mixed/train.parquet", "data/corpus/queries/train.parquet", *CORPUS, *QRELS),
        PARALLEL,
    ),
    Work("mine@warmup", "mine-warmup", {"mine.warmup.depth": 10}, ("data/encoders/warmup/config.json", *TOKENS, *QRELS), PARALLEL),
    Work(
        "pseudo",
        "pseudo-generated",
        {"pseudo.per_document": 2, "text.titles": True},
        ("source/config.json", *CORPUS),
        "tasks.pseudo.__main__",
    ),
    Work(
        "pseudo",
        "pseudo",
        {"tokenize.query_length": 16, "text.titles": True},
        ("data/encoders/base/config.json", *CORPUS, *TOKENIZER),
        "tasks.pseudo.__main__",
    ),
    Work(
        "bm25",
        "bm25",
        {"bm25.k1": 1.0, "text.titles": True},
        ("data/corpus/queries/train.parquet", "data/corpus/queries/dev.parquet", *CORPUS),
        version=True,
    ),
    Work("tokenize", "tokenize", {"tokenize.query_length": 16, "text.titles": True}, (*CORPUS, *TOKENIZER), version=True),
    Work("chunk", "chunk", {"chunk.length": 64}, ("data/articles/articles.parquet", *TOKENIZER), version=True),
    Work("articles", "articles", {"articles.least_words": 10}, ("articles.jsonl",), version=True),
]


@pytest.fixture
def project(small: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A project of which every stage has so much to do that it keeps what is unfinished."""
    for path in (small.folder / "data/encoders/base").rglob("*.json"):
        small.write(f"source/{path.relative_to(small.folder / 'data/encoders/base')}", path.read_bytes())
    small.write("articles.jsonl", "{}\n")
    pseudo = {"kinds": ["sentence", "generated"], "generator": "./source"}
    for key, value in {"rerankers.small.source": "./source", "pseudo": pseudo, "articles.source": "jsonl:articles.jsonl"}.items():
        small.set(key, value)
    monkeypatch.setattr("tasks.articles.__main__.LARGE", 0)
    monkeypatch.setattr("tasks.chunk.__main__.ALONE", 0)
    monkeypatch.setattr("tasks.tokenize.__main__.is_large", lambda _: True)
    monkeypatch.setattr("tasks.mine.__main__.size_of_parts", lambda *_: 4)
    return small


@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.kind)
def test_all_that_a_work_depends_on_is_in_its_digest(work: Work, project: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module = raise_digest_of(work, project, monkeypatch)
    digests = [digest_of(project, work)]
    assert digest_of(project, work) == digests[0]
    for name, change in changes(work, project, module, monkeypatch):
        change()
        digest = digest_of(project, work)
        assert digest not in digests, f"{name} is not in the digest"
        digests.append(digest)


@pytest.mark.parametrize("kind", ["train-taught", "adore.tower", "reranker-small", "teacher-ce", "mine-warmup"])
def test_new_judgments_of_dev_drop_no_unfinished_training(kind: str, project: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    work = next(work for work in WORKS if work.kind == kind)
    raise_digest_of(work, project, monkeypatch)
    digest = digest_of(project, work)
    for name in OF_DEV:
        project.write(name, altered(project.folder / name))
    assert digest_of(project, work) == digest


def raise_digest_of(work: Work, project: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make the stage end with the digest of the work, and return the name of its module."""
    module = f"tasks.{work.stage.split('@')[0]}.__main__"

    def raise_digest(kind: str, digest: str) -> Path:
        if kind == work.kind:
            raise UserError(digest)
        return project.folder / "other"

    monkeypatch.setattr(f"{module}.scratch_folder", raise_digest)
    monkeypatch.setattr(f"{module}.code_digest", lambda stage: f"code of {stage}")
    return module


def digest_of(project: Any, work: Work) -> str:
    """The digest that names the work."""
    result = project.stage(work.stage)
    digests = re.findall(r"^retemper: ([0-9a-f]{64})$", result.err, re.MULTILINE)
    assert len(digests) == 1, result
    return str(digests[0])


def changes(work: Work, project: Any, module: str, patch: pytest.MonkeyPatch) -> Iterator[tuple[str, Callable[[], None]]]:
    """What changes one thing after another, by the name of this."""
    yield "the code", lambda: patch.setattr(f"{module}.code_digest", lambda stage: f"other code of {stage}")
    if work.machine:
        yield "the hardware", lambda: patch.setattr(f"{work.machine}.hardware", lambda *_: "another machine")
        yield "the dtype", lambda: patch.setattr(f"{work.machine}.compute_dtype", lambda *_: torch.float64)
    if work.version:
        yield "the library", lambda: patch.setattr(f"{module}.version", lambda _: "0.0.1")
    for key, value in work.parameters.items():
        yield key, lambda key=key, value=value: project.set(key, value)
    for name in work.files:
        yield name, lambda name=name: project.write(name, altered(project.folder / name))


def altered(path: Path) -> bytes:
    """Other bytes, which can be read."""
    if path.suffix in (".json", ".jsonl"):
        return path.read_bytes() + b"\n"
    if path.suffix != ".parquet":
        return path.read_bytes()[::-1]
    copy = path.with_suffix(".copy")
    pq.write_table(pq.read_table(path), copy, compression="gzip")
    content = copy.read_bytes()
    copy.unlink()
    return content
