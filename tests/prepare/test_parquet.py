"""Parquet folders from elsewhere, Hugging Face datasets saved on disk, and our own format read back."""

import re
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, DatasetDict

from tasks.core.errors import UserError
from tasks.prepare.readers.parquet import read

DOCUMENTS = {"_id": ["a", "b", "c"], "title": ["T", None, ""], "text": ["one", "two", "three"]}
QUERIES = {"_id": [3, 1, 2], "text": ["third", "first", "second"]}
TRAIN = {"query-id": [1, 3], "corpus-id": ["a", "c"], "score": [1.0, 2.0]}
TEST = {"query-id": [2, 2], "corpus-id": ["b", "a"], "score": [1.0, 0.0]}
EXPECTED = (
    [("a", "T", "one"), ("b", "", "two"), ("c", "", "three")],
    {"train": [("3", "third", []), ("1", "first", [])], "dev": [], "test": [("2", "second", [])]},
    {"train": [("1", "a", 1), ("3", "c", 2)], "dev": [], "test": [("2", "b", 1), ("2", "a", 0)]},
)


def write_columns(file: Path, columns: dict[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), file)


def write_tables(folder: Path) -> None:
    write_columns(folder / "corpus.parquet", DOCUMENTS)
    write_columns(folder / "queries.parquet", QUERIES)
    write_columns(folder / "qrels" / "train.parquet", TRAIN)
    write_columns(folder / "qrels" / "test.parquet", TEST)


def write_shards(folder: Path) -> None:
    """As on the Hugging Face Hub, with other column names."""
    write_columns(folder / "documents" / "corpus-00000-of-00002.parquet", {"docid": ["a"], "title": ["T"], "passage": ["one"]})
    write_columns(folder / "documents" / "corpus-00001-of-00002.parquet", {"docid": ["b", "c"], "passage": ["two", "three"]})
    write_columns(folder / "queries" / "queries-00000-of-00001.parquet", {"qid": ["3", "1", "2"], "query": QUERIES["text"]})
    write_columns(folder / "qrels" / "train-00000-of-00002.parquet", {"qid": ["1"], "docid": ["a"], "relevance": [1]})
    write_columns(folder / "qrels" / "train-00001-of-00002.parquet", {"qid": ["3"], "docid": ["c"], "relevance": [2]})
    write_columns(folder / "qrels" / "test-00000-of-00001.parquet", {"query_id": ["2", "2"], "corpus_id": ["b", "a"], "grade": [1, 0]})


def save_datasets(folder: Path) -> None:
    """Datasets saved on disk in shards, with rows chosen by select()."""
    turned = {name: [*reversed(values), values[0]] for name, values in DOCUMENTS.items()}
    Dataset.from_dict(turned).select([2, 1, 0]).save_to_disk(str(folder / "corpus"), num_shards=2)
    DatasetDict({"queries": Dataset.from_dict(QUERIES)}).save_to_disk(str(folder / "queries"))
    qrels = {"train": Dataset.from_dict(TRAIN), "test": Dataset.from_dict(TEST)}
    DatasetDict(qrels).save_to_disk(str(folder / "default"))


def save_dataset_dict(folder: Path) -> None:
    """One DatasetDict of corpus and queries; qrels in their own folder."""
    DatasetDict({"corpus": Dataset.from_dict(DOCUMENTS), "queries": Dataset.from_dict(QUERIES)}).save_to_disk(str(folder))
    DatasetDict({"train": Dataset.from_dict(TRAIN), "test": Dataset.from_dict(TEST)}).save_to_disk(str(folder / "qrels"))


def write_tables_by_split(folder: Path) -> None:
    write_tables(folder)
    (folder / "queries.parquet").unlink()
    write_columns(folder / "queries" / "train.parquet", {"_id": [3, 9, 1], "text": ["third", "unjudged", "first"]})
    write_columns(folder / "queries" / "test.parquet", {"_id": [2], "text": ["second"]})


@pytest.mark.parametrize("write", [write_tables, write_shards, save_datasets, save_dataset_dict, write_tables_by_split])
def test_every_layout_gives_the_same_tables(prepare: Any, tmp_path: Path, write: Any) -> None:
    write(tmp_path / "in")
    prepared = prepare(f"parquet:{tmp_path / 'in'}")
    assert (prepared.documents, prepared.queries, prepared.qrels) == EXPECTED


def test_our_own_format_read_back_gives_the_same_bytes(prepare: Any, tmp_path: Path) -> None:
    write_tables(tmp_path / "in")
    write_columns(tmp_path / "in" / "queries.parquet", {**QUERIES, "answers": [["x", "y"], None, []]})
    first = prepare(f"parquet:{tmp_path / 'in'}")
    second = prepare(f"parquet:{first.folder}")
    assert first.queries["train"][0] == ("3", "third", ["x", "y"])
    names = sorted(path.relative_to(first.folder) for path in first.folder.rglob("*") if path.is_file())
    assert len(names) == 8
    assert all((first.folder / name).read_bytes() == (second.folder / name).read_bytes() for name in names)


