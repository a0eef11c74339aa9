"""A file of pairs in the inbox: more rows of the data set, told by the rows of the file."""

import gzip
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.batches import merge, pairs_files
from flows.batches.merge import name_batches
from flows.batches.pairs_files import FOLDER
from flows.intake import inbox
from flows.intake.inbox import check_folder, list_batches, take_in
from flows.intake.settings import Gate, Intake
from flows.intake.verdict import Batch
from tasks.core.errors import UserError
from tasks.core.sources.forgotten import mark
from tasks.core.text.plain import Shares, digest
from tasks.prepare.readers.pairs import read

RULE = Intake(inbox="inbox")
BASE = "pairs:faq.csv"
Take = Callable[..., dict[str, Batch]]


def rows(start: int, stop: int, mark: str = ",") -> list[str]:
    return [f"question {n}{mark}answer {n}" for n in range(start, stop)]


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of 60 questions."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "faq.csv", "question,answer", *rows(0, 60))
    (tmp_path / "inbox").mkdir()
    return tmp_path


@pytest.fixture
def take(project: Path) -> Take:
    def take_batches(rule: Intake = RULE, source: str = BASE) -> dict[str, Batch]:
        return {batch.name: batch for batch in take_in(rule, source, project, say=lambda _: None).batches}

    return take_batches


def contents_of(folder: Path) -> dict[str, Any]:
    """Documents, queries, and judged pairs by split of a BEIR folder."""
    contents: dict[str, Any] = {
        name: {row["_id"]: row["text"] for line in (folder / f"{name}.jsonl").read_text().splitlines() if (row := json.loads(line))}
        for name in ("corpus", "queries")
    }
    for file in (folder / "qrels").glob("*.tsv"):
        contents[file.stem] = {tuple(line.split("\t")[:2]) for line in file.read_text().splitlines()[1:]}
    return contents


def merged_contents(project: Path) -> dict[str, Any]:
    return contents_of(project / ".retemper/dataset")


def test_a_file_is_more_rows_of_the_data_sets_file(project: Path, take: Take) -> None:
    added = ["QUESTION  3,answer 3", "question 5,another answer", *rows(60, 110)]
    write(project / "inbox/a.csv", "question,answer", *added)
    assert take()["a.csv"].state == "accepted"
    whole = write(project / "whole.csv", "question,answer", *rows(0, 60), *added)
    actual, expected = merged_contents(project), read(whole)
    assert actual["corpus"] == {record.id: record.text for record in expected.documents()}
    for split in ("train", "dev", "test"):
        assert actual[split] == {(record.query, record.doc) for record in expected.qrels[split]()} != set()
    assert actual["queries"][digest("question 3")] == "QUESTION  3", "the later words count, as with every batch"


def test_every_form_is_read(project: Path, take: Take) -> None:
    folder = project / "inbox"
    write(folder / "a.tsv", "query\ttext", "one\teins")
    write(folder / "b.csv", "Question;Answer", "two;zwei")
    (folder / "c.jsonl.gz").write_bytes(gzip.compress(b'{"anchor": "three", "positive": "drei"}\n'))
    pq.write_table(pa.table({"query": ["four"], "passage": ["vier"]}), folder / "d.parquet")
    assert [(batch.state, batch.new) for batch in take().values()] == [("accepted", 1)] * 4
    assert {"eins", "zwei", "drei", "vier"} < {*merged_contents(project)["corpus"].values()}


def test_columns_are_those_that_the_data_set_names(project: Path, take: Take) -> None:
    write(project / "faq.csv", "Frage,Antwort,id", "eins,one,7", "zwei,two,7")
    write(project / "inbox/a.csv", "Antwort,Frage,id", "three,drei,7")
    write(project / "inbox/b.csv", "question,answer", "four,vier")
    batches = take(source="pairs:faq.csv#query=Frage,passage=Antwort,id=")
    assert batches["a.csv"].state == "accepted"
    assert {*merged_contents(project)["corpus"].values()} == {"one", "two", "three"}
    assert f"{project}/inbox/b.csv:1: found columns question, answer, expected Frage" in batches["b.csv"].reason


