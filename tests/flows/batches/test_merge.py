"""Batches merged with a data set, against a plain dictionary; what is refused."""

import gzip
import json
import os
from pathlib import Path

import pytest

from flows.batches.merge import OUT, STAMP, absolute, merge_folders, name_batches
from flows.intake.inbox import take_in
from flows.intake.settings import Intake
from tasks.core.errors import UserError
from tasks.core.sources.datasets import parse_dataset
from tasks.prepare.corpus import write_corpus
from tasks.prepare.params import Prepare
from tasks.prepare.readers.beir import qrels
from tasks.prepare.readers.kinds import read as read_source


def write_beir(
    folder: Path, documents: dict[str, str], queries: dict[str, str] | None = None, dev: dict[tuple[str, str], int] | None = None
) -> Path:
    (folder / "qrels").mkdir(parents=True)
    for name, records in (("corpus", documents), ("queries", queries or {})):
        if records:
            (folder / f"{name}.jsonl").write_text("".join(json.dumps({"_id": i, "text": text}) + "\n" for i, text in records.items()))
    if dev:
        lines = ["query-id\tcorpus-id\tscore", *(f"{query}\t{doc}\t{grade}" for (query, doc), grade in dev.items())]
        (folder / "qrels/dev.tsv").write_text("\n".join(lines) + "\n")
    return folder


def read(file: Path) -> dict[str, str]:
    return {record["_id"]: record["text"] for record in map(json.loads, file.read_text().splitlines())}


def test_the_union_is_by_id_and_the_later_wins(tmp_path: Path) -> None:
    batches = [
        ({"d1": "one", "d2": "two"}, {"q1": "what"}, {("q1", "d1"): 1, ("q1", "d2"): 0}),
        ({"d2": "TWO", "d3": "three"}, {"q2": "who"}, {("q1", "d2"): 2, ("q2", "d3"): 1}),
        ({"d1": "ONE"}, {}, {}),
    ]
    folders = [write_beir(tmp_path / str(number), *batch) for number, batch in enumerate(batches)]
    corpus = folders[1] / "corpus.jsonl"
    (folders[1] / "corpus.jsonl.gz").write_bytes(gzip.compress(corpus.read_bytes()))
    corpus.unlink()
    out, stamp = tmp_path / "out", tmp_path / "stamp.json"
    merge_folders(folders, out, stamp)
    documents: dict[str, str] = {}
    grades: dict[tuple[str, str], int] = {}
    for docs, _, dev in batches:
        documents |= docs
        grades |= dev
    assert read(out / "corpus.jsonl") == documents
    assert list(read(out / "corpus.jsonl")) == ["d1", "d2", "d3"], "in the order of first appearance"
    assert read(out / "queries.jsonl") == {"q1": "what", "q2": "who"}
    lines = (out / "qrels/dev.tsv").read_text().splitlines()
    assert lines[0] == "query-id\tcorpus-id\tscore"
    assert {(q, d): int(grade) for q, d, grade in (line.split("\t") for line in lines[1:])} == grades
    assert {path.name for path in out.iterdir()} == {"corpus.jsonl", "queries.jsonl", "qrels"}

    before = (out / "corpus.jsonl").stat().st_mtime_ns
    merge_folders(folders, out, stamp)
    assert (out / "corpus.jsonl").stat().st_mtime_ns == before, "nothing new: nothing is done"
    with (folders[2] / "corpus.jsonl").open("a") as corpus_file:
        corpus_file.write('{"_id": "d4", "text": "four"}\n')
    merge_folders(folders, out, stamp)
    assert read(out / "corpus.jsonl") == documents | {"d4": "four"}


def test_a_first_row_is_a_header_just_where_prepare_reads_one(tmp_path: Path) -> None:
    for number, row in enumerate(("q1\td1\t+1", "q1\td1\t-1", "q1\td1\t 2 ", "query-id\tcorpus-id\tscore", "q1\td1\t²")):
        folder = write_beir(tmp_path / str(number), {"d1": "one"}, {"q1": "what"})
        (folder / "qrels/dev.tsv").write_text(f"{row}\nq2\td1\t1\n")
        merge_folders([folder], tmp_path / f"out{number}", tmp_path / f"stamp{number}.json")
        before, after = (list(qrels(place / "qrels/dev.tsv")) for place in (folder, tmp_path / f"out{number}"))
        assert [record[1:] for record in after] == [record[1:] for record in before], row


