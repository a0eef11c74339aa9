"""The delimiter of a CSV file, by its name and its header alone."""

import csv
import io
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.core.errors import Invalid
from tasks.core.sources.delimiters import MOST, declares_delimiter, delimiter_of, seek_header


@pytest.mark.parametrize(
    ("lines", "delimiter"),
    [
        (["id,title,text\n", "1;2;3\n"], ","),
        (["id;title;text\r\n", "1;a, b;c, d\r\n"], ";"),
        (["\ufeffid;text\n"], ";"),
        (["\n", ";;;\r\n", ' "" ; \n', "id;text\n"], ";"),  # rows without a cell, as spreadsheets write them
        (['"id";"text, or body";"a ""b"", c"\n'], ";"),
        (['id,"price; in euros",text\n'], ","),
        (['"two, lines\n', "and; a third\n", 'in one";text\n', "1,2;3\n"], ";"),
        (['5" disk;text\n', '"1,";2\n'], ";"),  # no quote at the beginning of a cell: a character as any other
        (["id\n", "a;b\n"], ","),
        (["\ufeffsep=;\r\n", "id,text\n"], ";"),  # as Excel reads it
        (['"SEP=,"\n', "id;a,text\n"], ","),
        (["sep=|\n", "id;a,text|b\n"], "|"),
        (["\n", "sep=;\n"], ";"),  # a header
        (["id;text;price, with tax\r\n"], ";"),  # punctuation has a blank behind it
        (["id,a title; if any,text\n"], ","),
        ([], ","),
    ],
)
def test_the_header_says_the_delimiter(lines: list[str], delimiter: str) -> None:
    assert delimiter_of(Path("corpus.csv"), lines) == delimiter
    assert delimiter_of(Path("corpus.csv.gz"), lines) == delimiter
    if "=" not in "".join(lines[:1]):
        assert {delimiter_of(Path(name), lines) for name in ("corpus.tsv", "corpus.tsv.gz", "FAQ.TSV", "faq.Tsv.GZ")} == {"\t"}


def test_a_header_with_both_is_refused_with_its_line() -> None:
    with pytest.raises(Invalid) as error:
        delimiter_of(Path("in/corpus.csv"), ["\n", "id;text;price,with tax\r\n"])
    assert str(error.value) == (
        "in/corpus.csv:2: found commas and semicolons in the header ('id;text;price,with tax'), expected one of them, between the "
        "columns; quote or rename a column whose name contains the other, or begin the file with a line sep=; (or sep=,)"
    )
    with pytest.raises(Invalid, match="commas and semicolons in the header"):
        delimiter_of(Path("a.csv"), ["id, title; text\n"])


@pytest.mark.parametrize("line", ["sep=;", '"sep=;"', "Sep=;  "])
def test_the_line_that_says_the_delimiter_is_no_row(line: str) -> None:
    assert declares_delimiter(next(csv.reader([line], delimiter=";")), ";")
    assert not declares_delimiter(next(csv.reader([line], delimiter=",")), ",")
    assert not declares_delimiter(["sep=", "", "x"], ";") and not declares_delimiter(["id", "text"], ";")
    with io.StringIO(f"{line}\r\nid;text\r\n", newline="") as handle:
        assert delimiter_of(Path("a.tsv"), handle) == ";"
        assert seek_header(handle) == 1 and handle.readline() == "id;text\r\n"
    with io.StringIO("id;text\n") as handle:
        assert seek_header(handle) == 0 and handle.readline() == "id;text\n"


def test_no_more_is_read_than_the_header() -> None:
    lines_read = []

    def lines(first: str) -> Iterator[str]:
        for line in (first, *(f"{n};,\n" for n in range(1000))):
            lines_read.append(line)
            yield line

    assert delimiter_of(Path("a.csv"), lines("id;text\n")) == ";" and len(lines_read) == 1
    lines_read.clear()
    assert delimiter_of(Path("a.csv"), lines('id;"text\n')) == ";" and len(lines_read) == MOST