@pytest.mark.parametrize(
    ("base", "batch", "problem"),
    [
        ("id,question,answer", "question,answer", "found no column id, which is in the data set's file"),
        ("question,answer", "id,question,answer", "found a column id, unlike the data set's file"),
        ("question,answer,title", "question,answer", "found no column title"),
        ("query_id,question,answer", "question,answer", "found no column query_id"),
    ],
)
def test_records_that_are_named_in_another_way_are_refused(project: Path, take: Take, base: str, batch: str, problem: str) -> None:
    """Otherwise an equal answer would become a second document."""

    def write_csv(path: Path, header: str) -> None:
        write(path, header, *(",".join(f"{name} {n}".replace("id ", "id") for name in header.split(",")) for n in range(3)))

    write_csv(project / "faq.csv", base)
    write_csv(project / "inbox/a.csv", batch)
    write_csv(project / "inbox/b.csv", base)
    batches = take()
    assert batches["a.csv"].state == "quarantined" and problem in batches["a.csv"].reason
    assert (batches["b.csv"].state, batches["b.csv"].new) == ("accepted", 0)


def test_ids_of_the_file_match_and_an_answer_is_replaced(project: Path, take: Take) -> None:
    write(project / "faq.csv", "id,question,answer", "7,one,old words", "8,two,x")
    write(project / "inbox/a.csv", "id,question,answer", "7,one,new words", "9,ONE,y")
    assert take()["a.csv"].new == 1
    assert merged_contents(project)["corpus"] == {"7": "new words", "8": "x", "9": "y"}
    write(project / "inbox/b.csv", "id,title,question,answer", "7,T,one,newer words")
    assert take()["b.csv"].state == "accepted", "with ids, a title names nothing"


def test_known_queries_keep_their_split(project: Path, take: Take) -> None:
    """The data set's own splits, from a column or a BEIR folder, differ here from those of a hash."""
    splits = {f"question {n}": "test" if n % 3 else "dev" for n in range(60)} | {"question 0": "train"}
    write(project / "faq.csv", "question,answer,split", *(f"{text},a {text},{split}" for text, split in splits.items()))
    write(project / "inbox/a.csv", "question,answer", *(f"{text.upper()},b" for text in splits), *rows(100, 200))
    rule = Intake(inbox="inbox", gate=Gate(shift=None))
    assert take(rule)["a.csv"].state == "accepted"
    contents = merged_contents(project)
    assert {split: len(contents[split]) for split in ("train", "dev", "test")} == {"train": 2 + 100, "dev": 2 * 19, "test": 2 * 40}, (
        "new ones are of train, since the data set's file has rows of dev and test"
    )
    base = project / "base"
    shutil.copytree(project / ".retemper/dataset", base)
    write(project / "inbox/a.csv", "question,answer", *(f"{text},c" for text in splits), *rows(200, 300))
    batches = take(rule, "beir:base")
    assert batches["a.csv"].state == "accepted"
    contents, hashed = merged_contents(project), [Shares(0.1, 0.1).split("train", f"question {n}") for n in range(200, 300)]
    assert {split: len(contents[split]) for split in ("dev", "test")} == {
        "dev": 3 * 19 + hashed.count("dev"),
        "test": 3 * 40 + hashed.count("test"),
    }
    assert hashed.count("dev") and hashed.count("test")


def test_what_is_wrong_is_told_by_the_row(project: Path, take: Take) -> None:
    place = project / "inbox"
    write(place / "a.csv", "question,answer", "one,eins", '"two",zwei,drei')
    write(place / "b.csv", "question,answer", "one,eins", "two,", "three,drei", "four,")
    write(place / "c.csv", "question,answer,split", "new,neu,train", "question 1,x,dev")
    write(place / "d.csv", "question,answer")
    write(place / "e.jsonl", '{"question": "one", "answer": "eins"}', '{"question": "one"')
    (place / "f.xlsx").write_bytes(b"PK")
    (place / "g.csv.zst").write_bytes(b"x")
    write(place / "notes.txt", "not a batch")
    write(place / "~$faq.xlsx", "a lock of Excel's")
    assert Shares(0.1, 0.1).split("train", "question 1") == "train"
    batches = take()
    assert {name: batch.state for name, batch in batches.items()} == dict.fromkeys(
        ("a.csv", "b.csv", "c.csv", "d.csv", "e.jsonl", "f.xlsx", "g.csv.zst"), "quarantined"
    )
    assert f"{place}/a.csv:3: found 3 cells, expected 2" in batches["a.csv"].reason
    assert batches["b.csv"].reason == f"1 empty text: {place}/b.csv:3: the document has an empty title and text"
    assert f"{place}/c.csv:3: query {digest('question 1')!r}" in batches["c.csv"].reason
    assert batches["c.csv"].lines[0].startswith(f"{place}/c.csv:3: ")
    assert f"{place}/d.csv: found no row" in batches["d.csv"].reason
    assert f"{place}/e.jsonl:2: " in batches["e.jsonl"].reason
    assert batches["f.xlsx"].reason.endswith("save it as CSV in UTF-8") and batches["g.csv.zst"].reason.endswith("unpack it")