def test_a_wrong_grade_in_the_first_row_stays_for_prepare_to_refuse(tmp_path: Path) -> None:
    folder = write_beir(tmp_path / "batch", {"d1": "one"}, {"q1": "what"})
    (folder / "qrels/dev.tsv").write_text("q1\td1\t1.0\nq2\td1\t1\n")
    merge_folders([folder], tmp_path / "out", tmp_path / "stamp.json")
    assert (tmp_path / "out/qrels/dev.tsv").read_text().splitlines()[1:] == ["q1\td1\t1.0", "q2\td1\t1"]
    for place in (folder, tmp_path / "out"):
        with pytest.raises(UserError, match=r"dev.tsv:\d: found grade '1.0', expected an integer"):
            list(qrels(place / "qrels/dev.tsv"))


def test_splits_of_other_names_and_byte_order_marks(tmp_path: Path) -> None:
    folders = [
        write_beir(tmp_path / "0", {"d1": "one"}, {"q1": "what"}, {("q1", "d1"): 1}),
        write_beir(tmp_path / "1", {"d2": "two"}, dev={("q1", "d2"): 1}),
    ]
    (folders[1] / "qrels/dev.tsv").rename(folders[1] / "qrels/validation.tsv")
    (folders[1] / "qrels/dev.tsv~").write_text("an editor's")
    corpus = folders[1] / "corpus.jsonl"
    corpus.write_text(corpus.read_text(), encoding="utf-8-sig")
    merge_folders(folders, tmp_path / "out", tmp_path / "stamp.json")
    assert {path.name for path in (tmp_path / "out/qrels").iterdir()} == {"dev.tsv"}
    assert (tmp_path / "out/qrels/dev.tsv").read_text().splitlines()[1:] == ["q1\td1\t1", "q1\td2\t1"]
    assert read(tmp_path / "out/corpus.jsonl") == {"d1": "one", "d2": "two"}
    (folders[1] / "qrels/val.tsv").write_text("query-id\tcorpus-id\tscore\n")
    with pytest.raises(UserError, match=r"1/qrels/validation.tsv: val.tsv exists too"):
        merge_folders(folders, tmp_path / "out", tmp_path / "stamp.json")
    (folders[1] / "qrels/val.tsv").rename(folders[1] / "qrels/all.tsv")
    with pytest.raises(UserError, match=r"1/qrels/all.tsv: found qrels of an unknown split"):
        merge_folders(folders, tmp_path / "out", tmp_path / "stamp.json")


def test_which_data_set_a_rule_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tree").mkdir()
    monkeypatch.chdir(tmp_path / "tree")
    project = tmp_path / "project"
    write_beir(project / "base", {"d1": "one"})
    assert take_in(Intake(), "beir:base", project).spec == f"beir:{project / 'base'}"
    assert take_in(Intake(), "irds:a/b", project).spec == "irds:a/b"
    assert take_in(Intake(), "demo", project).spec == "demo"
    rule = Intake(inbox="inbox")
    with pytest.raises(UserError, match=r"intake.inbox: .*inbox: no such folder"):
        take_in(rule, "beir:base", project)
    write_beir(project / "inbox/.002", {"d9": "half"})
    assert take_in(rule, "beir:base", project).spec == f"beir:{project / 'base'}", "no complete batch has arrived"
    write_beir(project / "inbox/001", {"d2": "two"})
    assert take_in(rule, "beir:base", project).spec == f"beir:{tmp_path / 'tree/.retemper/dataset'}"
    assert read(tmp_path / "tree/.retemper/dataset/corpus.jsonl") == {"d1": "one", "d2": "two"}
    with pytest.raises(UserError, match="append needs a data set in BEIR or CSV form"):
        take_in(rule, "demo", project)
    write_beir(project / "inbox/002", {"d3": "three"}, {"q3": "what is three"}, {("q3", "d3"): 1})
    assert take_in(Intake(inbox="inbox", mode="replace"), "demo", project).spec == f"beir:{project / 'inbox/002'}"


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("corpus.jsonl", '{"_id": "d1", "text": "two"}', "corpus.jsonl:2: document id 'd1' is already used at"),
        ("queries.jsonl", '{"_id": "q1", "text": "who"}', "queries.jsonl:2: query id 'q1' is already used at"),
        ("qrels/dev.tsv", "q1\td1\t0", "dev.tsv:3: query 'q1' and document 'd1' have grade 0 here and 3 at"),
    ],
)
def test_a_file_that_contradicts_itself_stays_for_prepare_to_refuse(tmp_path: Path, name: str, line: str, message: str) -> None:
    """Its later line won, so prepare, which refuses both lines without a batch, saw one."""
    base = write_beir(tmp_path / "base", {"d1": "one"}, {"q1": "what"}, {("q1", "d1"): 3})
    batch = write_beir(tmp_path / "batch", {"d9": "nine"}, dev={("q1", "d9"): 1})
    first = (base / name).read_text().splitlines()[-1]
    with (base / name).open("a") as handle:
        handle.write(f"{line}\n")
    merge_folders([base, batch], tmp_path / OUT, tmp_path / STAMP)
    with pytest.raises(UserError) as refusal:
        write_corpus(read_source(parse_dataset(f"beir:{tmp_path / OUT}")), Prepare(), tmp_path)
    assert message in str(refusal.value)
    assert f"(merged from {base / name}; " in name_batches(str(refusal.value), tmp_path)
    (batch / name).write_text("query-id\tcorpus-id\tscore\n" * name.startswith("qrels") + f"{line}\n")
    merge_folders([base, batch], tmp_path / OUT, tmp_path / STAMP)
    merged = (tmp_path / OUT / name).read_text().splitlines()
    assert merged.count(line) == 1 and first not in merged, "a later folder decides"


