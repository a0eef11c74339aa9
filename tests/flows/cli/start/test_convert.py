"""`retemper convert`: what it prints, and how a mistake or an interrupt ends it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows.cli import main as cli
from flows.converting.store import Store
from tasks.core.sources.datasets import parse_dataset
from tasks.prepare.corpus import write_corpus
from tasks.prepare.params import Prepare
from tasks.prepare.readers.kinds import read

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """write("train.jsonl", *rows): a file of JSON lines."""

    def write_rows(name: str, *rows: dict[str, Any]) -> Path:
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        return tmp_path / name

    return write_rows


def passage(doc: str) -> dict[str, str]:
    return {"docid": doc, "text": f"text of {doc}"}


def tevatron_row(query: str, positives: str, negatives: str = "") -> dict[str, Any]:
    """tevatron_row("q1", "d1 d2", "d3")"""
    lists = {"positive_passages": positives, "negative_passages": negatives}
    return {"query_id": query, "query": f"asks {query}", **{name: [passage(doc) for doc in docs.split()] for name, docs in lists.items()}}


def test_the_command_says_what_it_did_and_what_to_type(
    tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write("a.jsonl", tevatron_row("q 1", "d1", "d2 d1"))
    write("b.jsonl", tevatron_row("q2", "d1"))
    write("dev.jsonl", tevatron_row("q2", "d2"))
    assert cli.main(["convert", "my data", "a.jsonl", "b.jsonl", "--dev", "dev.jsonl", "--test-share", "0"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "Tevatron (passages): a.jsonl and 2 more",
        "my data: 2 documents; queries: train 2, dev 1, test 0; judgments: train 2, dev 1, test 0; negatives: 1",
        "left out: negatives that are relevant to their query: 1",
        "the corpus has only passages of these files: it is smaller than a real one, so figures on it are too high; add --corpus",
        "training queries that are also in dev or test: 1; prepare.leaks=drop removes them from train",
        "ids with white space: 1; prepare.ids=escape accepts them",
        "next: retemper new my-project --data 'my data' --set prepare.leaks=drop --set prepare.ids=escape "
        "--set rounds.warmup.negatives=official",
    ]
    corpus = write_corpus(read(parse_dataset("beir:my data")), Prepare(ids="escape", leaks="drop"), tmp_path)
    assert corpus.stats["documents"]["count"] == 2


def test_dev_that_is_all_of_train_is_not_advised_to_be_dropped_from_it(
    tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing would be left to train on."""
    monkeypatch.chdir(tmp_path)
    write("a.jsonl", tevatron_row("q1", "d1"))
    assert cli.main(["convert", "data", "a.jsonl", "--dev", "a.jsonl", "--test-share", "0"]) == 0
    *_, leaks, advice = capsys.readouterr().out.splitlines()
    assert leaks == "training queries that are also in dev or test: 1; they are the entire train split; use other files for dev and test"
    assert advice == "next: retemper new my-project --data data"


def test_what_is_put_into_the_inbox_is_a_batch(
    tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "retraining.yaml").write_text("intake: {inbox: inbox}\n")
    write("a.jsonl", tevatron_row("q1", "d1"))
    for folder, last in (("inbox/week", "next: retemper intake"), ("inbox-2", "next: retemper new my-project --data inbox-2")):
        (tmp_path / folder).parent.mkdir(exist_ok=True)
        assert cli.main(["convert", folder, "a.jsonl", "--dev-share", "0", "--test-share", "0"]) == 0
        assert capsys.readouterr().out.splitlines()[-1] == last