def test_a_file_of_many_batches(prepare: Any, tmp_path: Path) -> None:
    write_tables(tmp_path / "in")
    ids = [f"d{i}" for i in range(20_000)]
    write_columns(tmp_path / "in" / "corpus.parquet", {"id": [*ids, "a", "b", "c"], "text": ["x"] * 20_003})
    assert [row[0] for row in prepare(f"parquet:{tmp_path / 'in'}").documents] == [*ids, "a", "b", "c"]
    write_columns(tmp_path / "in" / "corpus.parquet", {"id": [*ids, None], "text": ["x"] * 20_001})
    with pytest.raises(UserError, match=r"corpus.parquet:20001: found id None"):
        prepare(f"parquet:{tmp_path / 'in'}")


def test_a_null_is_an_empty_text(prepare: Any, tmp_path: Path) -> None:
    """As pandas and databases export it; prepare.empty_texts says what becomes of it."""
    write_tables(tmp_path / "in")
    write_columns(
        tmp_path / "in" / "corpus.parquet", {"id": ["a", "b", "c", "d"], "title": ["A", None, "C", None], "text": ["x", "y", None, None]}
    )
    with pytest.raises(
        UserError, match=r"corpus.parquet:4: document d has an empty title and text; fill it, or set prepare.empty_texts=drop"
    ):
        prepare(f"parquet:{tmp_path / 'in'}")
    assert prepare(f"parquet:{tmp_path / 'in'}", empty_texts="drop").documents == [("a", "A", "x"), ("b", "", "y"), ("c", "C", "")]


WRONG: dict[str, tuple[str, dict[str, Any] | bytes | None, str]] = {
    "no documents": ("corpus.parquet", None, r"documents.parquet: not found, expected it, or documents/ with Parquet shards"),
    "no queries": ("queries.parquet", None, r"queries.parquet: not found"),
    "no Parquet": ("corpus.parquet", b"PAR1 or what", r"corpus.parquet: cannot be read as Parquet"),
    "other columns": ("queries.parquet", {"name": ["1"], "text": ["x"]}, r"queries.parquet: found columns name, text, expected _id or id"),
    "answers as one string": ("queries.parquet", {**QUERIES, "answers": ["Paris", "x", "y"]}, r"queries.parquet:1: found answers 'Paris'"),
    "answers as SQuAD has them": (
        "queries.parquet",
        {**QUERIES, "answers": [{"text": ["a"], "answer_start": [1]}] * 3},
        r"queries.parquet:1: found answers {'text': \['a'\]",
    ),
    "a grade beyond all": ("qrels/test.parquet", {**TEST, "score": [1, 1001]}, r"test.parquet:2: found grade 1001, .*up to 1,000"),
    "half a grade": ("qrels/test.parquet", {**TEST, "score": [1.0, 0.5]}, r"test.parquet:2: found grade 0.5, expected an integer"),
    "no grade": ("qrels/test.parquet", {**TEST, "score": [1.0, None]}, r"test.parquet:2: found grade None"),
    "NaN": ("qrels/test.parquet", {**TEST, "score": [1.0, float("nan")]}, r"test.parquet:2: found grade nan"),
    "too large": ("qrels/test.parquet", {**TEST, "score": [1, 2**31]}, r"test.parquet:2: found grade 2147483648"),
    "a float as id": ("qrels/test.parquet", {**TEST, "query-id": [2.0, 2.5]}, r"test.parquet:1: found id 2.0"),
    "qrels of no split": ("qrels/all.parquet", TEST, r"found qrels of an unknown split"),
    "days as texts": (
        "queries.parquet",
        {**QUERIES, "text": pa.array([2**30] * 3, pa.date32())},
        r"queries.parquet: found column text of type date32\[day\], expected strings",
    ),
    "a weight of 0": (
        "qrels/test.parquet",
        {**TEST, "weight": [1.0, 0.0]},
        r"test.parquet:2: found weight '0.0', expected a number above 0",
    ),
    "qrels of another split": ("qrels/dev2.parquet", TEST, r"dev2.parquet: found qrels of an unknown split"),
    "nested shards": (
        "queries/more/part-1.parquet",
        QUERIES,
        r"part-1.parquet: found a file that is not read, expected queries/NAME.parquet",
    ),
    "capitals": ("qrels/dev.PARQUET", TEST, r"dev.PARQUET: found a file that is not read, expected qrels/NAME.parquet"),
    "another ending": ("corpus/c.pq", DOCUMENTS, r"c.pq: found a file that is not read, expected corpus/NAME.parquet or a saved dataset"),
    "a table of another ending": ("queries.pq", QUERIES, r"queries.pq: found a file that is not read, expected queries.parquet;"),
    "duplicate corpus": ("corpus/a.parquet", DOCUMENTS, r"corpus.parquet: the folder corpus/ exists too"),
    "documents twice": ("documents.parquet", DOCUMENTS, r"in: found tables documents and corpus, expected only one of them; keep one"),
    "queries of one split": ("queries/train.parquet", QUERIES, r"queries: no queries for split test"),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_refuses(prepare: Any, tmp_path: Path, mistake: str) -> None:
    name, content, message = WRONG[mistake]
    write_tables(tmp_path / "in")
    file = tmp_path / "in" / name
    if mistake == "queries of one split":
        (tmp_path / "in" / "queries.parquet").unlink()
    if content is None:
        file.unlink()
    elif isinstance(content, bytes):
        file.write_bytes(content)
    else:
        write_columns(file, content)
    with pytest.raises(UserError) as error:
        prepare(f"parquet:{tmp_path / 'in'}")
    assert re.search(message, str(error.value)), str(error.value)


def test_a_saved_dataset_without_its_data_is_refused(prepare: Any, tmp_path: Path) -> None:
    save_datasets(tmp_path / "in")
    next((tmp_path / "in" / "corpus").glob("*.arrow")).unlink()
    with pytest.raises(UserError, match=r"data-0000\d-of-00002.arrow: not found"):
        prepare(f"parquet:{tmp_path / 'in'}")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("state.json", "[]"),
        ("state.json", "{}"),
        ("state.json", '{"_data_files": 5}'),
        ("state.json", '{"_data_files": [{"filename": null}]}'),
        ("dataset_dict.json", "5"),
        ("dataset_dict.json", '{"splits": null}'),
        ("dataset_dict.json", '{"splits": [1]}'),
    ],
)
def test_a_saved_dataset_whose_json_lists_no_files_is_refused(prepare: Any, tmp_path: Path, name: str, content: str) -> None:
    save_datasets(tmp_path / "in")
    (tmp_path / "in" / "corpus" / name).write_text(content)
    with pytest.raises(UserError, match=rf"corpus/{name}: .*expected what save_to_disk writes; save the dataset again"):
        prepare(f"parquet:{tmp_path / 'in'}")


