"""Training queries that are also in dev or test: refused with their count and the fix, dropped, or kept and counted."""

from typing import Any

import pytest

from tasks.core.errors import UserError
from tasks.prepare.params import Prepare
from tasks.prepare.stats import stats_table

HEAD = "query-id\tcorpus-id\tscore\n"
FILES = {
    "corpus.jsonl": "".join(f'{{"_id": "d{n}", "title": "", "text": "text {n}"}}\n' for n in range(3)),
    "queries.jsonl": "".join(
        f'{{"_id": "{name}", "text": "{text}"}}\n'
        for name, text in [("a", "Who  was Ada"), ("b", "alone"), ("c", "who was ada"), ("d", "in both"), ("e", "of dev"), ("f", "Alone?")]
    ),
    "qrels/train.tsv": f"{HEAD}a\td0\t1\nb\td1\t1\nd\td2\t1\n",  # a asks what c does, d is itself in dev
    "qrels/dev.tsv": f"{HEAD}d\td2\t1\ne\td1\t1\nf\td1\t1\n",
    "qrels/test.tsv": f"{HEAD}c\td0\t1\ne\td1\t1\n",
}


def test_leaks_are_refused_with_their_count_and_the_fix(prepare: Any, write_files: Any) -> None:
    line = r"queries.jsonl:1: training query 'a' is also in dev or test, .*\(2 such queries\).*; remove them, or set prepare.leaks=drop"
    with pytest.raises(UserError, match=line):
        prepare(f"beir:{write_files(FILES)}", leaks="refuse")
    assert Prepare().leaks == "refuse"


def test_leaks_are_dropped_from_train_alone(prepare: Any, write_files: Any) -> None:
    prepared = prepare(f"beir:{write_files(FILES)}", leaks="drop")
    assert {split: [row[0] for row in rows] for split, rows in prepared.queries.items()} == {
        "train": ["b"],
        "dev": ["d", "e", "f"],
        "test": ["c", "e"],
    }
    assert [row[:2] for row in prepared.qrels["train"]] == [("b", "d1")]
    assert len(prepared.qrels["dev"]) == 3
    assert "dropped: 2 queries of train that are also in dev or test" in stats_table(prepared.stats)


def test_leaks_are_kept_and_counted(prepare: Any, write_files: Any) -> None:
    prepared = prepare(f"beir:{write_files(FILES)}", leaks="allow")
    assert [row[0] for row in prepared.queries["train"]] == ["a", "b", "d"]
    assert prepared.stats["leaks"] == 2
    assert "also in dev or test: 2 queries of train" in stats_table(prepared.stats)


def test_without_training_queries_nothing_leaks(prepare: Any, write_files: Any) -> None:
    prepared = prepare(f"beir:{write_files({name: text for name, text in FILES.items() if name != 'qrels/train.tsv'})}", leaks="refuse")
    assert "leaks" not in prepared.stats


def test_queries_of_dev_that_are_in_test_are_counted_by_id_or_text(prepare: Any, write_files: Any) -> None:
    files = FILES | {"qrels/dev.tsv": f"{HEAD}d\td2\t1\ne\td1\t1\na\td0\t1\n"}  # a has the text of c, e is itself in test
    prepared = prepare(f"beir:{write_files({name: text for name, text in files.items() if name != 'qrels/train.tsv'})}", leaks="refuse")
    assert prepared.stats["dev_in_test"] == 2
    assert "also in test, by id or text: 2 queries of dev; systems are chosen and evaluated on these" in stats_table(prepared.stats)
    folder = write_files({"qrels/dev.tsv": f"{HEAD}d\td2\t1\n"})
    prepared = prepare(f"beir:{folder}")
    assert "dev_in_test" not in prepared.stats