def test_a_judgment_given_twice_is_merged_once(tmp_path: Path) -> None:
    folder = write_beir(tmp_path / "base", {"d1": "one"}, {"q1": "what"}, {("q1", "d1"): 3})
    with (folder / "qrels/dev.tsv").open("a") as handle:
        handle.write("q1\td1\t3\n")
    merge_folders([folder], tmp_path / "out", tmp_path / "stamp.json")
    assert (tmp_path / "out/qrels/dev.tsv").read_text().splitlines()[1:] == ["q1\td1\t3"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("corpus.jsonl", '{"_id": "d1"}\n{"text": 1}\n', "corpus.jsonl:2: found no JSON object with _id"),
        ("corpus.jsonl", "[]\n", "corpus.jsonl:1: found no JSON object with _id"),
        ("corpus.jsonl", "{\n", "corpus.jsonl:1: found no JSON object with _id"),
        ("corpus.jsonl", '{"_id": "d1"}\n{"_id": "\\ud800", "text": "x"}\n', "corpus.jsonl:2: _id contains an unpaired surrogate"),
        ("corpus.jsonl", "[" * 200_000 + "\n", "corpus.jsonl:1: found no JSON object with _id"),
        ("qrels/dev.tsv", "query-id\tcorpus-id\tscore\nq1 d1 1\n", "dev.tsv:2: found 1 column,"),
        ("qrels/dev.tsv", "corpus-id\tquery-id\tscore\n1\t2\t1\n", ":1: found columns corpus-id, query-id, score, expected query-id"),
    ],
)
def test_an_invalid_line_is_refused_and_nothing_is_left(tmp_path: Path, name: str, text: str, message: str) -> None:
    folder = write_beir(tmp_path / "batch", {"d0": "zero"})
    (folder / name).write_text(text)
    with pytest.raises(UserError) as refusal:
        merge_folders([folder], tmp_path / "out", tmp_path / "stamp")
    assert message in str(refusal.value)
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob(".out*"))


def test_weights_and_csv_are_merged_in_beir_form(tmp_path: Path) -> None:
    first = write_beir(tmp_path / "0", {"d1": "one"}, {"q1": "what"}, {("q1", "d1"): 1, ("q1", "d2"): 1})
    weighted = write_beir(tmp_path / "1", {"d2": "two"})
    (weighted / "qrels/dev.tsv").write_text("query-id\tcorpus-id\tscore\tweight\nq1\td2\t1\t0.25\n")
    (tmp_path / "2/qrels").mkdir(parents=True)
    (tmp_path / "2/qrels/dev.csv").write_text("query,doc,grade\nq1,d3,2\n")
    (tmp_path / "2/corpus.csv").write_text('id,text\nd3,"three\nlines"\n')
    merge_folders([first, weighted, tmp_path / "2"], tmp_path / "out", tmp_path / "stamp.json")
    assert (tmp_path / "out/qrels/dev.tsv").read_text().splitlines() == [
        "query-id\tcorpus-id\tscore\tweight",
        "q1\td1\t1\t1",
        "q1\td2\t1\t0.25",
        "q1\td3\t2\t1",
    ]
    assert read(tmp_path / "out/corpus.jsonl") == {"d1": "one", "d2": "two", "d3": "three\nlines"}
    assert [qrel.weight for qrel in qrels(tmp_path / "out/qrels/dev.tsv")] == [1, 0.25, 1]


