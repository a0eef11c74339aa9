"""Ids with white space: refused with their count and the fix, or kept as they are."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tasks.core.errors import UserError
from tasks.core.sources.datasets import parse_dataset
from tasks.prepare.corpus import pair_ids
from tasks.prepare.readers.kinds import read
from tasks.prepare.source import At, Negative, Source
from tasks.prepare.stats import stats_table

FILES = {
    "corpus.jsonl": "".join(
        f'{{"_id": "{name}", "title": "", "text": "text of {place}"}}\n'
        for place, name in enumerate(["doc 1", "doc 2", "d3", "a\\ttab and\\nlines"])
    ),
    "queries.jsonl": '{"_id": "query 1", "text": "one"}\n{"_id": "q2", "text": "two"}\n',
    "qrels/train.tsv": "query-id\tcorpus-id\tscore\nquery 1\tdoc 1\t1\n",
    "qrels/dev.tsv": "query-id\tcorpus-id\tscore\nq2\td3\t1\n",
    "qrels/test.tsv": "query-id\tcorpus-id\tscore\nq2\tdoc 2\t1\n",
}


def test_white_ids_are_refused_with_their_count_and_the_fix(prepare: Any, write_files: Any) -> None:
    line = r"corpus.jsonl:1: found document id 'doc 1', expected one without white space, .* \(3 such document ids\); .*prepare.ids=escape$"
    with pytest.raises(UserError, match=line):
        prepare(f"beir:{write_files(FILES)}")
    documents = FILES["corpus.jsonl"].replace("doc 1", "d1").replace("doc 2", "d2").replace("a\\ttab and\\nlines", "d4")
    qrels = {name: text.replace("doc ", "d") for name, text in FILES.items() if name.startswith("qrels")}
    with pytest.raises(UserError, match=r"queries.jsonl:1: found query id 'query 1'.*\(1 such query id\)"):
        prepare(f"beir:{write_files({**FILES, **qrels, 'corpus.jsonl': documents})}")


def test_white_ids_are_kept_and_counted_with_ids_escape(prepare: Any, write_files: Any) -> None:
    prepared = prepare(f"beir:{write_files(FILES)}", ids="escape")
    assert [row[0] for row in prepared.documents] == ["doc 1", "doc 2", "d3", "a\ttab and\nlines"]
    assert [row[0] for row in prepared.queries["train"]] == ["query 1"]
    assert [row[:2] for row in prepared.qrels["train"]] == [("query 1", "doc 1")]
    assert prepared.stats["white_ids"] == {"document": 3, "query": 1}
    assert "ids with white space, percent-encoded in TREC files: 3 documents, 1 query\n" in f"{stats_table(prepared.stats)}\n"


def test_official_negatives_keep_white_ids(prepare: Any, write_files: Any) -> None:
    source: Source = read(parse_dataset(f"beir:{write_files(FILES)}"))
    at = At(Path("negatives"), 1)
    negatives = [Negative(at, "query 1", doc) for doc in ("a\ttab and\nlines", "doc 1", "doc 2", "d3")]
    prepared = prepare(replace(source, negatives=lambda: iter(negatives)), ids="escape")
    assert [row[1] for row in prepared.official] == ["a\ttab and\nlines", "doc 2", "d3"], "without the positive"


def test_different_pairs_have_different_ids() -> None:
    assert len(set(pair_ids(["a", "a\tb", "1 a"], ["b\tc", "c", ""]))) == 3
