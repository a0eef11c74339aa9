"""The size of the data, and how much work and disk a stage needs for it, by which estimates are scaled."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tasks.core.tokens.params import Tokenize

STATS = Path("data/corpus/stats.json")
TOKENS_A_WORD = 1.35  # for English with WordPiece
FREE = ("base", "freeze")  # stages that do not grow with the data
BY_DOCUMENTS = ("prepare", "tokenize", "bm25", "pseudo", "encode", "index")  # outs grow with the documents
BY_QUERIES = ("retrieve", "retrieve_bm25", "retrieve_adore", "evaluate", "rerank", "rescore", "fuse")  # outs grow with measured queries
A_QUERY = 1_000_000  # documents whose exact search takes about as long as the rest of a query: encoding it, writing its ranks
BY_TRAINING = ("mine", "mix", "teacher")  # outs grow with the training queries


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
    """Documents, judged queries by split, and mean tokens per document, including special ones, up to the length that is read."""

    documents: int
    train: int
    dev: int
    test: int
    tokens: float


def size_of(stats: Mapping[str, Any], tokenize: Tokenize) -> Size:
    """The size by data/corpus/stats.json; tokens are estimated from words."""
    splits = stats["splits"]
    counts = [int(splits[split]["queries"]) for split in ("train", "dev", "test")]
    max_tokens = tokenize.document_length * tokenize.passages
    tokens = min(max_tokens, TOKENS_A_WORD * stats["documents"]["words"]["mean"] + 2)
    return Size(int(stats["documents"]["count"]), counts[0], counts[1], counts[2], tokens)


def current_size(sections: Mapping[str, Any]) -> Size | None:
    """The size of the prepared corpus under these parameters; None before it is prepared."""
    try:
        return size_of(json.loads(STATS.read_text(encoding="utf-8")), Tokenize(**(sections.get("tokenize") or {})))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def work(stage: str, size: Size, rounds: Mapping[str, Steps]) -> float | None:
    """The amount of a stage's work, in a unit of its kind; None if it does not follow from the data's size."""
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
    """The size that a stage's outs are proportional to, in a unit of its kind; 1 if they do not grow with the data (models)."""
    kind = stage.partition("@")[0]
    if kind in BY_DOCUMENTS:
        return size.documents
    if kind in BY_TRAINING:
        return size.train
    return size.dev + size.test if kind in BY_QUERIES or kind.startswith("evaluate") else 1