def test_a_fixed_file_is_read_again(project: Path, take: Take) -> None:
    file = write(project / "inbox/a.csv", "question,answer", "new,")
    assert take()["a.csv"].state == "quarantined"
    write(file, "question,answer", "new,neu")
    assert take()["a.csv"].state == "accepted"
    write(project / "faq.csv", "question,answer", *rows(0, 70))
    take()
    assert "neu" in merged_contents(project)["corpus"].values() and "answer 69" in merged_contents(project)["corpus"].values()


def test_a_file_that_is_being_written_waits(project: Path, take: Take) -> None:
    (project / "inbox/a.csv").touch()
    write(project / "inbox/.b.csv", "question,answer", "one,eins")
    write(project / "inbox/c.csv.part", "question,answer", "one,eins")
    assert take() == {}
    write(project / "inbox/a.csv", "question,answer", "one,eins")
    assert take(RULE.model_copy(update={"settle_seconds": 1000.0})) == {}
    assert [batch.state for batch in list_batches(RULE, BASE, project)] == ["left out", "not checked"]
    assert take()["a.csv"].state == "accepted"


def test_a_link_is_read_by_its_own_name(project: Path, take: Take) -> None:
    """What it points to may have any name, as in a store of files by their digests."""
    write(project / "blob", "question,answer", "one,eins")
    (project / "inbox/a.csv").symlink_to("../blob")
    assert take()["a.csv"].state == "accepted"
    write(project / "blob", "question,answer", "one,eins", "two,")
    assert f"{project}/inbox/a.csv:3: " in take()["a.csv"].reason


def test_an_unreadable_file_keeps_only_itself_out(project: Path, take: Take, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        write(project / f"inbox/{name}.csv", "question,answer", f"{name},x {name}")
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "a.csv" and access(path, mode))  # root may read all
    batches = take()
    assert (batches["a.csv"].state, batches["b.csv"].state) == ("quarantined", "accepted")
    assert batches["a.csv"].reason == f"{project}/inbox/a.csv: no permission to read it, expected a file of pairs; give access"


def test_a_file_that_is_gone_is_missing(project: Path, take: Take) -> None:
    for name in ("a", "b"):
        write(project / f"inbox/{name}.csv", "question,answer", f"{name},x {name}")
    take()
    (project / "inbox/b.csv").unlink()
    (project / "inbox/a.csv").rename(project / "inbox/.a.csv")
    assert take_in(RULE, BASE, project, say=lambda _: None).missing == ("b.csv",)


def test_a_file_is_a_whole_data_set_under_replace(project: Path) -> None:
    write(project / "inbox/a.csv", "question,answer", "one,eins")
    rule = Intake(inbox="inbox", mode="replace", gate=Gate(shift=None))
    batch = take_in(rule, BASE, project, say=lambda _: None).batches[0]
    assert "expected some to compare a new model with the champion" in batch.reason and "/.retemper/" not in batch.reason
    write(project / "inbox/a.csv", "Frage,answer", *rows(0, 100))
    outcome = take_in(rule, "pairs:faq.csv#query=Frage,passage=answer", project, say=lambda _: None)
    assert outcome.spec == f"pairs:{project}/inbox/a.csv#query=Frage,passage=answer"


