"""MS MARCO's files: passages, documents, TREC qrels, unordered ready-made negatives."""

import gzip
import random
import re
from typing import Any

import pytest

from tasks.core.errors import UserError

FILES: dict[str, str | bytes] = {
    "collection.tsv": "".join(f"{i}\tpassage number {i}\n" for i in range(20)),
    "queries.train.tsv": "102\tsecond\n101\tfirst\n103\tthird, unjudged\n",
    "queries.dev.tsv": "201\tfull dev\n202\tsmall dev\n",
    "qrels.train.tsv": "101\t0\t3\t1\n102\t0\t5\t1\n101\t0\t4\t1\n",
    "qrels.dev.small.tsv": "202 0 7 1\n202 0 8 0\n",
    "qrels.dev.tsv": "201\t0\t6\t1\n202\t0\t7\t1\n",
    "2020qrels-pass.txt": "301 0 9 3\n301 0 1 0\n",
    "msmarco-test2019-queries.tsv": "999\tanother year\n",
    "msmarco-test2020-queries.tsv.gz": gzip.compress(b"301\tgraded\n"),
}


def test_passages(prepare: Any, write_files: Any) -> None:
    prepared = prepare(f"msmarco:{write_files(FILES)}")
    assert prepared.documents == [(str(i), "", f"passage number {i}") for i in range(20)]
    assert prepared.queries == {
        "train": [("102", "second", []), ("101", "first", [])],
        "dev": [("202", "small dev", [])],
        "test": [("301", "graded", [])],
    }
    assert prepared.qrels["train"] == [("101", "3", 1), ("102", "5", 1), ("101", "4", 1)]
    assert prepared.qrels["dev"] == [("202", "7", 1), ("202", "8", 0)]
    assert prepared.qrels["test"] == [("301", "9", 3), ("301", "1", 0)]
    assert prepared.official == []


def test_documents_have_titles(prepare: Any, write_files: Any) -> None:
    files = {
        "msmarco-docs.tsv": "D1\thttp://x\tA title\tThe body\nD2\thttp://y\t\tAnother\n",
        "msmarco-docdev-queries.tsv": "1\tquestion\n",
        "msmarco-docdev-qrels.tsv.gz": gzip.compress(b"1 0 D2 1\n"),
    }
    prepared = prepare(f"msmarco:{write_files(files)}")
    assert prepared.documents == [("D1", "A title", "The body"), ("D2", "", "Another")]
    assert prepared.qrels["dev"] == [("1", "D2", 1)]


def test_a_header_is_no_document(prepare: Any, write_files: Any) -> None:
    header, rows = "pid\tpassage\n", str(FILES["collection.tsv"])
    prepared = prepare(f"msmarco:{write_files(FILES | {'collection.tsv': header + rows})}")
    assert len(prepared.documents) == 20
    prepared = prepare(f"msmarco:{write_files(FILES | {'collection.tsv': rows + header})}")
    assert prepared.documents[-1] == ("pid", "", "passage"), "only the first line is a header"


def test_ids_of_qrels_may_have_what_is_white_only_in_unicode(prepare: Any, write_files: Any) -> None:
    files = {
        "collection.tsv": "doc\u00a01\tpassage\ndoc 2\tpassage\n3\tpassage\n",
        "queries.dev.tsv": "q\u30001\tfirst\nq 2\tsecond\n",
        "qrels.dev.tsv": "q\u30001\t0\tdoc\u00a01\t1\nq 2\t0\tdoc 2\t1\nq\u30001  0 3 \t1 \n",
    }
    prepared = prepare(f"msmarco:{write_files(files)}", ids="escape")
    assert prepared.qrels["dev"] == [("q\u30001", "doc\u00a01", 1), ("q 2", "doc 2", 1), ("q\u30001", "3", 1)]


