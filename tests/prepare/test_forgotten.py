"""Forgotten records are left out as if the source had never had them, and are taken out of its files byte by byte."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tasks.core.errors import UserError
from tasks.core.sources.datasets import parse_dataset
from tasks.core.sources.delimiters import LARGEST_CELL
from tasks.core.sources.forgotten import mark
from tasks.prepare.commands.withdraw import withdraw_records
from tasks.prepare.forgotten import without_forgotten
from tasks.prepare.readers.kinds import read
from tasks.prepare.source import At, Document, Negative, Qrel, Query, Source

MARKS = {mark("document", "d1"), mark("query", "q2")}
AT = At("source", 1)


def test_a_source_without_records_is_one_that_never_had_them(prepare: Any) -> None:
    def source(documents: str, queries: str, judged: list[tuple[str, str]]) -> Source:
        return Source(
            documents=lambda: (Document(AT, f"d{n}", "", f"text {n}") for n in documents),
            queries={"": lambda: (Query(AT, f"q{n}", f"query {n}", []) for n in queries)},
            qrels={"train": lambda: (Qrel(AT, query, doc, 1) for query, doc in judged)},
            negatives=lambda: (Negative(AT, query, "d1" if "1" in documents else "d3") for query, _ in judged),
        )

    full = source("0123", "0123", [("q0", "d0"), ("q1", "d1"), ("q2", "d2"), ("q3", "d3")])
    less = source("023", "013", [("q0", "d0"), ("q3", "d3")])
    actual, expected = prepare(without_forgotten(full, MARKS)), prepare(less)
    assert (actual.documents, actual.queries, actual.qrels) == (expected.documents, expected.queries, expected.qrels)
    assert {row[0] for row in actual.queries["train"]} == {"q0", "q3"}, "q1 has lost its only document"
    assert actual.official == [], "d1 was every query's negative"
    assert without_forgotten(full, set()) is full


def lines(*records: dict[str, str]) -> bytes:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode()


@pytest.mark.parametrize("packed", [False, True])
def test_lines_of_a_beir_folder_are_taken_out(write_files: Callable[[dict[str, str | bytes]], Path], packed: bool) -> None:
    pack = gzip.compress if packed else bytes
    end = ".gz" if packed else ""
    kept = lines({"_id": "d0", "text": "größe"}) + b'  {"_id":"d2",  "text":"spaces stay"}\r\n'
    folder = write_files(
        {
            f"corpus.jsonl{end}": pack(lines({"_id": "d1", "title": "t", "text": "secret"}) + kept),
            "queries.jsonl": lines({"_id": "q1", "text": "one"}, {"_id": "q2", "text": "who"}),
            "qrels/train.tsv": "query-id\tcorpus-id\tscore\nq1\td0\t1\nq1\td1\t1\nq2\td0\t1\n",
        }
    )
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    counts, texts, unread = withdraw_records("beir", folder, MARKS, dry=True)
    assert before == {path: path.read_bytes() for path in before}, "a dry run changes nothing"
    assert counts == {str(folder / f"corpus.jsonl{end}"): 1, str(folder / "queries.jsonl"): 1, str(folder / "qrels/train.tsv"): 2}
    assert sorted(texts) == ["secret", "who"]
    assert withdraw_records("beir", folder, MARKS, dry=False) == (counts, texts, unread)
    corpus = (folder / f"corpus.jsonl{end}").read_bytes()
    assert (gzip.decompress(corpus) if packed else corpus) == kept
    assert (folder / "qrels/train.tsv").read_bytes() == b"query-id\tcorpus-id\tscore\nq1\td0\t1\n"
    assert withdraw_records("beir", folder, MARKS, dry=False) == ({}, [], [])
    assert [query.id for query in read(parse_dataset(f"beir:{folder}")).queries[""]()] == ["q1"]


def test_rows_of_a_csv_folder_are_taken_out_with_their_line_breaks(write_files: Callable[[dict[str, str | bytes]], Path]) -> None:
    head, first, last = 'text,id,"title"\r\n', '"a ""b"",\nc",d0,t\r\n', "plain,d2,\r\n"
    folder = write_files(
        {
            "corpus.csv": f'{head}{first}"secret\nin two lines",d1,t\r\n{last}',
            "queries.tsv": "id\ttext\nq1\tone\nq2\twho\n",
            "qrels/train.csv": "doc,query,grade\nd0,q1,1\nd1,q1,1\nd0,q2,1\n",
        }
    )
    counts, texts, _ = withdraw_records("csv", folder, MARKS, dry=False)
    assert sorted(counts.values()) == [1, 1, 2]
    assert sorted(texts) == ["secret\nin two lines", "who"]
    assert (folder / "corpus.csv").read_bytes() == f"{head}{first}{last}".encode()
    assert (folder / "queries.tsv").read_text() == "id\ttext\nq1\tone\n"
    assert (folder / "qrels/train.csv").read_text() == "doc,query,grade\nd0,q1,1\n"


def test_a_batch_is_read_in_its_own_form(write_files: Callable[[dict[str, str | bytes]], Path]) -> None:
    documents, judged = "id,text\nd1,secret\nd0,other\n", "query-id\tcorpus-id\tscore\nq1\td1\t1\nq1\td0\t1\n"
    table = write_files({"csv/corpus.csv.gz": gzip.compress(documents.encode()), "csv/qrels/dev.tsv": judged}) / "csv"
    assert sum(withdraw_records("batch", table, MARKS, dry=False)[0].values()) == 2
    assert gzip.decompress((table / "corpus.csv.gz").read_bytes()) == b"id,text\nd0,other\n"
    plain = write_files({"beir/queries.jsonl": lines({"_id": "q2", "text": "who"}), "beir/qrels/dev.tsv": judged}) / "beir"
    assert withdraw_records("batch", plain, MARKS, dry=True)[1] == ["who"]
    assert sum(withdraw_records("batch", plain, MARKS, dry=False)[0].values()) == 2
    mixed = (
        write_files({"mixed/corpus.jsonl": lines({"_id": "d1", "text": "secret"}), "mixed/qrels/dev.csv": "query,doc,grade\nq1,d1,1\n"})
        / "mixed"
    )
    assert sum(withdraw_records("batch", mixed, MARKS, dry=False)[0].values()) == 2
    judgments = write_files({"qrels/qrels/train.tsv": judged}) / "qrels"
    assert sum(withdraw_records("batch", judgments, MARKS, dry=False)[0].values()) == 1, "judgments alone are BEIR's"


@pytest.mark.parametrize(
    ("kind", "name", "content", "kept"),
    [
        ("csv", "corpus.csv", b"id,text,id\nd1,abc,d2\nd3,x,d1\n", None),
        ("csv", "corpus.csv", b"id,text\nd1,secret\nd2,gr\xf6\xdfe\n", None),
        ("csv", "qrels/train.csv", b"query,doc,grade,doc\nq1,d1,1,d2\n", None),
        ("beir", "corpus.jsonl", b'{"_id": "d2", "_id": "d1", "text": "a"}\n{"_id": "d1", "text": "b"}\n', 0),
        ("beir", "corpus.jsonl", b'{"_id": "d1", "text": "gr\xf6\xdfe"}\n{"_id": "d1", "text": "b"}\n', 0),
        ("beir", "qrels/train.tsv", b"gr\xf6\xdfe\td1\t1\nq1\td1\t1\n", 0),
    ],
)
def test_what_prepare_refuses_is_named(
    write_files: Callable[[dict[str, str | bytes]], Path], kind: str, name: str, content: bytes, kept: int | None
) -> None:
    """`kept`: the line that stays. It was taken for another one, or its other record was overlooked."""
    folder = write_files({name: content})
    withdrawn = withdraw_records(kind, folder, MARKS, dry=False)
    assert withdrawn.unread == [str(folder / name)]
    assert withdrawn.counts == ({} if kept is None else {str(folder / name): 1})
    assert (folder / name).read_bytes() == (content if kept is None else content.splitlines(keepends=True)[kept])


@pytest.mark.parametrize(("kind", "end"), [("beir", ".jsonl"), ("csv", ".csv")])
@pytest.mark.parametrize("harm", ["cut", "cut within its head", "one bit", "no deflate"])
def test_a_corrupt_gzip_is_named_and_stays_as_it_is(
    write_files: Callable[[dict[str, str | bytes]], Path], kind: str, end: str, harm: str
) -> None:
    rows = "id,text\nd1,secret\n" if kind == "csv" else lines({"_id": "d1", "text": "secret"}).decode()
    packed = gzip.compress(rows.encode())
    harmed = {
        "cut": packed[:-9],
        "cut within its head": packed[:5],
        "one bit": packed[:-6] + bytes([packed[-6] ^ 1]) + packed[-5:],
        "no deflate": packed[:10] + b"\xff" + packed[11:],
    }[harm]
    folder = write_files({f"corpus{end}.gz": harmed})
    for dry in (True, False):
        with pytest.raises(UserError) as refusal:
            withdraw_records(kind, folder, MARKS, dry=dry)
        message = str(refusal.value)
        assert message.startswith(f"{folder / f'corpus{end}.gz'}: corrupt gzip (") and "\n" not in message
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == {f"corpus{end}.gz": harmed}


DEEP = '{"a":' * 100_000  # the parser gives up


@pytest.mark.parametrize("kind", ["csv", "batch"])
@pytest.mark.parametrize(
    "rows",
    [
        pytest.param('x,"unterminated\nd1,secret\nd2,x\n', id="a quote that is never closed"),
        pytest.param('d1,secret\nx,"unterminated\nd2,x\n', id="after a record"),
        pytest.param("d1,secret\nd2,carriage\rreturn\n", id="a carriage return"),
        pytest.param("d1,secret\nd2,an unquoted, comma\n", id="a row with another cell"),
        pytest.param("d1,secret\nd2\n", id="a row without a cell"),
        pytest.param(f"d1,secret\nd2,{'x' * (LARGEST_CELL + 1)}\n", id="a cell that is too long"),
    ],
)
def test_a_malformed_table_stays_as_it_is(write_files: Callable[[dict[str, str | bytes]], Path], kind: str, rows: str) -> None:
    """Where its rows end is unknown: a row that is removed could be several."""
    content = {"corpus.csv": f"id,text\n{rows}", "queries.csv": "id,text\nq1,one\nq2,who\n"}
    folder = write_files({**content})
    table, queries = str(folder / "corpus.csv"), str(folder / "queries.csv")
    assert withdraw_records(kind, folder, MARKS, dry=False) == ({queries: 1}, ["who"], [table])
    assert (folder / "corpus.csv").read_bytes() == content["corpus.csv"].encode()
    assert (folder / "queries.csv").read_text() == "id,text\nq1,one\n"


@pytest.mark.parametrize(("file", "head"), [("corpus.csv", "ID,Text"), ("corpus.tsv", "id,text"), ("qrels/dev.csv", "doc,grade")])
def test_a_table_without_a_column_is_named(write_files: Callable[[dict[str, str | bytes]], Path], file: str, head: str) -> None:
    """Prepare would refuse it, and only its author knows which cells are ids."""
    folder = write_files({"queries.csv": "text,title,id\n\none,,q1\n , ,\n", file: f"{head}\nd1,1\n"})
    assert withdraw_records("csv", folder, MARKS, dry=False) == ({}, [], [str(folder / file)])


@pytest.mark.parametrize("line", ['{"_id": "d1", "text": "secret"', "[1]", '{"text": "secret"}', f'{{"_id": {"1" * 5_000}}}', DEEP])
def test_a_malformed_line_stays_and_its_file_is_named(write_files: Callable[[dict[str, str | bytes]], Path], line: str) -> None:
    rest = f"\n{line}\n\n".encode() + lines({"_id": "d2", "text": "x"})
    folder = write_files({"corpus.jsonl": lines({"_id": "d1", "text": "secret"}) + rest, "queries.jsonl": "\n"})
    path = str(folder / "corpus.jsonl")
    assert withdraw_records("beir", folder, MARKS, dry=False) == ({path: 1}, ["secret"], [path])
    assert (folder / "corpus.jsonl").read_bytes() == rest


@pytest.mark.parametrize("kind", ["csv", "batch"])
def test_the_file_behind_a_link_is_rewritten(write_files: Callable[[dict[str, str | bytes]], Path], kind: str) -> None:
    folder = write_files({"data/a.csv": "id,text\nd1,secret\nd0,other\n"})
    (folder / "p").mkdir()
    (folder / "p/corpus.csv").symlink_to("../data/a.csv")
    assert sum(withdraw_records(kind, folder / "p", MARKS, dry=False).counts.values()) == 1
    assert (folder / "p/corpus.csv").is_symlink() and (folder / "data/a.csv").read_text() == "id,text\nd0,other\n"


@pytest.mark.parametrize("dry", [True, False])
def test_a_link_into_a_cache_is_refused(write_files: Callable[[dict[str, str | bytes]], Path], dry: bool) -> None:
    """The name of an object there is the digest of its content."""
    name = f"cache/files/md5/0f/{'0a' * 15}"
    folder = write_files({name: "id,text\nd1,secret\n"})
    (folder / "corpus.csv").symlink_to(folder / name)
    with pytest.raises(UserError, match=r"corpus.csv: found a link to .*/0f/(0a){15}, an object of a DVC cache, .*; run dvc unprotect"):
        withdraw_records("csv", folder, MARKS, dry=dry)
    assert (folder / name).read_text() == "id,text\nd1,secret\n"


@pytest.mark.parametrize("packed", [False, True])
def test_a_batch_without_a_record_left_is_set_aside(write_files: Callable[[dict[str, str | bytes]], Path], packed: bool) -> None:
    """A header is no record, and an empty file packed with gzip has bytes."""
    pack, end = (gzip.compress, ".gz") if packed else (bytes, "")
    batches: dict[str, dict[str, str | bytes]] = {
        "beir": {
            f"corpus.jsonl{end}": pack(lines({"_id": "d1", "text": "secret"}) + b"\n"),
            f"qrels/train.tsv{end}": pack(b"query-id\tcorpus-id\tscore\nq1\td1\t1\n\n"),
            "negatives.tsv": "query-id\tcorpus-id\nq1\td1\n",
            "README": "about it",
        },
        "csv": {f"corpus.csv{end}": pack(b"sep=;\nid;text\nd1;secret\n"), "qrels/dev.csv": "query,doc,grade\nq2,d0,1\n"},
    }
    for name, contents in batches.items():
        folder = write_files({f"inbox/{name}/{file}": content for file, content in contents.items()}) / "inbox"
        withdraw_records("batch", folder / name, MARKS, dry=False)
        left = {path.name for path in (folder / f".{name}").rglob("*") if path.is_file()}
        assert not (folder / name).exists() and left == {"README"} & contents.keys()
    folder = write_files(
        {f"inbox/other/{file}": content for file, content in batches["beir"].items()}
        | {"inbox/other/queries.jsonl": lines({"_id": "q1", "text": "x"})}
    )
    withdraw_records("batch", folder / "inbox/other", MARKS, dry=False)
    assert sorted(path.name for path in (folder / "inbox/other").rglob("*") if path.is_file()) == ["README", "queries.jsonl"]


@pytest.mark.parametrize("again", [False, True])
def test_a_batch_is_set_aside_before_its_records_go(
    write_files: Callable[[dict[str, str | bytes]], Path], monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """Killed in between, an empty batch would stop every retraining. `again`: a batch of its name has been set aside before."""
    folder = write_files(
        {"inbox/1/corpus.jsonl": lines({"_id": "d1", "text": "secret"}), "inbox/1/queries.jsonl": lines({"_id": "q2", "text": "who"})}
    )
    inbox, unlink = folder / "inbox", Path.unlink
    if again:
        (inbox / ".1").mkdir()

    def unlink_once(path: Path, missing_ok: bool = False) -> None:
        unlink(path, missing_ok)
        raise InterruptedError

    with monkeypatch.context() as patched, pytest.raises(InterruptedError):
        patched.setattr(Path, "unlink", unlink_once)
        withdraw_records("batch", inbox / "1", MARKS, dry=False)
    assert not (inbox / "1").exists()
    for batch in sorted(inbox.iterdir()):  # as the next `retemper forget` does
        withdraw_records("batch", batch, MARKS, dry=False)
    assert [path for path in inbox.rglob("*") if path.is_file()] == [] and [path.name for path in inbox.iterdir()] == [".1"]


@pytest.mark.parametrize("name", ["negatives.tsv", "qrels/train.tsv"])
@pytest.mark.parametrize("rest", ["", "q1\td0\t1\n"])
@pytest.mark.parametrize("table", [{"corpus.csv": "id,text\nd0,other\n"}, {}], ids=["both forms", "two names"])
def test_a_file_that_is_read_twice_loses_its_records_once(
    write_files: Callable[[dict[str, str | bytes]], Path], name: str, rest: str, table: dict[str, str | bytes]
) -> None:
    """A batch of both forms is never merged, but may be in quarantine. A file of one form may have a second name within the batch."""
    head, query = "query-id\tcorpus-id\tscore\n", lines({"_id": "q1", "text": "x"})
    batch = write_files({f"inbox/1/{name}": f"{head}q1\td1\t1\n{rest}", "inbox/1/queries.jsonl": query}) / "inbox/1"
    if table:
        write_files({f"inbox/1/{file}": content for file, content in table.items()})
    else:
        (batch / name).with_name("negatives.tsv.gz" if name == "negatives.tsv" else "dev.tsv").symlink_to(Path(name).name)
    counts, *_ = withdraw_records("batch", batch, MARKS, dry=False)
    assert counts[str(batch / name)] == 1 and len(counts) == (1 if table else 2)
    left = {file.relative_to(batch).as_posix(): file.read_bytes() for file in batch.rglob("*") if file.is_file() and not file.is_symlink()}
    kept = {name: f"{head}{rest}".encode()} if rest else {}
    assert left == {"queries.jsonl": query, **{file: str(text).encode() for file, text in table.items()}, **kept}


@pytest.mark.parametrize("is_linked", [False, True])
def test_a_file_behind_an_absolute_link_into_its_batch_goes(write_files: Callable[[dict[str, str | bytes]], Path], is_linked: bool) -> None:
    """The batch is set aside first, which breaks the link. `is_linked`: the batch is a link, too."""
    name = "share/1" if is_linked else "inbox/1"
    top = write_files({f"{name}/all.jsonl": lines({"_id": "d1", "text": "secret"}), "inbox/README": "about it"})
    (top / name / "corpus.jsonl").symlink_to(top / name / "all.jsonl")
    if is_linked:
        (top / "inbox/1").symlink_to(top / name)
    batch = top / "inbox/1"
    assert withdraw_records("batch", batch, MARKS, dry=False).counts == {str(batch / "corpus.jsonl"): 1}
    assert not batch.exists() and [*batch.with_name(".1").iterdir()] == []


@pytest.mark.parametrize("kind", ["beir", "batch"])
def test_a_folder_with_the_ending_of_an_emptied_batch_stays(write_files: Callable[[dict[str, str | bytes]], Path], kind: str) -> None:
    kept = lines({"_id": "d2", "text": "x"})
    folder = write_files({"notes.emptied/corpus.jsonl": lines({"_id": "d1", "text": "secret"}) + kept}) / "notes.emptied"
    withdraw_records(kind, folder, MARKS, dry=False)
    assert (folder / "corpus.jsonl").read_bytes() == kept


def test_other_files_of_a_batch_stay_if_one_of_its_name_was_set_aside(write_files: Callable[[dict[str, str | bytes]], Path]) -> None:
    corpus, others = lines({"_id": "d1", "text": "secret"}), {"README.md": "mine", "raw/1.xlsx": "source"}
    for _ in range(3):
        inbox = write_files({f"inbox/1/{name}": content for name, content in {"corpus.jsonl": corpus, **others}.items()}) / "inbox"
        for batch in sorted(inbox.iterdir()):
            withdraw_records("batch", batch, MARKS, dry=False)
    (inbox / "1").mkdir()
    (inbox / "1/corpus.jsonl").write_bytes(corpus)
    withdraw_records("batch", inbox / "1", MARKS, dry=False)
    places = [".1", ".1.emptied", ".1.emptied.emptied"]
    assert sorted(path.name for path in inbox.iterdir()) == places
    left = {file.relative_to(inbox).as_posix() for file in inbox.rglob("*") if file.is_file()}
    assert left == {f"{place}/{name}" for place in places for name in others}
