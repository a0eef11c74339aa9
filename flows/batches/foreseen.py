"""What the stages will find in the merged data set: prepare, training queries that leak, and splits that keep no relevant document;
evaluate, queries without answers.

It counts as prepare does. The later of two documents, texts of a query, or judgments counts; a judgment counts only if its document and
query exist and have a text; under prepare.leaks=drop, judgments of leaking training queries do not count.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from flows.batches.known import Mask, Part, Rows, pair_hashes
from flows.pipeline.splits import LEARNING, training_stages
from tasks.core.sources.datasets import SPLITS
from tasks.core.tables.id_sets import Hashes, hashes

EMPTY = hashes([""])[0]


class Settings(NamedTuple):
    """How prepare treats the merged data set: whether it refuses `unknown` documents, `empty` texts, and `white_ids`; its `leaks` setting.

    `negatives`: it reads the source's negatives. `whole`: each batch is a data set by itself. `qrels`: that needs judgments. `train`: also
    of the train split, because some model learns from them. `coverage`: a measure that needs answers, if evaluate has one.
    """

    unknown: bool = True
    empty: bool = True
    leaks: str = "refuse"
    white_ids: bool = True
    negatives: bool = True
    whole: bool = False
    qrels: bool = True
    train: bool = True
    coverage: str = ""


def settings_of(sections: Mapping[str, Any], *, whole: bool = False) -> Settings:
    """The settings that the sections of params.yaml imply."""
    prepare = sections.get("prepare") or {}
    unknown, empty, ids = (prepare.get(name, "refuse") == "refuse" for name in ("unknown_documents", "empty_texts", "ids"))
    negatives = prepare.get("official_depth") != 0
    qrels = sections.get("queries") != "pseudo"
    train = training_stages([f"{stage}@{key}" for stage, name in LEARNING.items() for key in sections.get(name) or {}], sections)
    measures = (sections.get("evaluate") or {}).get("measures") or ()
    coverage = next((name for name in measures if qrels and str(name).startswith("Coverage")), "")
    return Settings(unknown, empty, prepare.get("leaks", "refuse"), ids, negatives, whole, qrels, bool(train), coverage)


@dataclass(frozen=True)
class Foreseen:
    """What will be found. Queries and texts are given by their hashes.

    `leaked`: training queries that are also in dev or test, with their texts; `by_id`: those of them whose ids are; `held_out`: queries of
    dev and test with one of these texts, and the text; `bare`: splits that have judgments but keep no relevant one, with the number of
    relevant ones that are dropped; `texts`: whether any document has a text; `unanswered`: by split, dev and test, the queries without an
    answer.
    """

    leaked: Mapping[int, int]
    by_id: Collection[int]
    held_out: Sequence[tuple[int, int]]
    bare: Mapping[str, int]
    texts: bool
    unanswered: Mapping[str, Collection[int]]


def foresee(parts: Sequence[Part], settings: Settings) -> Foreseen:
    """What prepare will find once `parts` are merged in this order."""
    judged = {split: _merged(parts, split) for split in SPLITS}
    usable = {split: _have_text(rows.docs, parts) for split, rows in judged.items()}
    query_text = {split: _texts_of(rows.queries, parts) for split, rows in judged.items()}
    kept_rows = {split: usable[split] & query_text[split][0] & (query_text[split][1] != EMPTY) for split in SPLITS}
    held_out_rows = {split: usable[split] & query_text[split][0] for split in SPLITS if split != "train"}
    ids = np.concatenate([judged[split].queries[mask] for split, mask in held_out_rows.items()])
    texts = np.concatenate([query_text[split][1][mask] for split, mask in held_out_rows.items()])

    train, train_texts = judged["train"].queries, query_text["train"][1]
    by_id = kept_rows["train"] & np.isin(train, ids)
    leaking = by_id | (kept_rows["train"] & np.isin(train_texts, texts))
    if settings.leaks == "drop":
        kept_rows["train"] = kept_rows["train"] & ~leaking
    bare = {
        split: int(rows.relevant.sum()) for split, rows in judged.items() if len(rows.docs) and not (rows.relevant & kept_rows[split]).any()
    }
    leaked = dict(zip(train[leaking].tolist(), train_texts[leaking].tolist(), strict=True))
    is_leaked = np.isin(texts, train_texts[leaking])
    unanswered = {
        split: {*judged[split].queries[kept_rows[split] & ~_have_answers(judged[split].queries, parts)].tolist()} for split in held_out_rows
    }
    held_out = [*zip(ids[is_leaked].tolist(), texts[is_leaked].tolist(), strict=True)]
    return Foreseen(leaked, {*train[by_id].tolist()}, held_out, bare, _any_text(parts), unanswered)


def judged_queries(parts: Sequence[Part], split: str) -> Hashes:
    """Hashes of the queries with judgments in a split."""
    return np.unique(_merged(parts, split).queries)


def query_texts(parts: Sequence[Part], splits: Sequence[str]) -> set[int]:
    """Hashes of the texts of the queries that are judged in one of the splits."""
    text_hashes = set[int]()
    for split in splits:
        known, texts = _texts_of(_merged(parts, split).queries, parts)
        text_hashes.update(texts[known].tolist())
    return text_hashes


def _merged(parts: Sequence[Part], split: str) -> Rows:
    """The judgments of a split in all parts, keeping only the last of each (query, document) pair."""
    blocks = [rows for part in parts for rows in part.judged.get(split, ())]
    if not blocks:
        no_hashes: Hashes = np.empty(0, dtype=np.uint64)
        return Rows(no_hashes, no_hashes, np.empty(0, dtype=np.bool_))
    queries, docs = (np.concatenate([getattr(rows, name) for rows in blocks])[::-1] for name in ("queries", "docs"))
    relevant = np.concatenate([rows.relevant for rows in blocks])[::-1]
    _, last = np.unique(pair_hashes(queries, docs), return_index=True)
    return Rows(queries[last], docs[last], relevant[last])


def _have_text(docs: Hashes, parts: Sequence[Part]) -> Mask:
    """Whether each document exists, and is not blank in the last part that has it."""
    has_text: Mask = np.zeros(len(docs), dtype=np.bool_)
    for part in parts:
        in_part = part.documents.have(docs)
        has_text = np.where(in_part, ~np.isin(docs, _array(part.blank)), has_text)
    return has_text


def _any_text(parts: Sequence[Part]) -> bool:
    blank = _array({key for part in parts for key in part.blank})
    still_blank = blank[~_have_text(blank, parts)]
    return any(len(part.documents) > part.documents.have(still_blank).sum() for part in parts)


def _texts_of(queries: Hashes, parts: Sequence[Part]) -> tuple[Mask, Hashes]:
    """Whether each query exists, and the hash of its latest text."""
    exists, texts = np.zeros(len(queries), dtype=np.bool_), np.zeros(len(queries), dtype=np.uint64)
    for part in parts:
        places = part.queries.last(queries)
        in_part = places >= 0
        texts[in_part] = np.array(part.query_texts, dtype=np.uint64)[places[in_part]]
        exists |= in_part
    return exists, texts


def _have_answers(queries: Hashes, parts: Sequence[Part]) -> Mask:
    """Whether each query has an answer, by the last part that has the query."""
    answered: Mask = np.zeros(len(queries), dtype=np.bool_)
    for part in parts:
        places = part.queries.last(queries)
        in_part = places >= 0
        answered[in_part] = np.array(part.answered, dtype=np.bool_)[places[in_part]]
    return answered


def _array(keys: Collection[int]) -> Hashes:
    return np.array(sorted(keys), dtype=np.uint64)
