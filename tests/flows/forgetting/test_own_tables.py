"""The user's own tables: what forget cannot read in them is named."""

from pathlib import Path

import pytest

from flows.forgetting import own_tables
from flows.repository.git import git
from tasks.core.errors import UserError
from tasks.core.sources.forgotten import mark


def test_batches_of_either_form_are_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text("dataset: {source: demo}\n")
    (tmp_path / "retraining.yaml").write_text("intake: {inbox: inbox}\n")
    for name, file, text in (("1", "corpus.csv", "id,text\nd1,secret\n"), ("2", "corpus.jsonl", '{"_id": "d1", "text": "secret"}\n')):
        (tmp_path / "inbox" / name).mkdir(parents=True)
        (tmp_path / "inbox" / name / file).write_text(text)
    ((kind, folders),) = own_tables.own_sources()
    result = own_tables.withdraw_records(kind, folders, [mark("document", "d1")], dry=True)
    counts = {f"{tmp_path}/inbox/1/corpus.csv": 1, f"{tmp_path}/inbox/2/corpus.jsonl": 1}
    assert result == {"files": counts, "texts": ["secret", "secret"], "unread": []}


def test_a_record_with_a_blank_text_is_removed_but_not_looked_for(tmp_path: Path) -> None:
    """A blank text would be found in the tables of other projects, and so would a title that many records have."""
    marks = [mark("document", "d1"), mark("document", "d2"), mark("query", "q1")]
    for name, corpus, queries in (
        ("csv", "id,title,text\nd1,Complaint of Anna, \nd2,,\nd3,x,\n", "id,text\nq1, \n"),
        (
            "beir",
            '{"_id": "d1", "title": "Complaint of Anna", "text": " "}\n{"_id": "d2", "text": "\\n"}\n{"_id": "d3", "text": "x"}\n',
            '{"_id": "q1", "text": " "}\n',
        ),
    ):
        folder, ending = tmp_path / name, "csv" if name == "csv" else "jsonl"
        folder.mkdir()
        (folder / f"corpus.{ending}").write_text(corpus)
        (folder / f"queries.{ending}").write_text(queries)
        result = own_tables.withdraw_records(name, [folder], marks, dry=False)
        assert [*result["files"].values()] == [2, 1] and result["texts"] == []


def test_malformed_files_of_the_inbox_are_named_and_stop_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text("dataset: {source: demo}\n")
    (tmp_path / "retraining.yaml").write_text("intake: {inbox: inbox}\n")
    deep = '{"_id": "d1", "text": ' + "[" * 100_000
    files = {"1/corpus.csv": 'id,text\nx,"open\nd1,secret\n', "2/corpus.jsonl": deep, "3/corpus.csv": "id,text\nd1,secret\nd2,x\n"}
    for name, text in files.items():
        (tmp_path / "inbox" / name).parent.mkdir(parents=True)
        (tmp_path / "inbox" / name).write_text(text)
    ((kind, folders),) = own_tables.own_sources()
    answer = own_tables.withdraw_records(kind, folders, [mark("document", "d1")], dry=False)
    assert answer["files"] == {f"{tmp_path}/inbox/3/corpus.csv": 1} and answer["texts"] == ["secret"]
    notes = list(own_tables.source_notes({}, {}, answer["unread"]))
    assert notes[-1].endswith("the records is unknown: inbox/1/corpus.csv, inbox/2/corpus.jsonl")
    assert {name: (tmp_path / "inbox" / name).read_text() for name in files} == {
        **files,
        "3/corpus.csv": "id,text\nd2,x\n",
    }


