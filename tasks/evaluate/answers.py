"""Coverage (answer hits, top-k accuracy): whether one of the best documents contains an answer. Strings match as in DPR's evaluation.

DPR (arXiv:2004.04906); its dpr/data/qa_validation.py `has_answer`, and dpr/utils/tokenizers.py `SimpleTokenizer`.
"""

import unicodedata
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import regex

from tasks.core.errors import UserError
from tasks.core.tables.parquet import read_batches, read_table
from tasks.core.tables.schemas import DOCUMENTS, QUERIES
from tasks.core.trec.runs import read_run

WORDS = regex.compile(r"[\p{L}\p{N}\p{M}]+|[^\p{Z}\p{C}]")  # SimpleTokenizer: runs of letters, digits, and marks, or one other sign


def normalized_tokens(text: str) -> list[str]:
    """The tokens of `text`, normalized to NFD and lower-cased."""
    return [token.lower() for token in WORDS.findall(unicodedata.normalize("NFD", text))]


def contains(text: Sequence[str], answer: Sequence[str]) -> bool:
    """Whether the tokens `answer` occur in `text` as one run. False for an empty answer."""
    size = len(answer)
    return size > 0 and any(text[place] == answer[0] and text[place : place + size] == answer for place in range(len(text) - size + 1))


def read_answers(path: Path, judged: Collection[str]) -> dict[str, list[list[str]]]:
    """The answers of every judged query, as tokens. UserError for a judged query without one."""
    table = read_table(path, QUERIES, ["id", "answers"])
    answers: dict[str, list[list[str]]] = {}
    for query, query_answers in zip(table["id"].to_pylist(), table["answers"].to_pylist(), strict=True):
        if query in judged:
            answers[query] = [tokens for tokens in map(normalized_tokens, query_answers or []) if tokens]
            if not answers[query]:
                raise UserError(
                    f"{path}: query {query} has no answers, expected at least one for Coverage; add `answers` to the source's queries, "
                    "or remove Coverage from evaluate.measures"
                )
    return answers


def first_hits(run: Path, documents: Path, answers: Mapping[str, list[list[str]]], depth: int) -> dict[str, int]:
    """The rank (from 1) of each query's first document, among its `depth` best, whose text contains an answer.

    Queries without such a document are left out. Only texts of ranked documents are read, not titles, one batch of the corpus at a time.
    """
    ranked: dict[str, list[tuple[str, int]]] = {}  # document: (query, rank) of each list it is in
    for query, docs in read_run(run, depth):
        if query in answers:
            for rank, doc in enumerate(docs, 1):
                ranked.setdefault(doc, []).append((query, rank))
    hits: dict[str, int] = {}
    for batch in read_batches(documents, DOCUMENTS, ["id", "text"]):
        for doc, text in zip(batch["id"].to_pylist(), batch["text"], strict=True):
            if places := ranked.get(doc):
                tokens = normalized_tokens(text.as_py())
                for query, rank in places:
                    if rank < hits.get(query, rank + 1) and any(contains(tokens, answer) for answer in answers[query]):
                        hits[query] = rank
    return hits
