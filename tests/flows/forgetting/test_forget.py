"""A forgotten record leaves nothing behind: no byte of its text in project, source, cache, and remote; and it does not come back."""

import gzip
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from flows.forgetting import forget, holdings, own_tables
from flows.forgetting.strays import Strays
from flows.repository.lock import read_lock
from flows.storage.cache import file_md5, object_path
from tasks.core.sources.forgotten import HEAD, mark, read_marks
from tasks.core.text.plain import digest


def text_of(path: Path) -> str:
    """A file as text, Parquet as the text of its cells."""
    content = path.read_bytes()
    if content[:4] != b"PAR1":
        return content.decode(errors="replace")
    return json.dumps(pq.read_table(path).to_pylist(), ensure_ascii=False, default=str)


def places_of(text: str, *folders: Path) -> set[str]:
    """Every file below `folders`, hidden ones too but git's objects, that has a text, plain or escaped."""
    forms = (text, json.dumps(text)[1:-1])
    files = (file for folder in folders for file in folder.rglob("*") if file.is_file() and ".git" not in file.parts)
    return {str(file) for file in files if any(form in text_of(file) for form in forms)}


def stored_in(*folders: Path) -> dict[Path, int]:
    """Every file of caches and remotes, which `state` of a project leaves out, with its size."""
    return {path: path.stat().st_size for folder in folders for path in folder.rglob("*") if path.is_file()}


def test_no_byte_of_a_record_is_left_and_it_does_not_come_back(dvc_project: Any, tiny_corpus: Any, tmp_path: Path) -> None:
    team = tmp_path / "remote"
    assert dvc_project.retemper("remote", "add", "team", str(team)).status == 0
    subprocess.run([sys.executable, "-m", "dvc", "push", "--quiet", "--run-cache"], check=True)
    query, document = next(iter(tiny_corpus.qrels["train"].items()))
    other_document = next(reversed(tiny_corpus.documents))
    secret, query_text = tiny_corpus.documents[document][1], tiny_corpus.queries["train"][query]
    dvc_project.write(".retemper/logs/odd.log", f"a log that shows {secret}")
    dvc_project.write(".retemper/scratch/reranker/texts.bin", secret)
    dvc_project.write(".retemper/shards/of-someone.npy", b"vectors")
    dvc_project.write(".retemper/reference/reference.json", json.dumps({"texts": {"queries": [query_text]}}))
    dvc_project.write(".retemper/serving/8080/champion-1/index/index.faiss", b"vectors")
    dvc_project.write(".retemper/preview/data/documents.parquet", b"packed")
    dvc_project.write(".retemper/report.html", "who?")
    dvc_project.write(".retemper/extra/other/shards/0.npy", b"vectors")
    dvc_project.write(".retemper/extra/other/systems.lock", "schema: '2.0'")
    stray = dvc_project.folder / ".dvc/cache/files/md5/ab/cdef0123456789abcdef0123456789"  # of no recorded run
    stray.parent.mkdir(exist_ok=True)
    stray.write_text(f"an old page with {secret} ...")
    shutil.copytree(dvc_project.folder / "beir", tmp_path / "beir")
    assert len(places_of(secret, dvc_project.folder, team)) >= 6
    run = team / "runs/ab" / ("ab" + "0" * 62) / ("cd" + "0" * 62)  # of a colleague; the cache lacks it
    run.parent.mkdir(parents=True)
    run.write_text(json.dumps(next(entry for stage, entry in read_lock().items() if stage == "encode@warmup")))
    stores = (Path(".dvc/cache"), team)
    before = (dvc_project.state(), stored_in(*stores))
    dry_run = dvc_project.retemper("forget", document, query, "--dry-run")
    assert dry_run.status == 0, dry_run
    assert (dvc_project.state(), stored_in(*stores)) == before, "a dry run changes nothing"
    assert not Path(".dvc/cache/runs/ab", *run.parts[-2:]).exists()
    assert "data/embeddings/warmup" in dry_run.out and "remote team" in dry_run.out
    assert f"{stray}: has the text, though no recorded run says so" in dry_run.out.replace("\n", "")
    assert "data/encoders" not in dry_run.out, "weights are told by what saw the record"
    saw = dry_run.out.partition("model that saw them")[2]
    assert "warmup" in saw and "tower" in saw, "trained on the pair"
    result = dvc_project.retemper("forget", document)
    assert (result.status, len(result.err.strip().splitlines())) == (2, 1)

    result = dvc_project.retemper("forget", document, query, "--yes")
    assert result.status == 0, result
    assert places_of(secret, dvc_project.folder, team) == set() and not run.exists()
    assert places_of(query_text, dvc_project.folder, team) == set()
    for folder in (dvc_project.folder / ".dvc/cache", team):
        for file in (folder / "files/md5").rglob("*"):
            if file.is_file() and file.read_bytes()[:4] == b"PAR1":
                columns = pq.read_table(file)
                assert not any({document, query} & {*map(str, columns[name].to_pylist())} for name in columns.column_names), file
    for folder in (dvc_project.folder / ".dvc/cache", team):
        notes = [note.read_text() for note in (folder / "forgotten").iterdir()]
        assert notes and all(mark("document", document) in note and "Objects removed: " in note for note in notes), "for other projects"
    assert not (dvc_project.folder / ".retemper/reference").exists(), "the sample of texts that batches are compared with, and its vectors"
    assert not (dvc_project.folder / ".retemper/serving").exists(), "a server has read it"
    assert not (dvc_project.folder / ".retemper/preview").exists(), "a sample of the corpus"
    assert not (dvc_project.folder / ".retemper/report.html").exists(), "its texts may be too short to be found"
    extra = dvc_project.folder / ".retemper/extra/other"
    assert [path.name for path in extra.iterdir()] == ["systems.lock"], "vectors go, and what tells gc of results stays"
    assert read_marks(Path("forgotten.txt")).keys() == {mark("document", document), mark("query", query)}
    assert document not in Path("forgotten.txt").read_text()
    assert (dvc_project.folder / "data/encoders/warmup").is_dir()
    lines = (dvc_project.folder / "beir/corpus.jsonl").read_text().splitlines()
    assert len(lines) == 59 and any(f'"{other_document}"' in line for line in lines)

    shutil.rmtree(dvc_project.folder / "beir")
    shutil.copytree(tmp_path / "beir", dvc_project.folder / "beir")  # a source that brings it again
    for out in ("corpus", "negatives/none", "negatives/random", "negatives/official"):
        shutil.rmtree(dvc_project.folder / "data" / out, ignore_errors=True)
    assert "2 records excluded from the source" in dvc_project.stage("prepare").out
    assert document not in pq.read_table(dvc_project.folder / "data/corpus/documents.parquet")["id"].to_pylist()
    result = dvc_project.retemper("forget", "--yes")
    assert result.status == 0, result
    assert places_of(secret, dvc_project.folder, team) == set(), "the list alone takes it out of the source again"


