"""BEIR folders: what is read, and a one-line error for everything that can be wrong."""

import gzip
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tasks.core.errors import UserError

CORPUS = """\
{"_id": "d2", "title": "Fish", "text": "red fish"}
{"_id": 1, "title": null, "text": "blue  fish"}
{"_id": "d3", "title": "Only a title", "text": ""}
{"_id": "d4", "text": "läuft — 鱼", "metadata": {"url": "x"}}
"""
QUERIES = """\
{"_id": "q3", "text": "third"}
{"_id": 7, "text": "seventh", "answers": ["seven", "VII"]}
{"_id": "q1", "text": "first"}
{"_id": "q9", "text": "never judged"}
"""
FILES: dict[str, str | bytes] = {
    "corpus.jsonl": CORPUS,
    "queries.jsonl": QUERIES,
    "qrels/train.tsv": "query-id\tcorpus-id\tscore\nq1\td2\t1\n7\t1\t2\nq1\td4\t0\n",
    "qrels/validation.tsv": "query-id\tcorpus-id\tscore\nq3\td3\t1\nq1\t1\t1\n",
}
DOCUMENTS = [("d2", "Fish", "red fish"), ("1", "", "blue  fish"), ("d3", "Only a title", ""), ("d4", "", "läuft — 鱼")]


def test_reads_a_folder(prepare: Any, write_files: Any) -> None:
    prepared = prepare(f"beir:{write_files(FILES)}")
    assert prepared.documents == DOCUMENTS
    assert prepared.queries == {
        "train": [("7", "seventh", ["seven", "VII"]), ("q1", "first", [])],
        "dev": [("q3", "third", []), ("q1", "first", [])],
        "test": [],
    }
    assert prepared.qrels == {
        "train": [("q1", "d2", 1), ("7", "1", 2), ("q1", "d4", 0)],
        "dev": [("q3", "d3", 1), ("q1", "1", 1)],
        "test": [],
    }
    assert prepared.official == []
    assert prepared.stats == {
        "documents": {"count": 4, "words": {"mean": 1.75, "median": 2, "p95": 3}, "empty_titles": 2, "empty_texts": 1},
        "splits": {
            "train": {"queries": 2, "words": {"mean": 1.0, "median": 1, "p95": 1}, "qrels": 3, "positives": 2, "positives_per_query": 1.0},
            "dev": {"queries": 2, "words": {"mean": 1.0, "median": 1, "p95": 1}, "qrels": 2, "positives": 2, "positives_per_query": 1.0},
            "test": {"queries": 0, "words": {"mean": 0.0, "median": 0, "p95": 0}, "qrels": 0, "positives": 0, "positives_per_query": 0.0},
        },
        "dropped": {},
        "leaks": 1,
    }


def test_metadata_of_queries_becomes_columns(prepare: Any, write_files: Any) -> None:
    def columns(metadata: str) -> dict[str, list[dict[str, str]]]:
        queries = QUERIES.replace('"text": "seventh"', f'"text": "seventh", "metadata": {metadata}')
        folder = prepare(f"beir:{write_files(FILES | {'queries.jsonl': queries})}").folder / "columns"
        return {path.stem: pq.read_table(path).to_pylist() for path in folder.glob("*")}

    rows = columns(r'{"source": "web", "year": 1999, "hard": true, "tags": ["a"], "none": null, "half": "\ud800"}')
    values = {"source": "web", "year": "1999", "hard": "true", "half": "?"}
    assert rows == {"train": [{"query": "7", "column": name, "value": value} for name, value in values.items()]}
    assert columns("{}") == columns('"text"') == {}, "no file, as for a source without metadata"


def zipped_files(files: dict[str, str | bytes]) -> dict[str, str | bytes]:
    return {f"{name}.gz": gzip.compress(text.encode() if isinstance(text, str) else text) for name, text in files.items()}


