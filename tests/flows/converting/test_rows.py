"""Rows of JSON lines, gzip, and Parquet with their places; what cannot be read is one line."""

import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.converting.rows import PARQUET_ROWS, cells, is_json, keys, rows
from tasks.core.errors import UserError

TEXT = '{"query": "a", "pos": ["b"]}\n\n{"query": "c", "pos": []}\n'


@pytest.mark.parametrize("pack", [str.encode, lambda text: gzip.compress(text.encode()), lambda text: b"\xef\xbb\xbf" + text.encode()])
def test_json_lines_are_read_with_their_numbers(tmp_path: Path, pack: object) -> None:
    path = tmp_path / "train.jsonl"
    path.write_bytes(pack(TEXT))  # type: ignore[operator]
    assert keys(path, "x") == (f"{path}:1", ["query", "pos"])
    assert list(rows(path, "x", ())) == [(f"{path}:1", {"query": "a", "pos": ["b"]}), (f"{path}:3", {"query": "c", "pos": []})]
    assert is_json(path)


def test_parquet_is_read_in_batches_and_only_where_wanted(tmp_path: Path) -> None:
    count = PARQUET_ROWS + 1
    path = tmp_path / "train"
    pq.write_table(pa.table({"a": list(range(count)), "image": [b"x"] * count, "b": [["t"]] * count}), path)
    assert keys(path, "x") == (f"{path}:1", ["a", "image", "b"])
    result = list(rows(path, "x", ("b", "a", "none")))
    assert len(result) == count
    assert result[-1] == (f"{path}:{count}", {"a": count - 1, "b": ["t"]})


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "train.jsonl: found no line, expected JSON lines with keys"),
        (b"\n \n", "found no line"),
        (TEXT.encode() + b"{", "train.jsonl:4: not JSON (Expecting property name enclosed in double quotes, column 2), expected an object"),
        (b'{"a": 1}\n{"a": 1, "a": 2}\n', "train.jsonl:2: found the key 'a' twice in an object, expected it once"),
        (b'{"a": 1}\n[1]\n', "train.jsonl:2: found a JSON list, expected an object with keys"),
        (b'{"a": 1}\n{"a": "\0"}\n', "train.jsonl:2: not JSON"),
        (b'{"a": 1}\n{"a": "\xff"}\n', "train.jsonl:2: not UTF-8 at byte 8 of the line"),
        (gzip.compress(TEXT.encode() * 99, mtime=0)[:-9], "the gzip file is truncated or corrupt here"),
        (b"PAR1" + bytes(99), "train.jsonl: cannot be read as Parquet"),
    ],
)
def test_what_cannot_be_read_is_one_line(tmp_path: Path, raw: bytes, message: str) -> None:
    path = tmp_path / "train.jsonl"
    path.write_bytes(raw)
    with pytest.raises(UserError) as error:
        list(rows(path, "keys", ()) if keys(path, "keys") else ())
    assert message in str(error.value)


def test_corrupt_parquet_names_the_row(tmp_path: Path) -> None:
    path = tmp_path / "train.parquet"
    pq.write_table(pa.table({"a": ["text"] * 5000}), path, compression="none", use_dictionary=False)
    raw = bytearray(path.read_bytes())
    raw[4:40] = bytes([0xFF]) * 36
    path.write_bytes(raw)
    with pytest.raises(UserError, match=r"train.parquet: cannot be read as Parquet with UTF-8 texts after row 0"):
        list(rows(path, "x", ("a",)))


def test_a_column_that_is_twice_in_parquet_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "train.parquet"
    pq.write_table(pa.table([pa.array(["x"]), pa.array(["y"])], names=["a", "a"]), path)
    with pytest.raises(UserError, match=r"train.parquet: found column a 2 times, expected it once"):
        keys(path, "x")


def test_cells_of_lines(tmp_path: Path) -> None:
    path = tmp_path / "qrels.txt"
    path.write_text("q 0\td  1\n\nq2 0 d2 0\n")
    assert list(cells(path, ("query", "0", "doc", "grade"), None)) == [
        (f"{path}:1", ["q", "0", "d", "1"]),
        (f"{path}:3", ["q2", "0", "d2", "0"]),
    ]
    with pytest.raises(UserError, match=r"qrels.txt:1: found 2 columns, expected 3 separated by tabs \(a, b, c\); fix the file"):
        list(cells(path, ("a", "b", "c"), "\t"))
    assert not is_json(path)