def test_what_cannot_be_written_to_is_refused_before_anything_is_removed(
    dvc_project: Any, tiny_corpus: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may write anywhere, so permissions are patched."""
    assert dvc_project.retemper("remote", "add", "team", str(tmp_path / "remote")).status == 0
    subprocess.run([sys.executable, "-m", "dvc", "push", "--quiet", "--run-cache"], check=True)
    (dvc_project.folder / ".dvc/cache/runs").mkdir(exist_ok=True)
    forget = ("forget", next(iter(tiny_corpus.documents)), "--yes")
    assert dvc_project.retemper(*forget, "--dry-run").status == 0
    stores = (dvc_project.folder / ".dvc/cache", tmp_path / "remote")
    before = (dvc_project.state(), stored_in(*stores))
    for words, denied in ((("gc",), "runs"), (forget, "runs"), (forget, "remote")):
        monkeypatch.setattr(os, "access", lambda path, _, denied=denied: Path(path).name != denied)
        result = dvc_project.retemper(*words)
        assert result.status == 2 and "no permission to write to " in result.err, result
        assert "from which this command removes; nothing was changed; give " in result.err.splitlines()[-1]
        assert (dvc_project.state(), stored_in(*stores)) == before and "removed:" not in result.out


@pytest.mark.parametrize("place", ["corpus", "check"])
def test_a_killed_forgetting_is_finished_by_the_next(
    dvc_project: Any, tiny_corpus: Any, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Killed when half of a corpus is gone, or before the final check: its source and listing no longer have the text."""
    document = next(iter(tiny_corpus.qrels["train"].values()))
    secret = tiny_corpus.documents[document][1]
    dvc_project.write(".retemper/logs/odd.log", f"a log that shows {secret}")
    table = object_path(Path(".dvc/cache/files/md5").absolute(), file_md5(Path("data/corpus/documents.parquet")))
    unlink = Path.unlink

    class Killed(BaseException):
        pass

    def unlink_or_die(path: Path, *args: Any, **kwargs: Any) -> None:
        if path.absolute() == table:
            raise Killed
        unlink(path, *args, **kwargs)

    def die(*_: Any, **__: Any) -> None:
        raise Killed

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(*((Path, "unlink", unlink_or_die) if place == "corpus" else (forget, "check", die)))
        dvc_project.retemper("forget", document, "--yes")
    assert secret not in (dvc_project.folder / "beir/corpus.jsonl").read_text()
    assert places_of(secret, dvc_project.folder) - {str(dvc_project.folder / holdings.FOUND)}
    result = dvc_project.retemper("forget", "--yes")
    assert result.status == 0, result
    assert places_of(secret, dvc_project.folder) == set() and "neither in the cache" not in result.out
    assert not holdings.FOUND.exists()


def test_a_text_that_stays_is_looked_for_again(dvc_project: Any, tiny_corpus: Any) -> None:
    document = next(iter(tiny_corpus.qrels["train"].values()))
    dvc_project.write("notes/mine.txt", tiny_corpus.documents[document][1])
    for arguments in ((document,), ()):  # the second time, no corpus has the text
        result = dvc_project.retemper("forget", *arguments, "--yes")
        assert result.status == 1 and f"{Path('notes/mine.txt').absolute()}: still has the text" in result.out, result
        assert str(holdings.FOUND) in result.out and "Next: git add" not in result.out
        assert "neither in the cache nor on a remote" not in result.out, "the corpora that the first one removed"
        found = holdings.Holdings.load(holdings.FOUND)
        assert (found.outs, found.oids, found.ids, found.texts) == (set(), {}, {document}, {tiny_corpus.documents[document][1]}), (
            "what is made again with the same digest stays"
        )
    Path("notes/mine.txt").unlink()
    result = dvc_project.retemper("forget", "--yes")
    assert result.status == 0 and not holdings.FOUND.exists() and "Next: git add" in result.out, result


def test_a_list_without_a_final_line_break_loses_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("forgotten.txt").write_text(f"{HEAD}document {mark('document', 'd1')} 2026-11-24")  # as some editors leave it
    new = (("document", "d2"), ("query", "q1"))
    forget.remember(forget.Plan(frozenset(), new, holdings.Holdings(), (), {}, (), (), (), Strays({}, {}, {})))
    assert read_marks() == {mark("document", "d1"): "document", **{mark(kind, record): kind for kind, record in new}}


def test_an_unknown_id_and_an_empty_list_are_one_line(dvc_project: Any) -> None:
    for arguments, message in ((("zebra",), "zebra: no corpus"), ((), "no record is listed")):
        result = dvc_project.retemper("forget", *arguments, "--dry-run")
        assert (result.status, len(result.err.strip().splitlines())) == (2, 1), result
        assert message in result.err


def test_files_of_pairs_that_have_the_records_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are not changed; an unreadable one does not stop the command."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text("dataset: {source: 'pairs:faq.csv#query=Frage,passage=Antwort'}\n")
    (tmp_path / "retraining.yaml").write_text("intake: {inbox: inbox}\n")
    (tmp_path / "inbox").mkdir()
    (tmp_path / "faq.csv").write_text("Frage,Antwort\nnull,z\n")
    rows = {"1": "eins,Secret  words\nzwei,x\n", "2": "drei,y\n", "3": "Eins,y\nvier,secret words\n"}
    for name, text in rows.items():
        (tmp_path / f"inbox/{name}.csv").write_text(f"Frage,Antwort\n{text}")
    (tmp_path / "inbox/4.csv").write_bytes("Frage,Antwort\nfür,x\n".encode("latin-1"))
    result = own_tables.records_in_inbox([mark("document", digest("secret words")), mark("query", digest("eins"))])
    assert {Path(name).name: count for name, count in result["files"].items()} == {"1.csv": 2, "3.csv": 2}
    assert {*result["texts"]} == {"Secret  words", "eins", "secret words", "Eins"}
    assert [note for note in own_tables.source_notes({}, result["files"], result["unread"]) if "inbox" in note] == [
        "files of the inbox are not changed, but retrainings leave the records out; delete their rows there: 1.csv (2 records), "
        "3.csv (2 records)",
        "files that cannot be read, at least in part, so whether they have the records is unknown: inbox/4.csv",
    ]
    assert (tmp_path / "inbox/1.csv").read_text() == f"Frage,Antwort\n{rows['1']}"


@pytest.mark.parametrize("packed", [False, True])
def test_a_table_with_semicolons_stays_byte_for_byte_but_for_its_rows(tmp_path: Path, packed: bool) -> None:
    bom = b"\xef\xbb\xbf"
    rows = {
        "corpus.csv": [
            bom + b";;\r\n",
            b"id;title, in short;text\r\n",
            b'd1;"a";sec, ret\r\n',
            b'"d2";;"two;\nlines"\r\n',
            b";;\n",
            b"d3;;x",
        ],
        "queries.csv": [b"sep=,\n", b"id,text\n", b'"q1","a;b"\n', b"q2,secret\n"],
        "qrels/train.csv": [bom + b"grade;query;doc\r\n", b"1;q1;d1\r\n", b'1;"q1";d2\r\n', b"1;q2;d3\r\n"],
        "negatives.csv": [b"query;doc;score\n", b"q1;d2;0,5\n", b"q1;d1;0,5\n"],
    }
    removed = {"corpus.csv": [2], "queries.csv": [3], "qrels/train.csv": [1, 3], "negatives.csv": [2]}
    (tmp_path / "qrels").mkdir()
    for name, lines in rows.items():
        path = tmp_path / (f"{name}.gz" if packed else name)
        path.write_bytes(gzip.compress(b"".join(lines)) if packed else b"".join(lines))
    result = own_tables.withdraw_records("csv", [tmp_path], [mark("document", "d1"), mark("query", "q2")], dry=False)
    assert sorted(result["texts"]) == ["sec, ret", "secret"]
    for name, lines in rows.items():
        path = tmp_path / (f"{name}.gz" if packed else name)
        assert result["files"][str(path)] == len(removed[name])
        remaining = gzip.decompress(path.read_bytes()) if packed else path.read_bytes()
        assert remaining == b"".join(line for index, line in enumerate(lines) if index not in removed[name])


def test_a_header_with_two_delimiters_stops_before_anything_is_removed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """It is unclear which cell is the id, so prepare refuses the file, too."""
    files = {"corpus.csv": "id,text\nd1,secret\n", "queries.csv": "id;text,body\nd1;secret\n"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(SystemExit):
        own_tables.withdraw_records("csv", [tmp_path], [mark("document", "d1")], dry=True)
    error = capfd.readouterr().err
    assert error.startswith(f"retemper: {tmp_path}/queries.csv:1: found commas and semicolons in the header") and error.count("\n") == 1
    assert all((tmp_path / name).read_text() == text for name, text in files.items())


@pytest.mark.parametrize("damage", ["truncated", "corrupt"])
def test_a_corrupt_gzip_in_the_inbox_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], damage: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text("dataset: {source: demo}\n")
    (tmp_path / "retraining.yaml").write_text("intake: {inbox: inbox}\n")
    file = tmp_path / "inbox/1/corpus.jsonl.gz"
    file.parent.mkdir(parents=True)
    packed = gzip.compress(b'{"_id": "d1", "text": "secret"}\n')
    file.write_bytes(packed[:-9] if damage == "truncated" else packed[:10] + b"\xff" + packed[11:])
    ((kind, folders),) = own_tables.own_sources()
    with pytest.raises(SystemExit) as exit_info:
        own_tables.withdraw_records(kind, folders, [mark("document", "d1")], dry=True)
    error = capfd.readouterr().err
    assert (exit_info.value.code, error.count("\n")) == (2, 1)
    assert error.startswith(f"retemper: {file}: corrupt gzip (") and error.endswith("; replace or remove it, then run again\n")


def test_batches_with_a_record_are_changed_one_by_one(tmp_path: Path) -> None:
    """So a kill costs the verdict of one at most."""
    first, second, third = (tmp_path / name for name in ("1", "10", "2"))
    sources = (("beir", (tmp_path / "base",)), ("batch", (first, second, third)))
    lines = {f"{second}/qrels/dev.tsv": 1, f"{third}/corpus.jsonl": 2}
    plan = forget.Plan(frozenset(), (), holdings.Holdings(), sources, lines, (), (), (), Strays({}, {}, {}))
    assert list(forget.changes(plan)) == [("beir", (tmp_path / "base",)), ("batch", [second]), ("batch", [third])]


def test_a_source_that_is_not_mounted_leaves_work_to_do(dvc_project: Any, tiny_corpus: Any, tmp_path: Path) -> None:
    document = next(iter(tiny_corpus.qrels["train"].values()))
    Path("beir").rename(tmp_path / "beir")
    result = dvc_project.retemper("forget", document, "--yes")
    line = "dataset.source beir:beir: unavailable, so it may still have the records; mount it, or if it was deleted, "
    line += "change dataset.source in params.yaml; then run retemper forget again"
    assert result.status == 1 and f"note: {line}" in result.out.replace("\n", " ") and "Next: git add" not in result.out, result
    (tmp_path / "beir").rename("beir")
    result = dvc_project.retemper("forget", "--yes")
    assert result.status == 0 and f'"{document}"' not in Path("beir/corpus.jsonl").read_text(), result