def test_weights_in_csv_go_on(tmp_path: Path) -> None:
    first = write_beir(tmp_path / "0", {"d1": "one"}, {"q1": "what"}, {("q1", "d1"): 1})
    (tmp_path / "1/qrels").mkdir(parents=True)
    (tmp_path / "1/qrels/dev.csv").write_text("query,weight,doc,grade\nq1,0.1,d2,1\nq1,,d3,1\n")
    merge_folders([first, tmp_path / "1"], tmp_path / "out", tmp_path / "stamp.json")
    assert [(qrel.doc, qrel.weight) for qrel in qrels(tmp_path / "out/qrels/dev.tsv")] == [("d1", 1), ("d2", 0.1), ("d3", 1)]


def test_a_batch_with_semicolons_is_merged(tmp_path: Path) -> None:
    first = write_beir(tmp_path / "0", {"d1": "one"}, {"q1": "what"}, {("q1", "d1"): 1})
    (tmp_path / "1/qrels").mkdir(parents=True)
    (tmp_path / "1/corpus.csv").write_text('\ufeffid;text\r\nd1;"one; and, more"\r\n', encoding="utf-8")
    (tmp_path / "1/qrels/dev.csv").write_text("query;weight;doc;grade\nq1;0.1;d2;1\n")
    (tmp_path / "1/negatives.csv").write_text("query;doc;score\nq1;d3;0,5\n")
    merge_folders([first, tmp_path / "1"], tmp_path / "out", tmp_path / "stamp.json")
    assert read(tmp_path / "out/corpus.jsonl") == {"d1": "one; and, more"}
    assert [(qrel.doc, qrel.weight) for qrel in qrels(tmp_path / "out/qrels/dev.tsv")] == [("d1", 1), ("d2", 0.1)]
    assert (tmp_path / "out/negatives.tsv").read_text() == "query-id\tcorpus-id\nq1\td3\n"


def test_an_error_in_the_merged_data_set_names_the_batch(tmp_path: Path) -> None:
    folders = [write_beir(tmp_path / name, {f"d{name}": name}, {"q": "what"}, {("q", f"d{name}"): 1}) for name in "1234"]
    (folders[0] / "qrels/dev.tsv").write_text("query-id\tcorpus-id\tscore\tweight\nq\td1\t1\t0.5\n")
    (folders[3] / "corpus.jsonl").unlink()
    (folders[3] / "corpus.csv").write_text("id,text\nd4,four\n")
    (folders[3] / "queries.jsonl").rename(folders[3] / "queries.csv")
    (folders[3] / "queries.csv").write_text("id,text\nq,what\n")
    (folders[3] / "qrels/dev.tsv").rename(folders[3] / "qrels/test.tsv")
    out = tmp_path / OUT
    merge_folders(folders, out, tmp_path / STAMP)
    remedy = "to exclude a batch, begin its name with a dot"
    for place, files in {
        "qrels/dev.tsv:3": ["2/qrels/dev.tsv"],
        "qrels/dev.tsv": ["1/qrels/dev.tsv", "2/qrels/dev.tsv", "3/qrels/dev.tsv"],
        "corpus.jsonl:4": ["4/corpus.csv"],
        "queries.jsonl:1": ["4/queries.csv"],
    }.items():
        message = f"prepare: {out}/{place}: wrong"
        merged = ", ".join(str(tmp_path / file) for file in files)
        assert name_batches(message, tmp_path) == f"{message} (merged from {merged}; {remedy})"
    message = f"{out}/queries.jsonl: wrong"
    named = name_batches(message, tmp_path)
    assert named.startswith(f"{message} (merged from {tmp_path}/2/queries.jsonl, ") and " and 1 earlier;" in named
    for other in (f"{out}/stats.json: wrong", "train@a: failed with status 1", f"{tmp_path}/1/corpus.jsonl:1: wrong"):
        assert name_batches(other, tmp_path) == other
    (folders[1] / "qrels/dev.tsv").unlink()
    (folders[2] / "qrels/dev.tsv").unlink()
    assert name_batches(f"{out}/qrels/dev.tsv:3: wrong", tmp_path) == f"{out}/qrels/dev.tsv:3: wrong", "it is gone"