def test_the_command_says_how_dev_and_test_are_taken(
    tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write("corpus.jsonl", passage("d1"))
    (tmp_path / "topics.tsv").write_text("".join(f"{number}\tasks {number}\n" for number in range(40)))
    (tmp_path / "qrels.txt").write_text("".join(f"{number} 0 d1 1\n" for number in range(40)))
    options = ["--corpus", "corpus.jsonl", "--queries", "topics.tsv", "--qrels", "train=qrels.txt", "--test-share", "0.3"]
    assert cli.main(["convert", "out", *options]) == 0
    out = capsys.readouterr().out.splitlines()
    assert "dev and test queries: 0.1 and 0.3 of the training queries, by a hash of their text" in out
    assert out[-1] == "next: retemper new my-project --data out"
    assert not [line for line in out if "smaller" in line]
    assert {path.name for path in Path("out/qrels").iterdir()} == {"train.tsv", "dev.tsv", "test.tsv"}


def test_titles_are_read_as_tevatron_reads_them(
    tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write("corpus.jsonl", passage("d1") | {"title": "a title"}, passage("d2") | {"title": " "}, passage("d3"))
    write("train.jsonl", tevatron_row("q1", "d3"))
    assert cli.main(["convert", "out", "train.jsonl", "--corpus", "corpus.jsonl", "--dev-share", "0", "--test-share", "0"]) == 0
    *_, note, advice = capsys.readouterr().out.splitlines()
    assert note.startswith("documents with a title: 1; read only with text.titles=true")
    assert advice == "next: retemper new my-project --data out --set text.titles=true"


def test_the_command_says_where_no_query_became_dev(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.jsonl").write_text('{"query": "a", "pos": ["b"]}\n{"query": "c", "pos": ["d"]}\n')
    assert cli.main(["convert", "out", "train.jsonl", "--test-share", "0"]) == 0
    message = "dev has no queries: too few in train for a share of 0.1; give --dev FILE, or a larger --dev-share"
    assert [line for line in capsys.readouterr().out.splitlines() if "no queries" in line] == [message]


def test_a_mistake_is_one_line(tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    write("train.jsonl", {"premise": "a", "hypothesis": "b"})
    with pytest.raises(SystemExit) as exit_error:
        cli.main(["convert", "out", "train.jsonl"])
    assert exit_error.value.code == 2
    error = capsys.readouterr().err.splitlines()
    assert len(error) == 1
    assert error[0].startswith("retemper: train.jsonl:1: found premise, hypothesis, expected the keys of Tevatron")


def test_an_interrupt_leaves_nothing_behind(
    tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write("train.jsonl", tevatron_row("q1", "d1"))

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Store, "judge", interrupt)
    assert cli.main(["convert", "out", "train.jsonl"]) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "retemper: stopped; nothing was written"
    assert [path.name for path in tmp_path.iterdir()] == ["train.jsonl"]


TABLES = {
    "corpus.csv": "id,title,text\nd 1,T,one\nd2,,\n",
    "queries.csv": "id,text\nq1,asks\nq2,asks more\n",
    "qrels/train.csv": "query,doc,grade,weight\nq1,d 1,1,0.5\n",
    "qrels/dev.csv": "query,doc,grade\nq2,d 1,1\n",
    "negatives.csv": "query,doc\nq1,d2\n",
}


@pytest.fixture
def csv_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A CSV folder beside the current folder's `here`."""
    for name, text in TABLES.items():
        (tmp_path / "tables" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tables" / name).write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[4]))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "tables"


@pytest.mark.usefixtures("csv_folder")
def test_another_data_set_becomes_a_beir_folder(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["convert", "my data", "--data", "tables"]) == 0
    assert capfd.readouterr().out.splitlines() == [
        "my data: 2 documents; queries: 2; judgments: train 1, dev 1; negatives: 1",
        "ids with white space: 1; prepare.ids=escape accepts them",
        "documents and queries without text: 1; prepare.empty_texts=drop drops them",
        "next: retemper new my-project --data 'my data' --set prepare.ids=escape --set prepare.empty_texts=drop "
        "--set rounds.warmup.negatives=official",
    ]
    assert (tmp_path / "my data/qrels/train.tsv").read_text() == "query-id\tcorpus-id\tscore\tweight\nq1\td 1\t1\t0.5\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["my data", "tables"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["new", "--data", "csv:tables", "tables/corpus.csv"], "convert: found --data and other files or options, expected --data alone"),
        (["new", "--data", "csv:tables", "--dev-share", "0"], "convert: found --data and other files or options, expected --data alone"),
        (["new", "--data", "table"], "table: no such folder or file, expected one, or demo | beir:PATH"),
        (["new", "--data", "csv:nowhere"], "nowhere: not found, expected a folder with corpus.csv"),
        (["new", "--data", "beir:tables"], "found qrels that are not read, expected dev.tsv"),
        (["tables", "--data", "demo"], "tables: already exists, expected a new folder"),
    ],
)
@pytest.mark.usefixtures("csv_folder")
def test_a_mistake_with_another_data_set_is_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    with pytest.raises(SystemExit) as error:
        cli.main(["convert", *arguments])
    assert error.value.code == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert message in line
    assert [path.name for path in tmp_path.iterdir()] == ["tables"]