@pytest.mark.parametrize("depth", [0, 1, 4, 200])
def test_triples_equal_a_plain_loop(prepare: Any, write_files: Any, depth: int) -> None:
    draw = random.Random(depth)
    queries = [str(q) for q in range(500)]
    draw.shuffle(queries)
    qrels = {query: {str(draw.randrange(20)) for _ in range(2)} for query in queries[:300]}
    triples = [(draw.choice(queries), str(draw.randrange(20)), str(draw.randrange(21))) for _ in range(6000)]  # 20 has no text
    folder = write_files(
        {
            **FILES,
            "collection.tsv": str(FILES["collection.tsv"]) + "20\t \n",
            "queries.train.tsv": "".join(f"{query}\tquery {query}\n" for query in queries),
            "qrels.train.tsv": "".join(f"{query}\t0\t{doc}\t1\n" for query, docs in qrels.items() for doc in docs),
            "qidpidtriples.train.full.2.tsv.gz": gzip.compress("".join("\t".join(triple) + "\n" for triple in triples).encode()),
        }
    )
    expected, beyond_depth = [], 0
    for query in queries[:300]:
        unique: list[str] = []
        query_docs = [doc for other, _, doc in triples if other == query and doc not in {*qrels[query], "20"}]
        for doc in query_docs:
            if doc not in unique:
                unique.append(doc)
        beyond_depth += sum(doc not in unique[:depth] for doc in query_docs)
        expected += [(query, doc, rank, 0.0) for rank, doc in enumerate(unique[:depth], 1)]
    prepared = prepare(f"msmarco:{folder}", official_depth=depth, empty_texts="drop")
    assert prepared.official == expected
    counts = {
        "kept": len(expected),
        "of a query outside the training split": sum(query not in qrels for query, _, _ in triples),
        "that are known positives": sum(doc in qrels.get(query, ()) for query, _, doc in triples),
        "of a document without text": sum(doc == "20" and query in qrels for query, _, doc in triples),
        "beyond prepare.official_depth": beyond_depth,
    }
    assert +prepared.counts == {reason: count for reason, count in counts.items() if count and depth}


def test_top_1000_negatives_are_ranked_in_file_order(prepare: Any, write_files: Any) -> None:
    lines = ["101\t9\tfirst\tx", "101\t3\tfirst\tpositive", "102\t2\tsecond\ty", "101\t0\tfirst\tz", "103\t1\tthird\tw"]
    prepared = prepare(f"msmarco:{write_files({**FILES, 'top1000.train.txt': chr(10).join(lines)})}")
    assert prepared.official == [("102", "2", 1, 0.0), ("101", "9", 1, 0.0), ("101", "0", 2, 0.0)]


def test_negatives_outside_the_collection_are_refused_or_dropped(prepare: Any, write_files: Any) -> None:
    folder = write_files({**FILES, "qidpidtriples.train.small.tsv": "101\t3\t1\n101\t3\t77\n"})
    with pytest.raises(UserError, match=r"qidpidtriples.train.small.tsv:2: document '77' is not in the dataset"):
        prepare(f"msmarco:{folder}")
    prepared = prepare(f"msmarco:{folder}", unknown_documents="drop")
    assert prepared.official == [("101", "1", 1, 0.0)]
    assert prepared.counts["of an unknown document"] == 1


WRONG: dict[str, tuple[dict[str, str | bytes | None], str]] = {
    "zst": ({"collection.tsv": None, "collection.tsv.zst": b"x"}, r"collection.tsv: not found.*unpack it: unzstd .*collection.tsv.zst"),
    "packed": ({"collection.tsv": None, "collection.tar.gz": b"x"}, r"collection.tsv: not found.*unpack it: tar -xzf .*collection.tar.gz"),
    "no queries": (
        {"queries.train.tsv": None},
        r"queries.train.tsv: not found, expected queries.train.tsv or msmarco-doctrain-queries.tsv",
    ),
    "no qrels": (
        {"qrels.train.tsv": None, "qrels.dev.small.tsv": None, "qrels.dev.tsv": None, "2020qrels-pass.txt": None},
        r"found no qrels",
    ),
    "two test sets": ({"2019qrels-pass.txt": "1 0 1 1\n"}, r"2019qrels-pass.txt: 2020qrels-pass.txt exists too"),
    "passages and documents": ({"msmarco-docs.tsv": "D\tu\tt\tb\n"}, r"collection.tsv: msmarco-docs.tsv exists too"),
    "three columns": (
        {"qrels.train.tsv": "101\t3\t1\n"},
        r"qrels.train.tsv:1: found 3 columns .*expected 4 \(query id, 0, document id, grade\)",
    ),
    "no tab": (
        {"collection.tsv": "1 a passage, with a comma\n"},
        r"collection.tsv:1: found commas and no tabs .*expected 2 .*\(passage id, passage\)",
    ),
    "an extra tab": ({"queries.train.tsv": "101\tfirst\tmore\n"}, r"queries.train.tsv:1: found 3 columns"),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_refuses(prepare: Any, write_files: Any, mistake: str) -> None:
    change, message = WRONG[mistake]
    folder = write_files({name: text for name, text in {**FILES, **change}.items() if text is not None})
    with pytest.raises(UserError) as error:
        prepare(f"msmarco:{folder}")
    assert re.search(message, str(error.value)), str(error.value)
