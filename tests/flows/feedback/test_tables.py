"""Rows of CSV come with their lines; what cannot be read is one message, which names the line if there is one."""

import gzip
from pathlib import Path

import pytest

from flows.feedback.tables import csv_rows
from tasks.core.errors import UserError

TEXT = '\ufeffsep=;\nid;text\na;"two\nlines"\nb;x;more\nc\n'


@pytest.mark.parametrize("name", ["table.csv", "table.csv.gz"])
def test_rows_and_their_lines(tmp_path: Path, name: str) -> None:
    content = TEXT.encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    assert list(csv_rows(tmp_path / name, ["id"], "id")) == [
        (f"{tmp_path / name}:4", {"id": "a", "text": "two\nlines"}, ";"),
        (f"{tmp_path / name}:5", {"id": "b", "text": "x", None: ["more"]}, ";"),
        (f"{tmp_path / name}:6", {"id": "c", "text": None}, ";"),
    ]


def test_only_columns_that_are_read_must_be_there_once(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("id,note,note\na,x,y\n")
    assert [row.cells["id"] for row in csv_rows(path, ["id"], "id")] == ["a"]
    with pytest.raises(UserError, match=r"table.csv:1: found column note 2 times, expected it once; rename or remove the others$"):
        list(csv_rows(path, ["id"], "id", optional=["note"]))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"text\nx\n", r":1: no column id, n, expected id and n$"),
        (b"sep=,\nid,n,,,n\n1,2,,,3\n", ":2: found column n 2 times, expected it once; rename or remove the others$"),
        (b'sep=,\nid,n\n1,2\n"1,2\n', r":4: cannot be read \(unexpected end of data\), expected CSV in the row that begins here; fix it$"),
        (b"id,n\n\xff,1\n", r": cannot be read \(.*\), expected CSV in UTF-8, gzip if its name ends in \.gz$"),
        (None, r": cannot be read \(.*\), expected CSV in UTF-8, gzip if its name ends in \.gz$"),
    ],
)
def test_what_cannot_be_read(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "table.csv"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    with pytest.raises(UserError, match=f"^{path}{message}"):
        list(csv_rows(path, ["id", "n"], "id and n"))
