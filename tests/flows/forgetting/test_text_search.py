"""Which files are found to have a text."""

import gzip
import json
import os
import subprocess
from pathlib import Path

import jinja2
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.forgetting import text_search
from tasks.core.tables.documents import shortened


def found(folder: Path, *texts: str) -> set[str]:
    """The names of the files that have one of the texts; none may be unreadable."""
    files = text_search.having_texts(text_search.files_below(folder), text_search.needles(texts), lambda path: pytest.fail(str(path)))
    return {path.name for path in files}


def test_texts_are_found_in_tables_pages_and_packed_files(tmp_path: Path) -> None:
    text = 'A "quoted" text & more, long enough to be looked for'
    pq.write_table(pa.table({"id": ["a"], "text": [text]}), tmp_path / "table.parquet")
    pq.write_table(pa.table({"id": ["a"], "text": ["another"]}), tmp_path / "other.parquet")
    (tmp_path / "line.jsonl").write_text(json.dumps({"text": text}))
    (tmp_path / "page.html").write_text("<p>A &quot;quoted&quot; text &amp; more, long enough to be looked for</p>")
    (tmp_path / "empty").touch()
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/plain").write_text(text)
    subprocess.run(["gzip", "-k", "line.jsonl"], cwd=tmp_path, check=True)
    assert found(tmp_path, text) == {"table.parquet", "line.jsonl", "line.jsonl.gz", "page.html"}
    assert found(tmp_path) == set()
    assert found(tmp_path, text, "half a character: \ud800") == {"table.parquet", "line.jsonl", "line.jsonl.gz", "page.html"}


def test_a_blank_text_is_found_nowhere(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": ["a"], "text": [" "]}), tmp_path / "of another project.parquet")
    assert found(tmp_path, " ", "", "a text that is not there") == set()


def test_every_form_of_a_text_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'Café "Müller"\n\nOpening hours, and all that one must know about them'
    (tmp_path / "utf8.jsonl").write_text(json.dumps({"text": text}, ensure_ascii=False))
    (tmp_path / "ascii.jsonl").write_text(json.dumps({"text": text}))
    quoted = text.replace('"', '""')
    (tmp_path / "table.csv").write_text(f'd1,"{quoted}"\n')
    (tmp_path / "other.csv").write_text('d1,"Café ""Mayer"""\n')
    for start in range(4):  # at either side of a border between blocks
        (tmp_path / f"lines{start}.gz").write_bytes(gzip.compress(b"x" * start * 13 + text.encode()))
    monkeypatch.setattr(text_search, "BLOCK", 16)
    assert found(tmp_path, text) == {"utf8.jsonl", "ascii.jsonl", "table.csv", *(f"lines{start}.gz" for start in range(4))}


@pytest.mark.parametrize(
    "text",
    [
        "who wrote Alice's Adventures in Wonderland first",
        'film "Casablanca" of 1942, who <directed> & produced that film',
        "The river rises in the hills.\nIt flows\t north, through three lakes, to the sea.",
    ],
)
def test_a_text_on_our_pages_is_found(tmp_path: Path, text: str) -> None:
    """They escape by jinja2, and show documents on one line; a form of few characters says nothing."""
    page = jinja2.Environment(autoescape=True).from_string("<p>{{ text }}</p>")
    (tmp_path / "query.html").write_text(page.render(text=text))
    (tmp_path / "document.html").write_text(page.render(text=shortened(f"A title {text}", 320)))
    (tmp_path / "other.html").write_text(page.render(text="another text, a b"))
    assert found(tmp_path, text, f"a{30 * ' '}b") == {"query.html", "document.html"}


def test_texts_in_columns_of_every_type_are_found(tmp_path: Path) -> None:
    text = "a text that is long enough to be looked for"
    columns = {
        "list": pa.array([["x", text], []]),
        "record": pa.array([{"n": 1, "in": {"deep": [text]}}, None]),
        "map": pa.array([[("x", text)]], pa.map_(pa.string(), pa.string())),
        "dictionary": pa.array([text, "x", text]).dictionary_encode(),
        "short": pa.array(["who", "x"]).dictionary_encode(),
        "answers": pa.array([["who"], ["x"]]),
        "large": pa.array([text, "x"], pa.large_string()),
        "view": pa.array([text, "x"], pa.string_view()),
        "bytes": pa.array([b"\xff", text.encode(), None]),
        "large bytes": pa.array([[text.encode()]], pa.list_(pa.large_binary())),
        "other bytes": pa.array([b"\xff", b"who?"]),
        "other": pa.array([[1, 2], [3]]),
    }
    for name, column in columns.items():
        pq.write_table(pa.table({name: column}), tmp_path / name)
    assert found(tmp_path, text, "who") == columns.keys() - {"answers", "other bytes", "other"}, "an answer of one word is not the record"


def test_a_corrupt_file_is_searched_as_bytes_and_named_if_they_have_no_text(tmp_path: Path) -> None:
    text = "a text that is long enough to be looked for"
    packed = gzip.compress(os.urandom(2000))
    (tmp_path / "corrupt.gz").write_bytes(packed[:10] + b"\xff" + packed[11:])
    (tmp_path / "begins.gz").write_bytes(packed[:10] + b"\xff" + packed[11:] + text.encode())
    pq.write_table(pa.table({"text": [f"{number} {text}" for number in range(100)]}), tmp_path / "page.parquet", compression="zstd")
    content = bytearray((tmp_path / "page.parquet").read_bytes())
    content[4:400] = text.encode().ljust(396, b"\xff")
    (tmp_path / "page.parquet").write_bytes(content)
    unreadable: list[Path] = []
    having = text_search.having_texts(text_search.files_below(tmp_path), text_search.needles([text]), unreadable.append)
    assert {path.name for path in having} == {"begins.gz", "page.parquet"}
    assert unreadable == [tmp_path / "corrupt.gz"]


def test_an_unreadable_file_is_named_and_one_that_is_gone_is_not(tmp_path: Path) -> None:
    """A folder stands for a file that may not be read: root may read all."""
    unreadable: list[Path] = []
    paths = [tmp_path, tmp_path / "gone"]
    assert list(text_search.having_texts(paths, text_search.needles(["a text"]), unreadable.append)) == []
    assert unreadable == [tmp_path]


def test_json_of_other_writers_is_searched(tmp_path: Path) -> None:
    text = "Müller GmbH, Hauptstraße 5/7, 12345 Köln"
    (tmp_path / "php.json").write_text(json.dumps(text).replace("/", "\\/"))
    (tmp_path / "php-unicode.json").write_text(json.dumps(text, ensure_ascii=False).replace("/", "\\/"))
    (tmp_path / "java.json").write_text(
        json.dumps(text).replace("\\u00fc", "\\u00FC").replace("\\u00df", "\\u00DF").replace("\\u00f6", "\\u00F6")
    )
    assert found(tmp_path, text) == {"php.json", "php-unicode.json", "java.json"}