@pytest.mark.parametrize("mode", ["append", "replace"])
def test_a_row_that_has_the_id_of_the_data_set_by_its_text_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    """A retraining gives it that id only while the data set's file has the text, so it would come back under its own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text("dataset: {source: 'pairs:base.csv#passage=Antwort'}\n")
    (tmp_path / "retraining.yaml").write_text(f"intake: {{inbox: inbox, mode: {mode}}}\n")
    (tmp_path / "inbox").mkdir()
    header = "question,query_id,Antwort,title,id\n"
    (tmp_path / "base.csv").write_text(f"{header}how,q1,Secret  words,Anna,A\nwho,q2,secret words,,C\n")
    rows = {"1": "where,q3,secret words,anna,B\n", "2": "How,q4,x,,D\n", "3": "when,q5,secret words,,E\n", "4": "what,q6,y,,A\n"}
    for name, text in rows.items():
        (tmp_path / f"inbox/{name}.csv").write_text(header + text)
    result = own_tables.records_in_inbox([mark("document", "A"), mark("query", "q1")])
    counts = {Path(name).name: count for name, count in result["files"].items()}
    assert counts == ({"1.csv": 1, "2.csv": 1, "4.csv": 1} if mode == "append" else {"4.csv": 1})
    assert result["texts"] == (["secret words", "How", "y"] if mode == "append" else ["y"])
    (tmp_path / "base.csv").rename(tmp_path / "elsewhere.csv")
    result = own_tables.records_in_inbox([mark("document", "A"), mark("query", "q1")])
    assert result["unread"] == (["base.csv"] if mode == "append" else []), "so which texts have these ids is unknown"


@pytest.mark.parametrize(("file", "section"), [("retraining.yaml", "intake"), ("params.yaml", "dataset")])
def test_a_section_that_is_no_mapping_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, section: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text("dataset: {source: demo}\n")
    (tmp_path / file).write_text(f"{section}: inbox\n")
    with pytest.raises(UserError, match=rf"^{file}: {section}: found 'inbox', expected a mapping; fix it$"):
        list(own_tables.own_sources())


def test_a_folder_that_is_not_mounted_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its records would be believed gone. An inbox may be empty, unless it had batches."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text("dataset: {source: 'beir:share/data'}\n")
    (tmp_path / "retraining.yaml").write_text("intake: {inbox: share/inbox}\n")
    remedy, again = "may still have the records; mount it, or if", "; then run retemper forget again"
    lines = [
        f"dataset.source beir:share/data: unavailable, so it {remedy} it was deleted, change dataset.source in params.yaml{again}",
        f"intake.inbox share/inbox: unavailable, so its batches {remedy} it was deleted, create an empty one{again}",
    ]
    assert list(own_tables.unavailable_places()) == lines
    for name in ("data", "inbox"):
        (tmp_path / "share" / name).mkdir(parents=True)
    assert list(own_tables.unavailable_places()) == lines[:1], "an empty folder, as of a mount point"
    (tmp_path / "share/data/corpus.jsonl").touch()
    assert list(own_tables.unavailable_places()) == []
    (tmp_path / own_tables.ACCEPTED).mkdir(parents=True)
    (tmp_path / own_tables.ACCEPTED / "1.json").touch()
    (line,) = own_tables.unavailable_places()
    expected = f"found no batch, so those accepted before {remedy} there are none: rm -r .retemper/accepted{again}"
    assert line == f"intake.inbox share/inbox: {expected}"
    (tmp_path / "share/inbox/1").mkdir()
    assert list(own_tables.unavailable_places()) == []
    (tmp_path / "params.yaml").write_text("dataset: {source: demo}\n")
    (tmp_path / "retraining.yaml").write_text("")
    assert list(own_tables.unavailable_places()) == []


@pytest.mark.parametrize("mode", ["append", "replace"])
def test_a_file_of_pairs_that_is_not_mounted_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    """Rows of the inbox that have the texts of its records would be believed absent. With `replace`, they are not compared."""
    monkeypatch.chdir(tmp_path)
    source = "pairs:share/base.csv#passage=Antwort"
    (tmp_path / "params.yaml").write_text(f"dataset: {{source: '{source}'}}\n")
    (tmp_path / "retraining.yaml").write_text(f"intake: {{inbox: inbox, mode: {mode}}}\n")
    (tmp_path / "inbox/folder").mkdir(parents=True)
    assert list(own_tables.unavailable_places()) == [], "no file of the inbox is compared with it"
    (tmp_path / "inbox/1.csv").write_text("question,Antwort\nhow,so\n")
    line = (
        f"dataset.source {source}: unavailable, so rows of the inbox with the text of a record cannot be found; mount it, or if it was "
        "deleted, change dataset.source in params.yaml; then run retemper forget again"
    )
    assert list(own_tables.unavailable_places()) == ([line] if mode == "append" else [])
    (tmp_path / "share").mkdir()
    (tmp_path / "share/base.csv").write_text("question,Antwort\nhow,so\n")
    assert list(own_tables.unavailable_places()) == []


def test_a_data_set_in_a_repository_of_its_own_has_a_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("project", "data"):
        (tmp_path / name).mkdir()
        git("init", "--quiet", folder=tmp_path / name)
    for name in ("corpus.jsonl", "queries.jsonl"):
        (tmp_path / "data" / name).touch()
    git("add", "corpus.jsonl", folder=tmp_path / "data")
    monkeypatch.chdir(tmp_path / "project")
    (tmp_path / "project/params.yaml").write_text("dataset: {source: 'beir:../data'}\n")
    files = [str(tmp_path / "data" / name) for name in ("corpus.jsonl", "queries.jsonl")]
    (note,) = own_tables.source_notes(dict.fromkeys(files, 1), {}, [])
    assert note.startswith(f"{files[0]}: git has earlier versions of it")