def test_the_path_of_a_source_is_made_absolute_and_its_columns_stay(tmp_path: Path) -> None:
    assert absolute("pairs:faq.csv#query=Frage", tmp_path) == f"pairs:{tmp_path / 'faq.csv'}#query=Frage"
    assert absolute("beir:a#query=b", tmp_path) == f"beir:{tmp_path / 'a#query=b'}"
    assert absolute("irds:beir/scifact", tmp_path) == "irds:beir/scifact"


def test_a_link_to_a_file_keeps_its_name(tmp_path: Path) -> None:
    """The name says how it is read, and DVC's or git-annex's name of the content has no ending."""
    (tmp_path / "store").mkdir()
    (tmp_path / "store/0123abcd").write_text("question,answer\nwhat?,this\n")
    (tmp_path / "data").symlink_to(tmp_path / "store")
    (tmp_path / "store/faq.csv").symlink_to("0123abcd")
    assert absolute("pairs:data/faq.csv#id=", tmp_path) == f"pairs:{tmp_path}/store/faq.csv#id="
    assert absolute("jsonl:data/faq.csv", tmp_path) == f"jsonl:{tmp_path}/store/faq.csv"
    assert absolute("beir:data", tmp_path) == f"beir:{tmp_path}/store"


def test_a_replaced_file_of_the_same_size_and_time_is_merged_again(tmp_path: Path) -> None:
    """As unpacking a reproducible archive over it does."""
    folder = write_beir(tmp_path / "1", {"d1": "one"}, {"q1": "what"}, {("q1", "d1"): 0})
    out, stamp, file = tmp_path / "out", tmp_path / "stamp.json", folder / "qrels/dev.tsv"
    merge_folders([folder], out, stamp)
    times = file.stat().st_atime_ns, file.stat().st_mtime_ns
    (folder / "new").write_text(file.read_text().replace("\t0", "\t1"))
    (folder / "new").replace(file)
    os.utime(file, ns=times)
    merge_folders([folder], out, stamp)
    assert (out / "qrels/dev.tsv").read_text().endswith("q1\td1\t1\n")


@pytest.mark.parametrize("form", ["beir", "csv"])
def test_a_data_set_is_read_in_the_form_that_its_spec_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    """Files of the other form beside it, such as topics for another tool, are not read by prepare either."""
    monkeypatch.chdir(tmp_path)
    base = write_beir(tmp_path / "base", {"d1": "one"}, {"q1": "what"}, {("q1", "d1"): 1})
    tables = {"corpus.csv": "id,text\nt1,table\n", "queries.tsv": "id\ttext\nt2\tnumber\n", "qrels/dev.csv": "query,doc,grade\nt2,t1,1\n"}
    for name, text in tables.items():
        (base / name).write_text(text)
    if form == "csv":
        (base / "qrels/dev.tsv").unlink()  # which would be a second file of the split
    (tmp_path / "base/negatives.csv").write_text("query,doc\n")
    write_beir(tmp_path / "inbox/1", {"d2": "two"})
    known = "d1" if form == "beir" else "t1"
    (tmp_path / "inbox/1/qrels/dev.tsv").write_text(f"query-id\tcorpus-id\tscore\nq1\t{known}\t1\n")
    if form == "csv":
        (tmp_path / "inbox/1/queries.jsonl").write_text('{"_id": "q1", "text": "what"}\n')
    (batch,) = take_in(Intake(inbox="inbox"), f"{form}:base", tmp_path, say=lambda _: None).batches
    assert batch.state == "accepted", batch.reason
    assert list(read(tmp_path / OUT / "corpus.jsonl")) == [known, "d2"]
    message = f"{(tmp_path / OUT).resolve()}/corpus.jsonl:1: wrong"
    assert f"(merged from {base}/corpus.{'jsonl' if form == 'beir' else 'csv'}; " in name_batches(message, tmp_path)