def windows_files(files: dict[str, str | bytes]) -> dict[str, str | bytes]:
    return {name: b"\xef\xbb\xbf" + str(text).replace("\n", "\r\n").encode() + b"\r\n\r\n" for name, text in files.items()}


def bare_files(files: dict[str, str | bytes]) -> dict[str, str | bytes]:
    """No header, no line end after the last line."""
    return {name: str(text).removeprefix("query-id\tcorpus-id\tscore\n").removesuffix("\n") for name, text in files.items()}


@pytest.mark.parametrize("form", [zipped_files, windows_files, bare_files])
def test_every_form_gives_the_same_bytes(prepare: Any, write_files: Any, tmp_path: Path, form: Callable[..., Any]) -> None:
    plain = prepare(f"beir:{write_files(FILES)}")
    for file in sorted((tmp_path / "source").rglob("*.*")):
        file.unlink()
    other = prepare(f"beir:{write_files(form(FILES))}")
    names = sorted(path.relative_to(plain.folder) for path in plain.folder.rglob("*") if path.is_file())
    assert len(names) == 8
    assert all((plain.folder / name).read_bytes() == (other.folder / name).read_bytes() for name in names)


GZ = gzip.compress(b"".join(b'{"_id": "%d", "text": "%032x"}\n' % (i, i * 2**99 // 7) for i in range(5000)))
WRONG: dict[str, tuple[dict[str, str | bytes | None], str]] = {
    "no JSON": (
        {"corpus.jsonl": CORPUS + "{'_id': 5}\n"},
        r"corpus.jsonl:5: not JSON .*column 2.*expected an object with _id, title and text",
    ),
    "no object": ({"queries.jsonl": QUERIES + '["q", "text"]\n'}, r"queries.jsonl:5: found a JSON list, expected an object"),
    "no _id": ({"corpus.jsonl": '\n{"id": "a", "text": "b"}\n'}, r"corpus.jsonl:2: no _id, found id, text"),
    "true as _id": ({"corpus.jsonl": '{"_id": true, "text": "b"}\n'}, r"corpus.jsonl:1: found _id True, expected a string or an integer"),
    "a key twice": (
        {"corpus.jsonl": '{"_id": "a", "text": "b", "text": "c"}\n'},
        r"corpus.jsonl:1: found the key 'text' twice in an object, expected it once; fix that line",
    ),
    "no text": (
        {"corpus.jsonl": '{"_id": "a", "contents": "b"}\n'},
        r"corpus.jsonl:1: no text, found _id, contents; every",
    ),
    "a number as text": ({"queries.jsonl": '{"_id": "a", "text": 5}\n'}, r"queries.jsonl:1: found text 5, expected a string"),
    "answers": ({"queries.jsonl": '{"_id": "a", "text": "b", "answers": "c"}\n'}, r"queries.jsonl:1: found answers 'c', expected a list"),
    "id with a space": (
        {"corpus.jsonl": '{"_id": "a b", "text": "c"}\n'},
        r"corpus.jsonl:1: found document id 'a b', expected one without",
    ),
    "id with NUL": (
        {"corpus.jsonl": '{"_id": "a\\u0000", "text": "c"}\n'},
        r"corpus.jsonl:1: found document id 'a\\x00', expected one without NUL",
    ),
    "duplicate document": (
        {"corpus.jsonl": CORPUS + '{"_id": "1", "text": "x"}\n'},
        r"corpus.jsonl:5: document id '1' is already used at .*:2;",
    ),
    "duplicate query": (
        {"queries.jsonl": QUERIES + '{"_id": "q9", "text": "x"}\n'},
        r"queries.jsonl:5: query id 'q9' is already used at .*:4;",
    ),
    "empty document": (
        {"corpus.jsonl": CORPUS + '{"_id": "e", "title": " ", "text": "\\n"}\n'},
        r"corpus.jsonl:5: document e has an empty title",
    ),
    "empty query": (
        {"queries.jsonl": QUERIES + '{"_id": "e", "text": "  "}\n'},
        r"queries.jsonl:5: query e has an empty text; .*empty_texts=drop",
    ),
    "half a character": (
        {"corpus.jsonl": CORPUS + '{"_id": "e", "text": "a\\ud800"}\n'},
        r"corpus.jsonl:5: the text contains an unpaired surrogate",
    ),
    "Latin 1": (
        {"corpus.jsonl": CORPUS.encode() + '{"_id": "e", "text": "ä"}\n'.encode("latin1")},
        r"corpus.jsonl:5: not UTF-8 at byte 23 of the line",
    ),
    "truncated gzip": ({"corpus.jsonl": GZ[:-2000]}, r"corpus.jsonl:\d{4}: the gzip file is truncated"),
    "corrupt gzip": ({"corpus.jsonl": GZ[:4000] + b"x" * 100 + GZ[4100:]}, r"corpus.jsonl:\d+: "),
    "empty corpus": ({"corpus.jsonl": ""}, r"no document"),
    "no corpus": ({"corpus.jsonl": None}, r"corpus.jsonl: not found, expected corpus.jsonl \(or .gz\)"),
    "no queries": ({"queries.jsonl": None}, r"queries.jsonl: not found"),
    "two corpora": ({"corpus.jsonl.gz": GZ}, r"corpus.jsonl: corpus.jsonl.gz exists too"),
    "unknown document": (
        {"qrels/train.tsv": "q1\td2\t1\nq1\tnope\t1\n7\tno\t1"},
        r"train.tsv:2: document 'nope' is not in .*\(2 such lines\); .*=drop",
    ),
    "unknown query": ({"qrels/test.tsv": "q1\td2\t1\nq5\td2\t1\n"}, r"test.tsv:2: query 'q5' is not in the dataset \(1 such"),
    "grade": ({"qrels/train.tsv": "query-id\tcorpus-id\tscore\nq1\td2\t1.5\n"}, r"train.tsv:2: found grade '1.5', expected an integer"),
    "a grade beyond all": (
        {"qrels/train.tsv": "query-id\tcorpus-id\tscore\nq1\td2\t300000000\n"},
        r"train.tsv:2: found grade '300000000', expected an integer up to 1,000",
    ),
    "a wrong grade alone": ({"qrels/train.tsv": "q1\td2\t1.0\n"}, r"train.tsv:1: found grade '1.0', expected an integer"),
    "two columns": (
        {"qrels/train.tsv": "query-id\tcorpus-id\tscore\nq1\td2\n"},
        r"train.tsv:2: found 2 columns \('q1\\td2'\), expected 3 separated",
    ),
    "four columns": ({"qrels/train.tsv": "q1\t0\td2\t1\n"}, r"train.tsv:1: found 4 columns"),
    "columns in another order": (
        {"qrels/train.tsv": "corpus-id\tquery-id\tscore\n1\t7\t1\n"},
        r"train.tsv:1: found columns corpus-id, query-id, score, expected query-id, corpus-id, score in this order",
    ),
    "commas": (
        {"qrels/train.tsv": "query-id,corpus-id,score\nq1,d2,1\n"},
        r"train.tsv:1: found commas and no tabs .*expected 3 separated by tabs",
    ),
    "nothing relevant": (
        {"qrels/train.tsv": "q1\td2\t0\n7\td2\t-1\n"},
        r"train.tsv: no relevant document in split train, every grade is 0",
    ),
    "two grades": (
        {"qrels/train.tsv": "q1\td2\t1\n7\t1\t1\nq1\td2\t2\n"},
        r"train.tsv:3: query 'q1' and document 'd2' have grade 2 here and 1 at .*:1;",
    ),
    "two weights": (
        {"qrels/train.tsv": "query-id\tcorpus-id\tscore\tweight\nq1\td2\t1\t0.5\n7\t1\t1\t1\nq1\td2\t1\t1\n"},
        r"train.tsv:4: query 'q1' and document 'd2' have weight 1.0 here and 0.5 at .*train.tsv:2; keep one",
    ),
    "a weight that is 0 in float32": (
        {"qrels/train.tsv": "query-id\tcorpus-id\tscore\tweight\nq1\td2\t1\t1e-50\n"},
        r"train.tsv:2: found weight '1e-50', expected a number above 0 \(1e-30 to 1e30\), such as 0\.5; fix",
    ),
    "a weight that is infinite in float32": (
        {"qrels/train.tsv": "query-id\tcorpus-id\tscore\tweight\nq1\td2\t1\t1e39\n"},
        r"train.tsv:2: found weight '1e39', expected a number",
    ),
    "unknown split": ({"qrels/all.tsv": "q1\td2\t1\n"}, r"all.tsv: found qrels of an unknown split"),
    "split twice": ({"qrels/dev.tsv": "q1\td2\t1\n"}, r"validation.tsv: dev.tsv exists too"),
    "a header alone": ({"qrels/train.tsv": "query-id\tcorpus-id\tscore\n", "qrels/validation.tsv": None}, r"source has no qrels"),
    "headers only": ({"qrels/train.tsv": "query-id\tcorpus-id\tscore\n", "qrels/validation.tsv": ""}, r"source has no qrels"),
    "no qrels": ({"qrels/train.tsv": None, "qrels/validation.tsv": None}, r"qrels: found no qrels"),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_refuses(prepare: Any, write_files: Any, mistake: str) -> None:
    change, message = WRONG[mistake]
    folder = write_files({name: text for name, text in {**FILES, **change}.items() if text is not None})
    with pytest.raises(UserError) as error:
        prepare(f"beir:{folder}")
    assert re.search(message, str(error.value)), str(error.value)
    assert "\n" not in str(error.value)


def test_drops_what_the_parameters_allow(prepare: Any, write_files: Any) -> None:
    change = {
        "corpus.jsonl": CORPUS + '{"_id": "e", "title": "", "text": " "}\n',
        "queries.jsonl": QUERIES + '{"_id": "silent", "text": ""}\n',
        "qrels/train.tsv": "q1\td2\t1\nq1\tnope\t1\nq5\td2\t1\nq9\tnope\t1\n7\te\t1\nsilent\td2\t1\nq1\td2\t1\n",
    }
    prepared = prepare(f"beir:{write_files({**FILES, **change})}", unknown_documents="drop", empty_texts="drop")
    assert prepared.documents == DOCUMENTS
    assert prepared.queries["train"] == [("q1", "first", [])]
    assert prepared.qrels["train"] == [("q1", "d2", 1)]
    assert prepared.stats["dropped"] == {
        "documents without text": 1,
        "qrels of a document without text": 1,
        "qrels of a query without text": 1,
        "qrels of an unknown document": 2,
        "qrels of an unknown query": 1,
        "qrels given twice": 1,
        "queries without text": 1,
    }


def test_a_split_that_loses_all_its_qrels_is_refused(prepare: Any, write_files: Any) -> None:
    folder = write_files({**FILES, "qrels/train.tsv": "q1\tnope\t1\n"})
    with pytest.raises(UserError, match=r"train.tsv: no relevant document in split train, all its qrels were dropped"):
        prepare(f"beir:{folder}", unknown_documents="drop")


def test_real_folder(prepare: Any, shared_data: Path) -> None:
    prepared = prepare(f"beir:{shared_data / 'squadshifts_all'}")
    assert len(prepared.documents) == 5664
    assert [len(prepared.queries[split]) for split in ("train", "dev", "test")] == [21642, 2762, 3222]
    assert [len(prepared.qrels[split]) for split in ("train", "dev", "test")] == [21642, 2762, 3222]
