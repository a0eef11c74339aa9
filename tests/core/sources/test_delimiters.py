"""The delimiter of a CSV file, by its name and its header alone."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.core.sources.delimiters import MOST, delimiter_of
from tasks.core.stage.errors import Invalid


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
        ([], ","),
    ],
)
def test_the_header_says_the_delimiter(lines: list[str], delimiter: str) -> None:
    assert delimiter_of(Path("corpus.csv"), lines) == delimiter
    assert delimiter_of(Path("corpus.csv.gz"), lines) == delimiter
    assert {delimiter_of(Path(name), lines) for name in ("corpus.tsv", "corpus.tsv.gz")} == {"\t"}


def test_a_header_with_both_is_refused_with_its_line() -> None:
    with pytest.raises(Invalid) as error:
        delimiter_of(Path("in/corpus.csv"), ["\n", "id;text;price, with tax\r\n"])
    assert str(error.value) == (
        "in/corpus.csv:2: found commas and semicolons in the header ('id;text;price, with tax'), expected one of them, between the "
        "columns; put a column's name that has the other into quotes, or rename it"
    )


def test_no_more_is_read_than_the_header() -> None:
    read = []

    def lines(first: str) -> Iterator[str]:
        for line in (first, *(f"{n};,\n" for n in range(1000))):
            read.append(line)
            yield line

    assert delimiter_of(Path("a.csv"), lines("id;text\n")) == ";" and len(read) == 1
    read.clear()
    assert delimiter_of(Path("a.csv"), lines('id;"text\n')) == ";" and len(read) == MOST
