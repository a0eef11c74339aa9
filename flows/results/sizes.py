"""How large the data is, and how much a stage has to do with it: what times and disk are scaled by."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tasks.core.text.token_params import Tokenize

STATS = Path("data/corpus/stats.json")
TOKENS_A_WORD = 1.35  # of English under WordPiece
FREE = ("base", "freeze")  # stages that do not grow with the data
BY_DOCUMENTS = ("prepare", "tokenize", "bm25", "pseudo", "encode", "index")  # whose outs grow with the documents
BY_QUERIES = ("retrieve", "retrieve_bm25", "retrieve_adore", "evaluate", "rerank", "rescore", "fuse")  # with the measured queries
A_QUERY = 1_000_000  # documents whose exact search takes as long, about, as the rest of a query: its encoding, the writing of its ranks
BY_TRAINING = ("mine", "mix", "teacher")  # with the training queries


class Steps(Protocol):
    """How long a round trains."""

    @property
    def steps(self) -> int | None: ...
    @property
    def epochs(self) -> float | None: ...
    @property
    def batch_queries(self) -> int: ...


@dataclass(frozen=True)
class Size:
    """Documents, judged queries by split, and mean tokens of a document, special ones included, as far as they are read."""

    documents: int
    train: int
    dev: int
    test: int
    tokens: float


def size_of(stats: Mapping[str, Any], tokenize: Tokenize) -> Size:
    """By data/corpus/stats.json."""
    splits = stats["splits"]
    counts = [int(splits[split]["queries"]) for split in ("train", "dev", "test")]
    read = tokenize.document_length * tokenize.passages
    tokens = min(read, TOKENS_A_WORD * stats["documents"]["words"]["mean"] + 2)
    return Size(int(stats["documents"]["count"]), counts[0], counts[1], counts[2], tokens)


def current_size(sections: Mapping[str, Any]) -> Size | None:
    """The size of the prepared corpus under these parameters; None before it is prepared."""
    try:
        return size_of(json.loads(STATS.read_text(encoding="utf-8")), Tokenize(**(sections.get("tokenize") or {})))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def work(stage: str, size: Size, rounds: Mapping[str, Steps]) -> float | None:
    """How much a stage has to do, in a unit of its kind; None where that does not follow from the data's size."""
    kind, _, name = stage.partition("@")
    measured = size.dev + size.test
    if kind in ("prepare", "tokenize", "bm25", "encode", "pseudo"):
        return size.documents * size.tokens
    if kind == "index":
        return size.documents
    if kind == "train":
        entry = rounds.get(name)
        if entry is None:  # a removed round
            return None
        queries = entry.steps * entry.batch_queries if entry.steps is not None else (entry.epochs or 0) * size.train
        return queries * size.tokens
    if kind in ("mine", "adore"):
        return size.train * (size.documents + A_QUERY)
    if kind == "retrieve" or kind.startswith("retrieve_"):
        return measured * (size.documents + A_QUERY)
    if kind in ("fuse", "report", "failures") or kind.startswith("evaluate"):
        return measured
    return 1 if kind in FREE else None


def outs(stage: str, size: Size) -> float:
    """What the bytes of a stage's outs grow with, in a unit of its kind; 1 for what does not grow with the data (models)."""
    kind = stage.partition("@")[0]
    if kind in BY_DOCUMENTS:
        return size.documents
    if kind in BY_TRAINING:
        return size.train
    return size.dev + size.test if kind in BY_QUERIES or kind.startswith("evaluate") else 1