def test_a_truncated_saved_dataset_is_refused(prepare: Any, tmp_path: Path) -> None:
    save_datasets(tmp_path / "in")
    file = next((tmp_path / "in" / "corpus").glob("*.arrow"))
    file.write_bytes(file.read_bytes()[:-60])  # Arrow reports this as an OSError
    with pytest.raises(UserError, match=r"-of-00002.arrow: cannot be read as Arrow with UTF-8 texts after row 0 \("):
        prepare(f"parquet:{tmp_path / 'in'}")


def test_a_folder_without_tables_is_refused(prepare: Any, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    with pytest.raises(UserError, match=r"in: found an empty folder, expected a folder with documents, queries, and qrels"):
        prepare(f"parquet:{tmp_path / 'in'}")
    (tmp_path / "in" / "README").touch()
    with pytest.raises(UserError, match=r"in: no Parquet or Arrow file, expected documents"):
        prepare(f"parquet:{tmp_path / 'in'}")


def test_shards_with_a_hash_in_their_names_are_of_their_split(prepare: Any, tmp_path: Path) -> None:
    write_tables(tmp_path / "in")
    (tmp_path / "in/qrels/test.parquet").rename(tmp_path / "in/qrels/test-00000-of-00001-0a1b2c3d4e5f6071.parquet")
    assert prepare(f"parquet:{tmp_path / 'in'}").qrels == EXPECTED[2]


def test_pairs_may_weigh_more_or_less_than_one(tmp_path: Path) -> None:
    write_tables(tmp_path / "in")
    write_columns(tmp_path / "in/qrels/train.parquet", {**TRAIN, "weight": [0.25, None]})
    source = read(tmp_path / "in")
    assert [line.weight for split in ("train", "test") for line in source.qrels[split]()] == [0.25, 1, 1, 1]


def test_a_column_of_two_that_have_its_name_is_refused(prepare: Any, tmp_path: Path) -> None:
    write_tables(tmp_path / "in")
    columns = [pa.array(["a"]), pa.array(["x"]), pa.array(["y"])]
    pq.write_table(pa.Table.from_arrays(columns, ["_id", "text", "text"]), tmp_path / "in/corpus.parquet")
    with pytest.raises(UserError, match=r"corpus.parquet: found column text 2 times, expected it once; rename or drop one"):
        prepare(f"parquet:{tmp_path / 'in'}")


def test_qrels_that_would_be_refused_are_not_asked_for(prepare: Any, tmp_path: Path) -> None:
    write_tables(tmp_path / "in")
    shutil.rmtree(tmp_path / "in/qrels")
    with pytest.raises(UserError, match=r"qrels: not found, expected qrels/SPLIT.parquet; add one"):
        prepare(f"parquet:{tmp_path / 'in'}")
    write_columns(tmp_path / "in/qrels.parquet", TEST)
    with pytest.raises(UserError, match=r"qrels.parquet: found qrels of an unknown split, expected qrels/train.parquet"):
        prepare(f"parquet:{tmp_path / 'in'}")