def test_forgotten_records_are_in_no_folder(project: Path, take: Take) -> None:
    write(project / "inbox/a.csv", "question,answer", "one,secret words", "two,zwei")
    take()
    assert "secret words" in merged_contents(project)["corpus"].values()
    write(project / "forgotten.txt", f"document {mark('document', digest('secret words'))} 2026-11-29")
    assert take()["a.csv"].documents == 1
    assert not [path for path in (project / ".retemper").rglob("*.jsonl") if "secret words" in path.read_text()]


def test_what_the_project_has_forgotten_stays_out_of_a_worktree(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worktree's commit may be older than forgotten.txt, and the file in the inbox still has the record."""
    write(project / "inbox/a.csv", "question,answer", "one,secret words", "two,zwei")
    write(project / "forgotten.txt", f"document {mark('document', digest('secret words'))} 2026-11-29")
    tree = project / "tree"
    tree.mkdir()
    monkeypatch.chdir(tree)
    assert take_in(RULE, BASE, project, say=lambda _: None).batches[0].documents == 1
    assert {"zwei"} == {*merged_contents(tree)["corpus"].values()} - {f"answer {n}" for n in range(60)}


def test_check_reads_a_file_anywhere(project: Path) -> None:
    file = write(project / "new.csv", "question,answer", "one,eins", *rows(0, 5))
    checked = check_folder(RULE, BASE, project, folder=file)
    assert (checked.name, checked.state, checked.documents, checked.new) == ("new.csv", "accepted", 6, 1)
    assert not [*(project / FOLDER).glob("*/new.csv")], "nothing of it is kept"
    check_folder(RULE, BASE, project, folder=project / "faq.csv")
    assert [*(project / FOLDER).glob("*/faq.csv")], "the data set's own, which others may be reading, is"
    write(project / "inbox/inside.csv", "question,answer", "one,eins", "two,zwei")
    assert check_folder(RULE, BASE, project, folder=Path("inside.csv")).documents == 2, "one of the inbox, by its name"
    with pytest.raises(UserError, match="no such folder or file"):
        check_folder(RULE, BASE, project, folder=project / "other.csv")


def test_merging_and_explaining_read_the_same_folders(project: Path, take: Take) -> None:
    write(project / "inbox/a.csv", "question,answer", "one,eins")
    take()
    assert [path.name for path in inbox.batches_to_merge(RULE, BASE, project)] == ["a.csv"]
    (base,) = inbox.folders_to_merge(RULE, BASE, project, chosen=[])
    assert contents_of(base)["corpus"].keys() == {digest(f"answer {n}") for n in range(60)}
    assert len([*(project / FOLDER).glob("*/*/corpus.jsonl")]) == 2
    line = name_batches(f"{project}/.retemper/dataset/corpus.jsonl:61: bad", project)
    assert f"(merged from {project}/inbox/a.csv; " in line


def test_what_other_code_has_made_of_a_file_is_made_again(project: Path, take: Take, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fix of the reader, or of the merge, must reach files that were read before it."""
    write(project / "inbox/a.csv", "question,answer", "one,eins")

    def folders_made_again() -> list[str]:
        folders = [*(project / FOLDER).glob("*/*.csv"), project / merge.OUT]
        marked = [folder / "marked" for folder in folders]
        for file in marked:
            file.touch()
        take()
        return sorted(file.parent.name for file in marked if not file.exists())

    take()
    assert folders_made_again() == []
    monkeypatch.setattr(pairs_files, "code_digest", lambda *_: "of another reader")
    assert folders_made_again() == ["a.csv", "dataset", "faq.csv"], "of pairs, and the merge that reads them"
    monkeypatch.setattr(merge, "code_digest", lambda *_: "of another merge")
    assert folders_made_again() == ["dataset"]


def test_the_digest_of_code_is_of_what_a_module_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(pairs_files.ROOT / "tasks", tmp_path / "tasks", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(pairs_files, "ROOT", tmp_path)
    code_digest = pairs_files.code_digest.__wrapped__  # which remembers nothing
    before = code_digest(pairs_files.READER)
    reader = tmp_path / "tasks/prepare/readers/pairs.py"
    reader.write_text(f"{reader.read_text()}\n# a comment\n")
    assert code_digest(pairs_files.READER) == before
    reader.write_text(f"{reader.read_text()}\nOTHER = 1\n")
    assert code_digest(pairs_files.READER) != before
